"""The embedded suite: splits of fixed tasks from the seeded generator, rebuilt from their ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from trace_bench.checklists.items import item_to_json
from trace_bench.checklists.sources import of_reference, rewarded_in
from trace_bench.checklists.talk import turns_of
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import (
    Env,
    HasChecklist,
    HasReference,
    Synthesizes,
    SynthesizesDomains,
    Typical,
)
from trace_bench.core.types import Message, Score, Step, Task
from trace_bench.envs.domains.env import DomainEnv
from trace_bench.envs.domains.tables import TABLES
from trace_bench.envs.domains.tasks import domain_data
from trace_bench.envs.domains.tasks import reference as domain_reference
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.play import assistant
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.envs.toolsandbox.scenarios.shapes import TURNS, Shape, shapes
from trace_bench.envs.toolsandbox.scenarios.solver import CAPABILITIES
from trace_bench.envs.toolsandbox.scenarios.synthetic import synthetic_task
from trace_bench.envs.toolsandbox.tools.augment import Augmentation


class AnyWorld(Env):
    """The environment of the current task."""

    def __init__(self) -> None:
        self._env: ToolSandboxEnv | DomainEnv = ToolSandboxEnv()

    def reset(self, task: Task) -> Step:
        self._env = DomainEnv() if "domain" in task.data else ToolSandboxEnv()
        return self._env.reset(task)

    def step(self, action: Message) -> Step:
        return self._env.step(action)

    def score(self) -> Score:
        return self._env.score()

    def close(self) -> None:
        self._env.close()


PREFIX = "toolsandbox/embedded"
# Number of tasks and pool of wordings and entities. `train_large` and `dialogues` share the pool
# of `train`.
SPLITS = {
    "train": (64, "train"),
    "dev": (128, "dev"),
    "test": (387, "test"),
    "train_large": (2048, "train"),
    "dialogues": (2400, "train"),
}
CONVERSATIONS = ("dialogues",)  # the splits that have shapes of several user turns only


@lru_cache(maxsize=1)
def _shapes() -> tuple[Shape, ...]:
    return tuple(shapes())


@lru_cache(maxsize=8)
def _order(split: str) -> tuple[int, ...]:
    """Which shape each task of a split has: every shape in turn, in a seeded order. The test split
    has three of each; a smaller split has the first of a shuffle."""
    size, _ = SPLITS[split]
    rng = random.Random(f"order/{split}")
    several = split in CONVERSATIONS
    fitting = [n for n, s in enumerate(_shapes()) if s.category == TURNS or not several]
    order: list[int] = []
    while len(order) < size:
        block = list(fitting)
        rng.shuffle(block)
        order += block
    return tuple(order[:size])


@lru_cache(maxsize=8192)
def _task(split: str, index: int, augmentation: str) -> Task:
    shape = _shapes()[_order(split)[index]]
    _, pool = SPLITS[split]
    suffix = "" if augmentation == "none" else f"@{augmentation}"
    task_id = f"{PREFIX}/{split}/{index:04d}{suffix}"
    seed = random.Random(f"{split}/{index}").getrandbits(32)
    task, _ = build(shape, Words(pool), seed, task_id, split, augmentation)
    return task


class EmbeddedSuite(HasReference, HasChecklist, Synthesizes, SynthesizesDomains):
    """The project's own phone world with its splits `train`, `dev`, `test`, `train_large` and
    `dialogues`, whose tasks have several user turns and are recorded by `trace_bench.record`.

    Figures of this suite are never figures of the official benchmark.
    """

    name = "toolsandbox"
    variant = "embedded"
    image = "base"
    lists_tasks_here = True
    larger = MappingProxyType({"train": "train_large"})
    tag_keys = ("requires",)
    typical = Typical(2.5, 75, 12, 0)  # the tiny agent's means

    def __init__(self, augmentation: Augmentation = "none") -> None:
        self.augmentation = augmentation

    def splits(self) -> Sequence[str]:
        return tuple(SPLITS)

    def tasks(self, split: str) -> list[Task]:
        """All tasks of a split, in their fixed order."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "env.train_split or evaluation.split")
        return [_task(split, i, self.augmentation) for i in range(SPLITS[split][0])]

    def task(self, task_id: str) -> Task:
        """Any task from its id: of a split, or synthetic."""
        parts = task_id.removeprefix(f"{PREFIX}/").split("/")
        if task_id.startswith(f"{PREFIX}/synthetic/") and len(parts) == 3:
            return synthetic_task(parts[1], int(parts[2]))
        if task_id.startswith(f"{PREFIX}/domains/") and len(parts) == 3:
            return self.synthetic_in(parts[1], int(parts[2]))
        index, _, augmentation = parts[-1].partition("@")
        if len(parts) != 2 or parts[0] not in SPLITS or not index.isdigit():
            raise UserError(
                f"no task {task_id!r}; ids look like {PREFIX}/train/0007 or "
                f"{PREFIX}/synthetic/<capability>/<seed>"
            )
        return _task(parts[0], int(index), augmentation or "none")

    def make(self) -> AnyWorld:
        return AnyWorld()

    def reference(self, task: Task) -> list[Message]:
        """The reference trajectory as assistant messages, to be stepped in order."""
        if "domain" in task.data:
            return domain_reference(task.data)
        env = ToolSandboxEnv()
        env.reset(task)
        actions = enumerate(task.data["reference"])
        return [assistant(action, i, env.shown_name) for i, action in actions]

    def checklist(self, task: Task) -> list[list[dict[str, Any]]]:
        """What the task rewards in its reference, as items for each turn of the user."""
        env = self.make()
        step = env.reset(task)
        talk = list(step.messages)
        for action in self.reference(task):
            if step.done:
                break
            step = env.step(action)
            talk += [action, *step.messages]
        opening, turns = turns_of(talk)
        score = step.score or env.score()
        made = of_reference(turns, rewarded_in(turns, len(opening), score.milestones))
        return [[item_to_json(item) for item in items] for items in made.turns]

    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that synthetic tasks exist for."""
        return CAPABILITIES

    def synthetic(self, capability: str, seed: int) -> Task:
        return synthetic_task(capability, seed)

    def domains(self) -> tuple[str, ...]:
        """Those beside the phone world."""
        return tuple(TABLES)

    def synthetic_in(self, domain: str, seed: int) -> Task:
        data = domain_data(domain, seed)
        return Task(f"{PREFIX}/domains/{domain}/{seed}", self.name, "synthetic", seed, data)
