"""The official scenarios as tasks. The benchmark has no train and test splits: every split holds
all scenarios, so training and reporting use the same tasks (`protocol=paper`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from trace_bench.core.errors import unknown
from trace_bench.core.protocols import RunContext, Suite, Typical
from trace_bench.core.types import Task
from trace_bench.envs import task_named
from trace_bench.envs.toolsandbox.tools.augment import Augmentation
from trace_bench.envs.toolsandbox_official.env import OfficialEnv
from trace_bench.envs.toolsandbox_official.stage import COMMIT, RAPID_KEY, SUFFIXES, Scenarios

SPLITS = ("train", "dev", "test", "base")


class OfficialSuite(Suite):
    """The benchmark has milestones but no reference trajectories. The simulated user is the model
    behind `run.ask`, or a script if there is none. Scenarios that need RapidAPI are left out unless
    its key is given.

    `source`: a checkout of github.com/apple/ToolSandbox (env.suite=official only)."""

    name, variant = "toolsandbox", "official"
    image = "toolsandbox"
    tag_keys = ("categories",)
    typical = Typical(8, 3000, 80, 2)  # a guess from the scenarios

    def __init__(
        self, run: RunContext, augmentation: Augmentation = "none", source: str | None = None
    ) -> None:
        self._user = "scripted" if run.ask is None else "llm"
        self._augmentation, self._ask = augmentation, run.ask
        self._stage = Scenarios(source)
        keyed = RAPID_KEY in os.environ
        self._left_out = [] if keyed else [b for b in self._stage.bases if self._stage.needs_key(b)]

    def asks_user(self) -> bool:
        return self._user == "llm"

    def about(self) -> dict[str, Any]:
        return {
            "data": f"apple/ToolSandbox {COMMIT}",
            "user": self._user,
            "scenarios": len(self._stage.bases),
            "left_out": len(self._left_out),
            "why_left_out": f"they need {RAPID_KEY}" if self._left_out else "",
        }

    def splits(self) -> Sequence[str]:
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "env.train_split or evaluation.split")
        out = []
        for number, base in enumerate(self._stage.bases):
            if base not in self._left_out:
                name = base + SUFFIXES[self._augmentation]
                data = {"scenario": name, "categories": self._stage.categories(name)}
                task_id = f"toolsandbox/official/{split}/{number:04d}"
                out.append(Task(task_id, "toolsandbox", split, 0, data))
        return out

    def task(self, task_id: str) -> Task:
        return task_named(self, task_id)

    def make(self) -> OfficialEnv:
        return OfficialEnv(self._stage, self._ask)
