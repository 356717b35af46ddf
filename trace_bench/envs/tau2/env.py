"""One τ² episode: agent, user and two sets of tools, as a state machine without threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Boundary, Message, Score, Step, StopReason, Task, Tool
from trace_bench.envs.tau2.data import policy_text
from trace_bench.envs.tau2.score import Call, score
from trace_bench.envs.tau2.user import STOPS, AskedUser, ScriptedUser, User
from trace_bench.envs.tau2.world import AGENT, USER, Toolbox, World

DONE: Tool = {
    "type": "function",
    "function": {
        "name": "done",
        "description": "Ends the work on the ticket.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
_TEXT = (
    "You are a customer service agent. Help the user within the policy below. In each turn either "
    "send the user a message or make tool calls, not both."
)
_SOLO = (
    "You are a technical support agent and work on a ticket alone, within the policy below. In "
    "each turn make tool calls, and call done when the work is finished."
)


class Tau2Env:
    """Implements `protocols.Env`. `user`: "scripted", or "llm" for a user that is asked with `ask`.
    `solo`: telecom without a user; the agent then has the user's tools."""

    def __init__(self, toolbox: Toolbox, gold: Mapping[str, str], user: str, solo: bool, ask: Ask):
        self._toolbox, self._gold, self._kind, self._solo = toolbox, gold, user, solo
        self._ask = ask
        self._live = False

    def reset(self, task: Task) -> Step:
        self._record = task.data["record"]
        self._world: World = self._toolbox.world(self._record)
        self._calls: list[Call] = []
        self._said: list[str] = []
        self._live = True
        data = self._toolbox.data
        system = f"{_SOLO if self._solo else _TEXT}\n\n{policy_text(data, self._solo)}"
        tools = self._toolbox.schemas[AGENT]
        if self._solo:
            opening, tools = (
                str(self._record["ticket"]),
                (*tools, *self._toolbox.schemas[USER], DONE),
            )
        else:
            self._user = self._make_user()
            opening = self._user.opening()
        messages: tuple[Message, ...] = (
            {"role": "system", "content": system},
            {"role": "user", "content": opening},
        )
        return Step(messages, tools)

    def step(self, action: Message) -> Step:
        if not self._live:
            raise EpisodeError(Boundary.ENVIRONMENT, "step without a running episode; reset first")
        calls = action.get("tool_calls")
        if calls:
            return self._execute(calls if isinstance(calls, list | tuple) else [calls])
        text = action.get("content")
        text = text if isinstance(text, str) else ""
        self._said.append(text)
        if self._solo:
            return self._end()
        answer = self._user.reply(text, self._user_call)
        if any(stop in answer for stop in STOPS):
            return self._end(({"role": "user", "content": answer},))
        return Step(({"role": "user", "content": answer},))

    def score(self) -> Score:
        """The score of the current state."""
        gold = self._gold.get(self._record["id"], "")
        found = score(self._record, self._world, self._said, self._calls, gold)
        if self._solo or not self._user.faults:
            return found
        return replace(found, details={**found.details, "user_faults": self._user.faults})

    def close(self) -> None:
        self._live = False

    def _make_user(self) -> User:
        if self._kind == "scripted":
            return ScriptedUser(self._record)
        tools = self._toolbox.schemas[USER]
        return AskedUser(self._record, self._toolbox.data.domain, tools, self._ask)

    def _execute(self, calls: Any) -> Step:
        answers: list[Message] = []
        ended = False
        for call in calls:
            name, arguments, fault = read_call(call)
            ended = ended or (self._solo and name == "done")
            content = fault or ("done" if ended else self._agent_call(name, arguments))
            answers.append(
                {
                    "role": "tool",
                    "tool_call_id": str(call.get("id", "")) if isinstance(call, dict) else "",
                    "name": name,
                    "content": content,
                }
            )
        return self._end(tuple(answers)) if ended else Step(tuple(answers))

    def _agent_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        side = AGENT
        if self._solo and name in self._toolbox.names(USER):
            side = USER
        self._calls.append(Call(side, name, arguments))
        return self._world.call(side, name, arguments)

    def _user_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._calls.append(Call(USER, name, arguments))
        return self._world.call(USER, name, arguments)

    def _end(self, messages: tuple[Message, ...] = ()) -> Step:
        self._live = False
        return Step(messages, done=True, score=self.score(), stop=StopReason.DONE)


def read_call(call: Any) -> tuple[str, dict[str, Any], str]:
    """(name, arguments, error message) of a tool call; the message is "" for a valid call."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "", {}, "Error: a tool call needs a function with a name"
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            return function["name"], {}, f"Error: the arguments are not JSON ({error})"
    if not isinstance(arguments, dict):
        return function["name"], {}, "Error: the arguments must be an object"
    return function["name"], arguments, ""
