"""Training tasks for one capability: in the same world, with the same tools, and with a reward for
exercising the capability (0.6) and telling the user (0.4). About a fifth are contrast cases, in
which exercising it would be wrong or is not called for.

The shapes are single requests that need the capability and nothing else that is rare; words and
people come from the pool `synthetic`, so no task of any split is reproduced.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trace_bench.core.errors import unknown
from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.play import message_constraint
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.envs.toolsandbox.scenarios.shapes import INSUFFICIENT, SINGLE, Shape, shapes
from trace_bench.envs.toolsandbox.scenarios.solver import CAPABILITIES, EXACT, TELL

CONTRAST_SHARE = 0.2
_ACT, _TELL = 0.6, 0.4  # shares of the reward


def synthetic_task(capability: str, seed: int) -> Task:
    """The synthetic task of a capability and a seed; `data["contrast"]` says whether it is a
    contrast case. Raises UserError for an unknown capability."""
    if capability not in CAPABILITIES:
        raise unknown("capability", capability, CAPABILITIES, "capability")
    rng = random.Random(f"synthetic/{capability}/{seed}")
    contrast = rng.random() < CONTRAST_SHARE
    required = [] if contrast or capability in (EXACT, TELL) else [capability]
    choice = plain_shapes() if contrast else shapes_for(capability)
    task_id = f"toolsandbox/embedded/synthetic/{capability}/{seed}"
    for _ in range(100):  # what a drawn task requires also depends on the draw
        shape, drawn = rng.choice(choice), rng.getrandbits(32)
        task, _ = build(shape, Words("synthetic"), drawn, task_id, "synthetic")
        if task.data["requires"] == required:
            break
    return rewarded(task, contrast)


def rewarded(task: Task, contrast: bool) -> Task:
    """The task with the weights of a synthetic one."""
    data = {**task.data, "contrast": contrast}
    if not data["milestones"]:
        data["milestones"] = [_told(data["reference"][-1]["say"])]
    data["weights"] = _weights(data["milestones"])
    return Task(task.id, task.env, task.split, task.seed, data)


@lru_cache(maxsize=1)
def by_requirement() -> dict[frozenset[str], list[Shape]]:
    """The shapes by the set of capabilities that one drawn task of each requires."""
    found: dict[frozenset[str], list[Shape]] = {}
    for shape in shapes():
        task, _ = build(shape, Words("synthetic"), 0, "", "synthetic")
        found.setdefault(frozenset(task.data["requires"]), []).append(shape)
    return found


@lru_cache(maxsize=1)
def plain_shapes() -> tuple[Shape, ...]:
    return tuple(s for s in by_requirement()[frozenset()] if s.category != INSUFFICIENT)


@lru_cache(maxsize=len(CAPABILITIES))
def shapes_for(capability: str) -> tuple[Shape, ...]:
    plain = by_requirement()[frozenset()]
    if capability == EXACT:  # an argument of a later call comes out of an earlier result
        names = ("modify_contact", "remove_reminder", "send_name")
        return tuple(s for s in plain if s.name in names)
    if capability == TELL:
        return tuple(s for s in plain if s.category == SINGLE and not s.name.startswith("set"))
    return tuple(by_requirement()[frozenset({capability})])


def _told(text: str) -> dict[str, Any]:
    """The milestone that the user is told so. The splits' tasks of this category have no
    milestones, as in the official suite, so that doing nothing solves them; a training environment
    must not reward it."""
    return {"constraints": [message_constraint(text)], "guards": []}


def _weights(milestones: Sequence[Mapping[str, Any]]) -> list[float]:
    """0.6 over the milestones that are acts, 0.4 over those that tell the user."""
    constraints = [milestone["constraints"][0] for milestone in milestones]
    told = [c["database"] == "SANDBOX" and c["kind"] == "snapshot" for c in constraints]
    acts = told.count(False)
    if not acts or all(told):
        return [1.0] * len(told)
    return [_TELL / told.count(True) if t else _ACT / acts for t in told]
