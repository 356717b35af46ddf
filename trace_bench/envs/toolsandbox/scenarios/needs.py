"""Tasks that need exactly so many of the skills: combinations of the shapes' requests.

A combination is a request that needs something, the same under a condition, or two requests in one
message, which needs `completes_all_parts` too. What one should need follows from its parts; a task
is taken if the solvers that lack one skill each agree (`build`). A draw takes a set of skills
first, each alike, and one of its combinations; one that is refused is drawn anew, so that sets
whose combinations seldom need what they should come up less often, and a set of a single
combination never. From two skills on, combinations are those of training or of the other splits;
words and wordings are always.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations

from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.lookups import conditional
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.envs.toolsandbox.scenarios.shapes import MULTIPLE, TURNS, Shape, shapes
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CHECK,
    COMPLETE,
    DECLINE,
    Redraw,
    Solver,
    Turns,
    play,
)

MOST = 3  # skills; no request of the phone world needs more
ACT = 0.6  # the share of the capability in the reward of a made task
SIZES = {"train": 96, "dev": 128, "test": 384}
Skills = tuple[str, ...]


@dataclass(frozen=True)
class Combination:
    """A shape and the skills that its tasks should need, sorted by name."""

    skills: Skills
    shape: Shape


def drawn(needs: int, split: str, index: int, task_id: str, augmentation: str) -> Task:
    """A task of a split whose `requires` are exactly `needs` skills."""
    rng = random.Random(f"needs/{needs}/{split}/{index}")
    choice = _of_split(needs, split == "train")
    return _draw(rng, choice, split, task_id, augmentation)[0]


def in_context(needs: int, capability: str, seed: int, task_id: str) -> Task | None:
    """A made task whose `requires` are `needs` skills, one of them the capability, whose share of
    the reward is `ACT`: of that, each milestone weighs what a solver without it loses there, and
    all weigh alike in the rest, so that nothing else is unlearned. None for a capability that no
    combination of training needs."""
    every = _of_split(needs, training=True)
    choice = {skills: shapes for skills, shapes in every.items() if capability in skills}
    if not choice:
        return None
    rng = random.Random(f"needs/{needs}/synthetic/{capability}/{seed}")
    task, turns = _draw(rng, choice, "synthetic", task_id, "none")
    lacking = Solver(frozenset(task.data["tools"]), frozenset({capability}))
    score = play(ToolSandboxEnv(), task, turns, lacking).last.score
    lost = [1.0 - m.similarity for m in score.milestones] if score else []
    count, total = len(task.data["milestones"]), sum(lost)
    # One that only invents what it should decline loses by a minefield.
    weights = [ACT * one / total + (1 - ACT) / count for one in lost] if total else [1.0] * count
    return replace(task, data={**task.data, "contrast": False, "weights": weights})


def _draw(
    rng: random.Random,
    choice: Mapping[Skills, list[Shape]],
    split: str,
    task_id: str,
    augmentation: str,
) -> tuple[Task, Turns]:
    while True:
        skills = rng.choice(sorted(choice))
        shape, seed = rng.choice(choice[skills]), rng.getrandbits(32)
        try:
            task, turns = build(shape, Words(split), seed, task_id, split, augmentation)
        except Redraw:
            continue
        solver = Solver(frozenset(task.data["tools"]))
        score = play(ToolSandboxEnv(), task, turns, solver).last.score
        # Two requests may contradict each other: what one forbids, the other does.
        if score and score.success and tuple(sorted(task.data["requires"])) == skills:
            return task, turns


@lru_cache(maxsize=2 * MOST)
def _of_split(needs: int, training: bool) -> Mapping[Skills, list[Shape]]:
    """The combinations of the training split or of the others, by the skills that they need."""
    by_skills: dict[Skills, list[Shape]] = defaultdict(list)
    for combination in _combinations():
        if len(combination.skills) == needs:
            by_skills[combination.skills].append(combination.shape)
    if needs == 1:
        return by_skills
    for skills, fitting in by_skills.items():
        random.Random("/".join(skills)).shuffle(fitting)
    several = {skills: fitting for skills, fitting in by_skills.items() if len(fitting) > 1}
    return {skills: fitting[training::2] for skills, fitting in several.items()}


@lru_cache(maxsize=1)
def _combinations() -> tuple[Combination, ...]:
    singles = list(_singles())
    return tuple(c for c in (*singles, *_conditional(singles), *_pairs(singles)) if _scored(c))


def _scored(combination: Combination) -> bool:
    """Not a single request that cannot be carried out: doing nothing solves it."""
    return len(combination.shape.kinds) > 1 or DECLINE not in combination.skills


def _singles() -> Iterator[Combination]:
    """The shapes of one request, all in one message, with what a drawn task of each needs."""
    for shape in shapes():
        if len(shape.kinds) == 1:
            task, _ = build(shape, Words("synthetic"), 0, "", "synthetic")
            category = MULTIPLE if shape.category == TURNS else shape.category
            yield Combination(
                tuple(sorted(task.data["requires"])), replace(shape, category=category)
            )


def _conditional(singles: list[Combination]) -> Iterator[Combination]:
    for single in singles:
        (kind,), skills = single.shape.kinds, single.skills
        if skills and not {CHECK, DECLINE} & set(skills):
            for which in ("wifi", "location"):
                inner = partial(conditional, kind=kind, which=which, holds=True)
                name = f"if_{which}_{single.shape.name}"
                shape = replace(single.shape, name=name, category=MULTIPLE, kinds=(inner,))
                yield Combination(tuple(sorted({*skills, CHECK})), shape)


def _pairs(singles: list[Combination]) -> Iterator[Combination]:
    for one, other in combinations(singles, 2):
        a, b = one.shape, other.shape
        skills = {*one.skills, *other.skills, COMPLETE}
        contradict = set(dict(a.settings)) & set(dict(b.settings))
        if len(skills) <= MOST and not contradict:
            shape = Shape(
                f"{a.name}+{b.name}",
                MULTIPLE,
                (*a.kinds, *b.kinds),
                (*a.withheld, *b.withheld),
                (*a.settings, *b.settings),
            )
            yield Combination(tuple(sorted(skills)), shape)
