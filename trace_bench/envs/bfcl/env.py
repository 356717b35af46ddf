"""One episode: the user's texts are fixed, and each turn of the user lasts until the agent answers
without a call. It is scored with the package's own checks, turn by turn.

The agent's calls and the answer's are replayed on two fresh worlds. After each turn in which calls
are due, the states must be equal and the answer's results must be among all of the agent's so far.
The package stops at the first turn that fails; here all turns are checked, and `similarity` is the
share of those that pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.checklists.talk import call_of
from trace_bench.core.chat import answer_call
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import LiveEnv, met
from trace_bench.envs.bfcl.world import BfclCall, BfclWorld, more_tools, parse, tools_of

MOST_STEPS = 20  # steps with calls in one turn of the user; the benchmark ends the episode after it


class BfclEnv(LiveEnv):
    """One entry of the benchmark."""

    def reset(self, task: Task) -> Step:
        self._entry: Mapping[str, Any] = task.data["record"]
        self._world = BfclWorld(self._entry)
        self._turns: list[list[list[BfclCall]]] = [[]]
        self._steps = 0  # of this turn, readable or not
        self._live = True
        tools, self._later = tools_of(self._entry)
        return Step((self._user(),), tools)

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        if calls:
            return self._execute(calls)
        if len(self._turns) == len(self._entry["turns"]):
            return self.end(StopReason.DONE)
        self._turns.append([])
        self._steps = 0
        return Step((self._user(),))

    def score(self) -> Score:
        """The score of the current state. The last turn counts if it has calls, also one that the
        agent has not ended."""
        played = self._turns if self._turns[-1] or not self._live else self._turns[:-1]
        return score(self._entry, played)

    def _user(self) -> Message:
        number = len(self._turns) - 1
        text = self._entry["turns"][number]
        if text is None:
            text = more_tools(self._later.get(str(number), ()))
        return {"role": "user", "content": text}

    def _execute(self, calls: list[Any]) -> Step:
        answers: list[Message] = []
        step: list[BfclCall] = []
        for raw in calls:
            try:
                read = call_of(raw)
            except ValueError as error:
                answers.append(answer_call(raw, f"Error: {error}"))
                continue
            call = BfclCall(read.name, read.arguments)
            step.append(call)
            answers.append(answer_call(raw, self._world.call(call)))
        if step:
            self._turns[-1].append(step)
        self._steps += 1
        if self._steps > MOST_STEPS:
            return self.end(StopReason.TURN_LIMIT, tuple(answers))
        return Step(tuple(answers))


Turns = Sequence[Sequence[Sequence[BfclCall]]]  # turns of steps of calls

CUT_OFF = "multi_turn:force_terminated"
EMPTY = "multi_turn:empty_turn_model_response"
STATE = "multi_turn:instance_state_mismatch"


def score(entry: Mapping[str, Any], played: Turns) -> Score:
    """The score of the turns that were reached; fewer than the entry has fail it. A turn in which
    no call is due counts in none of them, as in the package's own evaluation."""
    errors: dict[int, str] = {}
    counted: list[int] = []
    ours, theirs = BfclWorld(entry), BfclWorld(entry)
    results: list[str] = []
    for number, sources in enumerate(entry["answers"]):
        steps = played[number] if number < len(played) else ()
        calls = [call for step in steps for call in step]
        results += [ours.call(call) for call in calls]
        wanted = [theirs.call(parse(source)) for source in sources]
        if not wanted:
            continue
        counted.append(number)
        if number >= len(played):
            fault = CUT_OFF
        elif not calls:
            fault = EMPTY
        else:
            fault = _mismatch(ours, theirs, results, wanted, number)
        if fault:
            errors[number] = fault
    cut_off = len(played) < len(entry["answers"])
    details = {
        "error": CUT_OFF if cut_off else next(iter(errors.values()), None),
        "turns": {str(number + 1): error for number, error in errors.items()},
        "checked_turns": len(counted),
    }
    milestones = tuple(met(f"turn {number + 1}", number not in errors) for number in counted)
    share = 1.0 - len(errors) / len(counted)
    return Score(share, not errors and not cut_off, details, milestones)


def _mismatch(
    ours: BfclWorld, theirs: BfclWorld, results: list[str], wanted: list[str], number: int
) -> str:
    """The package's name of the first difference; "" if there is none."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (
        response_checker,
        state_checker,
    )

    try:
        verdict = state_checker(ours.instances, theirs.instances)
    except RecursionError:  # a folder that was moved into itself
        return STATE
    if verdict["valid"]:
        verdict = response_checker(results, wanted, number)
    return "" if verdict["valid"] else str(verdict["error_type"])
