"""BFCL-V4 multi-turn in splits. Variant: the category, or all four.

In an episode the user's texts are fixed, and each turn of the user lasts until the agent answers
without a call. It is scored with the package's own checks, turn by turn: the agent's calls and the
answer's are replayed on two fresh worlds. After each turn in which calls are due, the states must
be equal and the answer's results must be among all of the agent's so far. The package stops at the
first turn that fails; here all turns are checked, and `similarity` is the share of those that pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from trace_bench.checklists.talk import call_of
from trace_bench.core.chat import answer_call, call_json, text_message
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Suite, Typical
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import LiveEnv, met
from trace_bench.envs.bfcl.world import (
    CATEGORIES,
    SCENARIOS,
    BfclCall,
    BfclWorld,
    load,
    more_tools,
    named,
    parse,
    tools_of,
)
from trace_bench.envs.bfcl.world import known_bad as listed

LEADERBOARD = "leaderboard"
SPLITS = ("train", "dev", "test", LEADERBOARD)
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


def split_of(scenario: int) -> str:
    """The split of a scenario: 80 for training, 20 for development, 100 held out, with every kind
    of main tool class in the same share. All four variants of a scenario are in the same split, and
    so are scenarios that share a whole initial state or an answer."""
    if scenario % 4 >= 2:
        return "test"
    return "dev" if scenario % 20 in (8, 17) else "train"


class BfclSuite(Suite):
    """The multi-turn tasks of BFCL-V4.

    `category`: base, miss_func, miss_param, long_context, or all four.

    Raises UserError."""

    name = "bfcl"
    image = "bfcl"
    typical = Typical(10, 4700, 25, 4)  # of the references, at four characters a token

    def __init__(
        self, category: Literal["all", "base", "miss_func", "miss_param", "long_context"] = "all"
    ) -> None:
        self.variant: str = category
        self._bad = listed()
        self._data = load(CATEGORIES if category == "all" else (category,))

    def about(self) -> dict[str, Any]:
        bad = sum(entry["id"] in self._bad for entry in self._data.entries)
        return {"data": self._data.revision, "known_bad": f"{bad} kept"}

    def splits(self) -> Sequence[str]:
        """Three that share no scenario, and the benchmark's own use: all entries."""
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise unknown(
                "split", split, SPLITS, "env.train_split, env.dev_split or evaluation.split"
            )
        return [
            self._task(split, entry)
            for entry in self._data.entries
            if split in (LEADERBOARD, split_of(entry["scenario"]))
        ]

    def task(self, task_id: str) -> Task:
        head, _, name = task_id.rpartition("/")
        entry = self._by_id.get(name)
        for split in SPLITS:
            if entry is not None and head == f"bfcl/{self.variant}/{split}":
                return self._task(split, entry)
        raise UserError(f"no task {task_id!r} in bfcl/{self.variant}.")

    def make(self) -> BfclEnv:
        return BfclEnv()

    def reference(self, task: Task) -> Sequence[Message]:
        """The package's own calls, and a text at the end of each turn. One call a message, and more
        where a turn has more calls than steps are allowed."""
        entry = task.data["record"]
        out: list[Message] = []
        for turn, sources in enumerate(entry["answers"]):
            each = max(1, math.ceil(len(sources) / MOST_STEPS))
            calls = []
            for n, source in enumerate(sources):
                call = named(parse(source), entry["classes"])
                calls.append(call_json(f"call_{turn}_{n}", call.name, call.arguments))
            out += [text_message("", calls[at : at + each]) for at in range(0, len(calls), each)]
            text = "That is done."
            if not sources:
                asks = entry["category"] == "miss_param"
                text = "What is missing?" if asks else "I cannot do that with what I have."
            out.append(text_message(text))
        return out

    @cached_property
    def _by_id(self) -> Mapping[str, Mapping[str, Any]]:
        return {entry["id"]: entry for entry in self._data.entries}

    def _task(self, split: str, entry: Mapping[str, Any]) -> Task:
        number = CATEGORIES.index(entry["category"]) * SCENARIOS + entry["scenario"]
        name = f"bfcl/{self.variant}/{split}/{entry['id']}"
        data = {"record": json.loads(json.dumps(entry))}  # a task's data is its own copy
        if reason := self._bad.get(entry["id"]):
            data["known_bad"] = reason
        return Task(name, "bfcl", split, number, data)
