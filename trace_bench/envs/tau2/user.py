"""The user's side of a τ² conversation: `opening` is the first message, `reply` answers the agent's
and may call the user's tools with `act`. A text with one of `STOPS` ends the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from trace_bench.core.chat import opening_of
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.text import between
from trace_bench.core.types import Boundary
from trace_bench.envs import CarefulAsk
from trace_bench.envs.tau2.domains import user_guidelines

STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
PROMPT_VERSION = "2"  # of the text added to the benchmark's guidelines; recorded in every run
_MOST_CALLS = 20  # rounds of tool calls in one turn of the user

Act = Callable[[str, Mapping[str, Any]], str]  # a user tool's name and arguments -> its answer


class ScriptedCustomer:
    """A scripted user: opens with everything that the task says about the user, makes the user's
    next actions when the agent writes, answers questions with yes, and otherwise ends the
    conversation. For lower and upper bounds and tests; no substitute for a real user."""

    faults = 0

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._scenario = _instructions(record)
        self._runs = user_runs((record.get("evaluation_criteria") or {}).get("actions") or ())
        self._questions = 0

    def opening(self) -> str:
        return self._scenario

    def reply(self, said: str, act: Act) -> str:
        if self._runs and said.strip():
            done = [f"{a['name']}: {act(a['name'], a['arguments'])}" for a in self._runs.pop(0)]
            return "I did that. " + " ".join(done)
        if said.strip().endswith("?") and self._questions < 10:
            self._questions += 1
            return "Yes, please."
        return f"Thank you. {STOPS[0]}"


class AskedUser:
    """A user played by the role `user`: a language model with the benchmark's guidelines, or a
    program. Tool calls are written as <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

    def __init__(self, record: Mapping[str, Any], tools: Sequence[Any], ask: Ask):
        self._ask = CarefulAsk(ask, STOPS)
        system = f"{user_guidelines(bool(tools))}\n<scenario>\n{_instructions(record)}\n</scenario>"
        if tools:
            listed = "\n".join(json.dumps(tool["function"]) for tool in tools)
            system += (
                "\nYou can use these tools of your own. To use one, answer with nothing but "
                '<tool_call>{"name": ..., "arguments": {...}}</tool_call>; you are then told its '
                f"result.\n{listed}"
            )
        self._messages = opening_of(system, "Hi! How can I help you today?")

    @property
    def faults(self) -> int:
        """Answers of the model that could not be used."""
        return self._ask.faults

    def opening(self) -> str:
        return self._turn(lambda name, arguments: "Error: not before the conversation", True)

    def reply(self, said: str, act: Act) -> str:
        self._messages.append({"role": "user", "content": said})
        return self._turn(act)

    def _turn(self, act: Act, opening: bool = False) -> str:
        for _ in range(_MOST_CALLS):
            text = self._ask(self._messages, opening)
            self._messages.append({"role": "assistant", "content": text})
            calls = calls_in(text)
            if not calls:
                return text
            results = [_answer(call, act) for call in calls]
            self._messages.append({"role": "user", "content": "\n".join(results)})
        raise EpisodeError(
            Boundary.USER.value,
            f"the user's model made {_MOST_CALLS} rounds of tool calls in a row",
        )


def user_runs(actions: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The user's actions, grouped into runs without an action of the agent in between."""
    runs = groupby(actions, lambda action: action.get("requestor") == "user")
    return [list(run) for by_user, run in runs if by_user]


def calls_in(text: str) -> list[str]:
    """The tool calls that a user's model has written: each an object, as text."""
    blocks = [block.strip() for block in between(text, "<tool_call>", "</tool_call>")[0]]
    return [block for block in blocks if block.startswith("{") and block.endswith("}")]


def _answer(call: str, act: Act) -> str:
    try:
        data = json.loads(call)
        return f"{data['name']}: {act(data['name'], data.get('arguments') or {})}"
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: the tool call could not be read ({error})"


def _instructions(record: Mapping[str, Any]) -> str:
    """The scenario as one text: why the user calls, what they know, how they behave."""
    instructions = record["user_scenario"]["instructions"]
    if isinstance(instructions, str):
        return instructions
    parts = [instructions.get(k) for k in ("reason_for_call", "known_info", "task_instructions")]
    return "\n".join(part for part in parts if part)
