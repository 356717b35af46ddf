"""The embedded suite: splits of fixed tasks from the seeded generator, rebuilt from their ids, and
training tasks for one capability.

Training tasks are in the same world, with the same tools, and with a reward for exercising the
capability (0.6) and telling the user (0.4). About a fifth are contrast cases, in which exercising
it would be wrong or is not called for. Their shapes are single requests that need the capability
and nothing else that is rare; words and people come from the pool `synthetic`, so no task of any
split is reproduced.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from trace_bench.checklists.items import item_to_json
from trace_bench.checklists.sources import of_reference, rewarded_in
from trace_bench.checklists.talk import turns_of
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Suite, Typical, conversation, perform
from trace_bench.core.types import Message, Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios import needs as several
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.pools import POOLS, Words
from trace_bench.envs.toolsandbox.scenarios.shapes import INSUFFICIENT, SINGLE, TURNS, Shape, shapes
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CAPABILITIES,
    EXACT,
    TELL,
    Say,
    assistant,
    milestone_of,
)
from trace_bench.envs.toolsandbox.tools.augment import AUGMENTATIONS, Augmentation

PREFIX = "toolsandbox/embedded"
SIZES = {"train": 64, "dev": 128, "test": 387, "train_large": 2048, "dialogues": 2400}
PLACES = {f"needs{n}": n for n in range(1, several.MOST + 1)}
CONVERSATIONS = ("dialogues",)  # the splits that have shapes of several user turns only


def _sizes(needs: int | None) -> Mapping[str, int]:
    return SIZES if needs is None else several.SIZES


@lru_cache(maxsize=8)
def _order(split: str) -> tuple[int, ...]:
    """Which shape each task of a split has: every shape in turn, in a seeded order. The test split
    has three of each; a smaller split has the first of a shuffle."""
    size, rng = SIZES[split], random.Random(f"order/{split}")
    several = split in CONVERSATIONS
    fitting = [n for n, s in enumerate(shapes()) if s.category == TURNS or not several]
    order: list[int] = []
    while len(order) < size:
        block = list(fitting)
        rng.shuffle(block)
        order += block
    return tuple(order[:size])


@lru_cache(maxsize=8192)
def _task(needs: int | None, split: str, index: int, augmentation: str) -> Task:
    place = split if needs is None else f"needs{needs}/{split}"
    suffix = "" if augmentation == "none" else f"@{augmentation}"
    task_id = f"{PREFIX}/{place}/{index:04d}{suffix}"
    if needs is not None:
        return several.drawn(needs, split, index, task_id, augmentation)
    shape = shapes()[_order(split)[index]]
    pool = split if split in POOLS else "train"  # of wordings and entities
    seed = random.Random(f"{split}/{index}").getrandbits(32)
    task, _ = build(shape, Words(pool), seed, task_id, split, augmentation)
    return task


class EmbeddedSuite(Suite):
    """The phone world: contacts, messages, reminders, settings and searches. A score always carries
    the name of its suite: `embedded` is not the official benchmark.

    `augmentation`: none, distractors_3, distractors_10, all_tools, scrambled_names,
    scrambled_descriptions, scrambled_arg_descriptions or scrambled_arg_types.

    The project's own, with its splits `train`, `dev`, `test`, `train_large` and
    `dialogues`, whose tasks have several user turns and are recorded by `trace_bench.record`.

    `needs`: 1, 2 or 3 for splits `train`, `dev` and `test` whose tasks all need exactly so many of
    the capabilities (`needs.py`); then the variant's name says so."""

    name = "toolsandbox"
    variant = "embedded"
    image = "base"
    lists_tasks_here = True
    tag_keys = ("requires",)
    general_demonstrations = "trace_bench.tiny.demos:general"
    typical = Typical(2.5, 75, 12, 0)  # the tiny agent's means

    def __init__(
        self, augmentation: Augmentation = "none", needs: Literal[1, 2, 3] | None = None
    ) -> None:
        self.augmentation, self.needs = augmentation, needs
        if needs is not None:
            self.variant = f"embedded, needs {needs}"

    def splits(self) -> Sequence[str]:
        return tuple(_sizes(self.needs))

    def tasks(self, split: str) -> list[Task]:
        sizes = _sizes(self.needs)
        if split not in sizes:
            raise unknown("split", split, sizes, "env.train_split or evaluation.split")
        return [_task(self.needs, split, n, self.augmentation) for n in range(sizes[split])]

    def task(self, task_id: str) -> Task:
        """Any task from its id: of a split, or synthetic."""
        *place, last = task_id.removeprefix(f"{PREFIX}/").split("/")
        index, _, augmentation = last.partition("@")
        numbered = index.isascii() and index.isdigit()
        if numbered and len(place) == 2 and place[0] == "synthetic" and index == last:
            return synthetic_task(place[1], int(index))
        if numbered and len(place) == 3 and place[1] == "synthetic" and place[0] in PLACES:
            made = several.in_context(PLACES[place[0]], place[2], int(index), task_id)
            if made is not None:
                return made
        needs = PLACES.get(place[0]) if len(place) == 2 else None
        split = place[-1] if len(place) == (1 if needs is None else 2) else ""
        of_suite = numbered and augmentation in ("", *AUGMENTATIONS)
        if not of_suite or int(index) >= _sizes(needs).get(split, 0):
            raise UserError(
                f"no task {task_id!r}; ids look like {PREFIX}/train/0007, "
                f"{PREFIX}/needs3/train/0007 or {PREFIX}/synthetic/<capability>/<seed>"
            )
        return _task(needs, split, int(index), augmentation or "none")

    def make(self) -> ToolSandboxEnv:
        return ToolSandboxEnv()

    def reference(self, task: Task) -> list[Message]:
        """The reference trajectory as assistant messages, to be stepped in order."""
        env = ToolSandboxEnv()
        env.reset(task)
        actions = enumerate(task.data["reference"])
        return [assistant(action, i, env.shown_name) for i, action in actions]

    def checklist(self, task: Task) -> list[list[dict[str, Any]]]:
        """What the task rewards in its reference, as items for each turn of the user."""
        env, actions = self.make(), self.reference(task)
        steps = perform(env, task, actions)
        opening, turns = turns_of(conversation(steps, actions))
        score = steps[-1].score or env.score()
        checklist = of_reference(turns, rewarded_in(turns, len(opening), score.milestones))
        return [[item_to_json(item) for item in items] for items in checklist.turns]

    def capabilities(self) -> tuple[str, ...]:
        return CAPABILITIES

    def synthetic(self, capability: str, seed: int) -> Task:
        return synthetic_task(capability, seed)

    def in_context(self, capability: str, seed: int) -> Task:
        if self.needs is None:
            return synthetic_task(capability, seed)
        task_id = f"{PREFIX}/needs{self.needs}/synthetic/{capability}/{seed}"
        task = several.in_context(self.needs, capability, seed, task_id)
        return task or synthetic_task(capability, seed)


CONTRAST_SHARE = 0.2


def synthetic_task(capability: str, seed: int) -> Task:
    """The synthetic task of a capability and a seed; `data["contrast"]` says whether it is a
    contrast case. Raises UserError for an unknown capability."""
    if capability not in CAPABILITIES:
        raise unknown("capability", capability, CAPABILITIES, "capability")
    rng = random.Random(f"synthetic/{capability}/{seed}")
    contrast = rng.random() < CONTRAST_SHARE
    required = [] if contrast or capability in (EXACT, TELL) else [capability]
    choice = _shapes_for("" if contrast else capability)
    task_id = f"{PREFIX}/synthetic/{capability}/{seed}"
    for _ in range(100):  # what a drawn task requires also depends on the draw
        shape, drawn = rng.choice(choice), rng.getrandbits(32)
        task, _ = build(shape, Words("synthetic"), drawn, task_id, "synthetic")
        if task.data["requires"] == required:
            break
    data = {**task.data, "contrast": contrast}
    if not data["milestones"]:
        # The splits' tasks of this category have no milestones, as in the official suite, so that
        # doing nothing solves them; a training environment must not reward it.
        told = Say(data["reference"][-1]["say"]).constraint()
        data["milestones"] = [milestone_of(told)]
    data["weights"] = _weights(data["milestones"])
    return replace(task, data=data)


@lru_cache(maxsize=1)
def _by_requirement() -> dict[frozenset[str], list[Shape]]:
    """The shapes by the set of capabilities that one drawn task of each requires."""
    by_requirement: dict[frozenset[str], list[Shape]] = {}
    for shape in shapes():
        task, _ = build(shape, Words("synthetic"), 0, "", "synthetic")
        by_requirement.setdefault(frozenset(task.data["requires"]), []).append(shape)
    return by_requirement


def _shapes_for(capability: str) -> list[Shape]:
    """The shapes that need a capability and nothing else that is rare; for "" nothing rare."""
    plain = _by_requirement()[frozenset()]
    if not capability:
        return [s for s in plain if s.category != INSUFFICIENT]
    if capability == EXACT:  # an argument of a later call comes out of an earlier result
        return [s for s in plain if s.name in ("modify_contact", "remove_reminder", "send_name")]
    if capability == TELL:
        return [s for s in plain if s.category == SINGLE and not s.name.startswith("set")]
    return _by_requirement()[frozenset({capability})]


def _weights(milestones: Sequence[Mapping[str, Any]]) -> list[float]:
    """0.6 over the milestones that are acts, 0.4 over those that tell the user."""
    constraints = [milestone["constraints"][0] for milestone in milestones]
    told = [c["database"] == "SANDBOX" and c["kind"] == "snapshot" for c in constraints]
    acts = told.count(False)
    if not acts or all(told):
        return [1.0] * len(told)
    tell = 1 - several.ACT
    return [tell / told.count(True) if t else several.ACT / acts for t in told]
