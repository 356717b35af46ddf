"""One τ² episode: agent, user and two sets of tools, as a state machine without threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trace_bench.checklists.talk import ToolCall
from trace_bench.core.chat import answer_call, make_tool, opening_of, read_call
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Message, Score, Step, StopReason, Task, Tool
from trace_bench.envs import LiveEnv
from trace_bench.envs.tau2.data import policy_text
from trace_bench.envs.tau2.score import score
from trace_bench.envs.tau2.user import STOPS, AskedUser, ScriptedCustomer
from trace_bench.envs.tau2.world import AGENT, USER, DomainTools, Tau2World, ToolAnswer, failed

MOST_ERRORS = 10  # failed calls of agent and user; the benchmark then ends the episode

DONE: Tool = make_tool("done", "Ends the work on the ticket.")
_TEXT = (
    "You are a customer service agent. Help the user within the policy below. In each turn either "
    "send the user a message or make tool calls, not both."
)
_SOLO = (
    "You are a technical support agent and work on a ticket alone, within the policy below. In "
    "each turn make tool calls, and call done when the work is finished."
)


class Tau2Env(LiveEnv):
    """`ask`: asks the model that plays the user; None: a script does.
    `solo`: telecom without a user; the agent then has the user's tools.

    Departures from the benchmark's loop: the agent's turns are limited (`policy.max_turns`) instead
    of all messages, and a message without text or calls is passed on instead of ending the run.
    """

    def __init__(
        self,
        toolbox: DomainTools,
        gold: Callable[[str], str],
        solo: bool,
        ask: Ask | None,
    ) -> None:
        self._toolbox, self._gold, self._solo, self._ask = toolbox, gold, solo, ask

    def reset(self, task: Task) -> Step:
        self._record = task.data["record"]
        self._world: Tau2World = self._toolbox.world(self._record)
        self._calls: list[ToolCall] = []
        self._said: list[str] = []
        self._errors = 0
        self._stopped = False
        self._live = True
        data = self._toolbox.data
        system = f"{_SOLO if self._solo else _TEXT}\n\n{policy_text(data, self._solo)}"
        tools = self._toolbox.schemas[AGENT]
        of_user = self._toolbox.schemas[USER]
        if self._solo:
            opening, tools = str(self._record["ticket"]), (*tools, *of_user, DONE)
        else:
            self._user: AskedUser | ScriptedCustomer = ScriptedCustomer(self._record)
            if self._ask is not None:
                self._user = AskedUser(self._record, data.domain, of_user, self._ask)
            opening = self._user.opening()
        messages = opening_of(system, opening)
        return Step(tuple(messages), tools)

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        self._said.append(text)
        if calls:
            return self._execute(calls)
        if self._solo:
            return self._end()
        answer = self._user.reply(text, self._user_call)
        said: Message = {"role": "user", "content": answer}
        stopped = any(stop in answer for stop in STOPS)
        return self._goes_on((said,), stopped)

    def score(self) -> Score:
        """The score of the current state: 0 unless the agent or the user has ended the episode."""
        gold, played = self._gold(self._record["id"]), (self._world, self._said, self._calls)
        verdict = score(self._record, gold, *played, self._stopped)
        if self._solo or not self._user.faults:
            return verdict
        return replace(verdict, details={**verdict.details, "user_faults": self._user.faults})

    def _execute(self, calls: list[Any]) -> Step:
        done = tuple(answer_call(call, "done") for call in calls)
        if self._solo and any(message["name"] == "done" for message in done):
            # As in the benchmark, calls beside `done` are not made.
            return self._end(done, stopped=True)
        answers = []
        for call in calls:
            try:
                answer = self._agent_call(*read_call(call))
            except ValueError as error:
                answer = failed(str(error))
            self._errors += answer.failed
            answers.append(answer_call(call, answer.text))
        return self._goes_on(tuple(answers))

    def _agent_call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        side = USER if self._solo and name in self._toolbox.names(USER) else AGENT
        self._calls.append(ToolCall(name, arguments))
        return self._world.call(side, name, arguments)

    def _user_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._calls.append(ToolCall(name, arguments))
        answer = self._world.call(USER, name, arguments)
        self._errors += answer.failed
        return answer.text

    def _goes_on(self, messages: tuple[Message, ...], stopped: bool = False) -> Step:
        """The next messages for the agent, unless the user stopped or too many calls failed."""
        if stopped or self._errors >= MOST_ERRORS:
            return self._end(messages, stopped=self._errors < MOST_ERRORS)
        return Step(messages)

    def _end(self, messages: tuple[Message, ...] = (), *, stopped: bool = False) -> Step:
        """`stopped`: whether the agent or the user ended the episode."""
        self._live, self._stopped = False, stopped
        return self.end(StopReason.DONE, messages)
