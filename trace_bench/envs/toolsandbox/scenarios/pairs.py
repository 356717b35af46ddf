"""Training tasks that need two capabilities: rewarded as those for one (synthetic.py), never
contrast cases, and made of their shapes.

Half of them have one of the scenarios' own shapes that need just these two, where there is one. The
others put a shape of each together: two requests in turn of the user, since each request of a turn
of its own needs no other capability; in one message when doing all parts is one of the two.
"""

from __future__ import annotations

import random

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.play import assistant
from trace_bench.envs.toolsandbox.scenarios.pools import Pool
from trace_bench.envs.toolsandbox.scenarios.shapes import MULTIPLE, TURNS, Shape
from trace_bench.envs.toolsandbox.scenarios.solver import CAPABILITIES, COMPLETE, EXACT, TELL
from trace_bench.envs.toolsandbox.scenarios.synthetic import (
    by_requirement,
    plain_shapes,
    rewarded,
    shapes_for,
)

OWN = 0.5  # share of the scenarios' own shapes, where there are any
_ATTEMPTS = 200  # of the shapes that are put together at least one in ten will do


def partners(capability: str) -> tuple[str, ...]:
    """What a capability can be paired with. Raises UserError for an unknown one."""
    if capability not in CAPABILITIES:
        raise unknown("capability", capability, CAPABILITIES, "capability")
    return tuple(other for other in CAPABILITIES if other != capability)


def pair_task(capability: str, second: str, seed: int) -> Task:
    """The synthetic task of two capabilities and a seed. Raises UserError for an unknown one, or
    for the same twice."""
    if second not in (allowed := partners(capability)):
        raise unknown("second capability", second, allowed, "capability")
    rng = random.Random(f"synthetic/{capability}+{second}/{seed}")
    both = (capability, second)
    required = [c for c in CAPABILITIES if c in both and c not in (EXACT, TELL)]
    own = by_requirement().get(frozenset(required), ()) if len(required) == 2 else ()
    task_id = f"toolsandbox/embedded/synthetic/{capability}+{second}/{seed}"
    for _ in range(_ATTEMPTS):  # what a drawn task requires also depends on the draw
        shape = rng.choice(own) if own and rng.random() < OWN else _together(rng, both)
        task, _ = build(shape, Pool("synthetic"), rng.getrandbits(32), task_id, "synthetic")
        if task.data["requires"] == required and _solved(task):
            return rewarded(task, False)
    raise UserError(f"no task of {capability} and {second} could be made; try another seed.")


def _solved(task: Task) -> bool:
    """Whether the reference solves the task. It does not if both parts change the same database,
    since the scoring compares a database with its beginning."""
    env = ToolSandboxEnv()
    step = env.reset(task)
    for number, action in enumerate(task.data["reference"]):
        step = env.step(assistant(action, number, env.shown_name))
    return step.score is not None and step.score.success


def _together(rng: random.Random, both: tuple[str, str]) -> Shape:
    """A shape of each, in any order."""
    if COMPLETE in both:
        (other,) = (c for c in both if c != COMPLETE)
        single = tuple(s for s in plain_shapes() if len(s.kinds) == 1)
        parts, category = [rng.choice(shapes_for(other)), rng.choice(single)], MULTIPLE
    else:
        parts, category = [rng.choice(shapes_for(c)) for c in both], TURNS
    rng.shuffle(parts)
    first, then = parts
    return Shape(
        f"{first.name}+{then.name}",
        category,
        first.kinds + then.kinds,
        first.withheld + then.withheld,
        first.settings + then.settings,
    )
