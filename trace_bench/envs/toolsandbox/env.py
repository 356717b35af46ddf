"""One episode of the embedded phone world."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice, permutations
from typing import Any

from trace_bench.core.chat import opening_of
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import LiveEnv
from trace_bench.envs.toolsandbox import databases
from trace_bench.envs.toolsandbox.databases import AGENT, ENVIRONMENT, USER, ToolFault
from trace_bench.envs.toolsandbox.goals import read_goal
from trace_bench.envs.toolsandbox.score import score_episode
from trace_bench.envs.toolsandbox.tools.augment import catalog, offer
from trace_bench.envs.toolsandbox.tools.spec import check_arguments


class Phone(databases.Databases):
    """`Phone(start, now, seed)`: see `Databases`. Phones share nothing, any number may live."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The tool's result as JSON-safe data that shares nothing with the world.

        Raises ToolFault: NameError for an unknown tool, TypeError and ValueError for bad
        arguments, and what the tool itself refuses."""
        spec = catalog().get(name)
        if spec is None:
            raise ToolFault("NameError", "Unknown tool")
        check_arguments(spec, arguments)
        return spec.function(self, **arguments)


class ScriptedUser:
    """`script` has "opening", "answers" ([{"keywords", "reply"}]), "followups" and "fallback"."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        self.opening: str = script["opening"]
        self._fallback: str = script["fallback"]
        self._answers = [(tuple(a["keywords"]), a["reply"]) for a in script.get("answers", ())]
        self._followups = list(script.get("followups", ()))

    def reply(self, text: str) -> str | None:
        """The user's answer to a text of the agent; None when the user ends the conversation.

        A question gets the first unused answer with a keyword in it, else the fallback; anything
        else gets the next follow-up request while there is one."""
        if "?" not in text:
            return self._followups.pop(0) if self._followups else None
        lowered = text.lower()
        for i, (keywords, reply) in enumerate(self._answers):
            if any(keyword in lowered for keyword in keywords):
                del self._answers[i]
                return str(reply)
        return self._fallback


Result = tuple[str, Mapping[str, Any] | None]
"""What the agent reads of a call, and the trace of one that succeeded."""
_MAX_MESSAGES = 30
_MAX_CALLS = 16  # of one assistant message; no request needs as many
_MAX_ORDERS = 720  # all of six calls; of more calls those that leave the first ones in place


class ToolSandboxEnv(LiveEnv):
    """One object runs one episode after the other.

    The log has the same messages in the same order as the conversation that the agent sees, so an
    index into one is an index into the other; only the user's closing message is in the log alone.
    The text of a reply with tool calls is not sent to the user. At most 16 calls of a reply are
    executed."""

    def reset(self, task: Task) -> Step:
        """System prompt, the user's opening message and the tools."""
        data = task.data
        self.world = Phone(data["start"], data["now"], task.seed)
        tools, withheld = tuple(data["tools"]), tuple(data.get("withheld", ()))
        augmentation = data.get("augmentation", "none")
        self._tools, self._names = offer(tools, augmentation, task.seed, withheld)
        self._user = ScriptedUser(data["user"])
        self._system: str = data["system"]
        self._limit: int = data.get("max_messages", _MAX_MESSAGES)
        self._milestones = read_goal(data["milestones"], data.get("edges"), data.get("weights"))
        self._minefields = read_goal(data.get("minefields", ()), data.get("minefield_edges"))
        self.log: list[databases.LogEntry] = []
        self._note(databases.SYSTEM, AGENT, self._system)
        self._note(USER, AGENT, self._user.opening)
        self._live = True
        return Step(tuple(opening_of(self._system, self._user.opening)), self._tools)

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        """Execute the tool calls, or pass the text to the user."""
        if calls:
            return self._close_if_long(self._execute(calls[:_MAX_CALLS]))
        self._note(AGENT, USER, text)
        reply = self._user.reply(text)
        if reply is None:
            # The user has this one tool, which ends the conversation.
            ended = {"name": "end_conversation", "arguments": {}}
            self._note(USER, ENVIRONMENT, "end_conversation()", ended)
            return self.end(StopReason.DONE)
        self._note(USER, AGENT, reply)
        return self._close_if_long(({"role": "user", "content": reply},))

    def shown_name(self, tool: str) -> str:
        """The name under which the agent knows a tool; the tool's own where it has no other."""
        return next((shown for shown, name in self._names.items() if name == tool), tool)

    def score(self) -> Score:
        return score_episode(self._milestones, self._minefields, self.log, self.world.snapshots)

    def _execute(self, calls: list[Any]) -> tuple[Message, ...]:
        """The answers to calls that must not depend on each other: they are tried in every order,
        as ToolSandbox does. If all succeed in each, their own order counts, else the first one in
        which a call fails. Their changes are one: each answer stands at the last snapshot."""
        functions = [_function(call) for call in calls]
        sent = ", ".join(f"{name}({arguments})" for name, arguments in functions)
        self._note(AGENT, ENVIRONMENT, sent)
        results = self._in_every_order(functions)
        answers: list[Message] = []
        for i, (content, trace) in sorted(results.items()):  # in the order of the calls
            self._note(ENVIRONMENT, AGENT, content, trace)
            call, (shown, _) = calls[i], functions[i]
            identity = (call.get("id") if isinstance(call, Mapping) else None) or f"call_{i}"
            answer = {"role": "tool", "tool_call_id": identity, "name": shown, "content": content}
            answers.append(answer)
        return tuple(answers)

    def _in_every_order(self, functions: list[tuple[str, str]]) -> dict[int, Result]:
        """The results by the number of the call; the world is that of the order that counts."""
        before, first = self.world, None
        for order in islice(permutations(range(len(functions))), _MAX_ORDERS):
            self.world = before.copy()
            results = {i: self._run(*functions[i]) for i in order}
            if any(trace is None for _, trace in results.values()):
                return results
            first = first or (self.world, results)
        assert first is not None
        self.world, results = first
        return results

    def _run(self, alias: str, text: str) -> Result:
        """Result or error as the agent reads it, and the trace of a call that succeeded."""
        try:
            name = self._names.get(alias)
            if name is None:
                raise ToolFault("NameError", "Unknown tool")
            arguments = _arguments(text)
            result = self.world.call(name, arguments)
        except ToolFault as fault:
            return str(fault), None
        return json.dumps(result), {"name": name, "arguments": arguments}

    def _note(
        self, sender: str, recipient: str, content: str, trace: Mapping[str, Any] | None = None
    ) -> None:
        snapshot = len(self.world.snapshots) - 1
        self.log.append(databases.LogEntry(sender, recipient, content, snapshot, trace))

    def _close_if_long(self, messages: tuple[Message, ...]) -> Step:
        # The system prompt is no message of the conversation.
        if len(self.log) - 1 >= self._limit:
            return self.end(StopReason.TURN_LIMIT, messages)
        return Step(messages=messages)


def _function(call: Any) -> tuple[str, str]:
    """Name and argument text of a call; empty where the call has no such field."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return "", ""
    name, arguments = function.get("name"), function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return name if isinstance(name, str) else "", text


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise ToolFault("TypeError", "Arguments are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ToolFault("TypeError", "Arguments are not a JSON object")
    return arguments
