"""BFCL-V4 multi-turn in splits. Variant: the category, or all four."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from trace_bench.core.chat import call_json, text_message
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Suite, Typical
from trace_bench.core.types import Message, Task
from trace_bench.envs.bfcl.env import MOST_STEPS, BfclEnv
from trace_bench.envs.bfcl.world import CATEGORIES, SCENARIOS, load, named, parse
from trace_bench.envs.bfcl.world import known_bad as listed

LEADERBOARD = "leaderboard"
SPLITS = ("train", "dev", "test", LEADERBOARD)


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
