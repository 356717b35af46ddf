"""One τ² episode: agent, user and two sets of tools, as a state machine without threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trace_bench.checklists.talk import ToolCall
from trace_bench.core.chat import answer_call, opening_of, read_call
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import LiveEnv
from trace_bench.envs.tau2.data import policy_text
from trace_bench.envs.tau2.score import score
from trace_bench.envs.tau2.user import STOPS, AskedUser, ScriptedCustomer
from trace_bench.envs.tau2.world import AGENT, USER, DomainTools, Tau2World, failed

MOST_ERRORS = 10  # failed calls of agent and user; the benchmark then ends the episode

_TEXT = (
    "You are a customer service agent. Help the user within the policy below. In each turn either "
    "send the user a message or make tool calls, not both."
)


class Tau2Env(LiveEnv):
    """`ask`: asks the model that plays the user; None: a script does.

    Departures from the benchmark's loop: the agent's turns are limited (`policy.max_turns`) instead
    of all messages, and a message without text or calls is passed on instead of ending the run.
    """

    def __init__(self, toolbox: DomainTools, gold: Callable[[str], str], ask: Ask | None) -> None:
        self._toolbox, self._gold, self._ask = toolbox, gold, ask

    def reset(self, task: Task) -> Step:
        self._record = task.data["record"]
        self._world: Tau2World = self._toolbox.world(self._record)
        self._calls: list[ToolCall] = []
        self._said: list[str] = []
        self._errors = 0
        self._stopped = False
        self._live = True
        data, of_user = self._toolbox.data, self._toolbox.schemas[USER]
        self._user: AskedUser | ScriptedCustomer = ScriptedCustomer(self._record)
        if self._ask is not None:
            self._user = AskedUser(self._record, data.domain, of_user, self._ask)
        messages = opening_of(f"{_TEXT}\n\n{policy_text(data)}", self._user.opening())
        return Step(tuple(messages), self._toolbox.schemas[AGENT])

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        self._said.append(text)
        if calls:
            return self._execute(calls)
        answer = self._user.reply(text, self._user_call)
        said: Message = {"role": "user", "content": answer}
        stopped = any(stop in answer for stop in STOPS)
        return self._goes_on((said,), stopped)

    def score(self) -> Score:
        """The score of the current state: 0 unless the agent or the user has ended the episode."""
        gold, played = self._gold(self._record["id"]), (self._world, self._said, self._calls)
        verdict = score(self._record, gold, *played, self._stopped)
        if not self._user.faults:
            return verdict
        return replace(verdict, details={**verdict.details, "user_faults": self._user.faults})

    def _execute(self, calls: list[Any]) -> Step:
        answers = []
        for call in calls:
            try:
                name, arguments = read_call(call)
            except ValueError as error:
                answer = failed(str(error))
            else:
                self._calls.append(ToolCall(name, arguments))
                answer = self._world.call(AGENT, name, arguments)
            self._errors += answer.failed
            answers.append(answer_call(call, answer.text))
        return self._goes_on(tuple(answers))

    def _user_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._calls.append(ToolCall(name, arguments))
        answer = self._world.call(USER, name, arguments)
        self._errors += answer.failed
        return answer.text

    def _goes_on(self, messages: tuple[Message, ...], stopped: bool = False) -> Step:
        """The next messages for the agent, unless the user stopped or too many calls failed."""
        if not stopped and self._errors < MOST_ERRORS:
            return Step(messages)
        self._stopped = self._errors < MOST_ERRORS
        return self.end(StopReason.DONE, messages)
