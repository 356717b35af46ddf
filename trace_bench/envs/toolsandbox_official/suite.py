"""The official scenarios as tasks. They have no train and test parts: every split is all of them,
so whoever trains on them reports on what was trained on (`protocol=paper`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.types import Message, Task
from trace_bench.envs.registry import Ask
from trace_bench.envs.toolsandbox_official.env import OfficialEnv
from trace_bench.envs.toolsandbox_official.stage import COMMIT, RAPID_KEY, SUFFIXES, Stage

SPLITS = ("train", "dev", "test", "base")
USERS = ("scripted", "llm")


class OfficialSuite:
    """`protocols.Suite`. Scenarios that need RapidAPI are left out unless its key is given."""

    name, variant = "toolsandbox", "official"
    has_reference = False  # the benchmark has milestones, no trajectories

    def __init__(self, augmentation: str, user: str, source: str | None, ask: Ask | None) -> None:
        if user not in USERS:
            raise unknown("user", user, USERS, "llm.user.by")
        if user == "llm" and ask is None:
            raise UserError("a user played by a model needs somebody who answers; see `llm.user`.")
        self.asks = user == "llm"
        self._augmentation, self._user, self._ask = augmentation, user, ask
        self._stage = Stage(source)
        keyed = RAPID_KEY in os.environ
        self._left_out = [] if keyed else [b for b in self._stage.bases if self._stage.needs_key(b)]

    def about(self) -> dict[str, Any]:
        """What every run is marked with."""
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
                out.append(
                    Task(
                        f"toolsandbox/official/{split}/{number:04d}", "toolsandbox", split, 0, data
                    )
                )
        return out

    def task(self, task_id: str) -> Task:
        for split in SPLITS:
            for task in self.tasks(split):
                if task.id == task_id:
                    return task
        raise UserError(f"no task {task_id!r} in toolsandbox/official.")

    def make(self) -> OfficialEnv:
        return OfficialEnv(self._stage, self._user, self._ask)

    def reference(self, task: Task) -> Sequence[Message]:
        raise UserError("the official ToolSandbox has no reference trajectories.")


def official(augmentation: str, options: Mapping[str, str], ask: Ask | None) -> OfficialSuite:
    """For the registry. Options: `user` (scripted or llm), `source` (a checkout)."""
    user = options.get("user", "scripted")
    return OfficialSuite(augmentation, user, options.get("source"), ask)
