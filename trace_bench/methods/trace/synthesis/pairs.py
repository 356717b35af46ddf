"""Tasks that need a second selected capability too (`method.pair_share`), in the place of some that
need one. The others stay what they are without the setting, and so do the contrast cases.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from trace_bench.core.protocols import Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task
from trace_bench.methods.trace.synthesis.draw import Drawer, Mix, pairing

Counts = dict[str, dict[str, int]]
"""How many tasks of a capability's environment need which second one."""


def put(
    drawer: Drawer,
    suite: Suite,
    drawn: Mapping[str, tuple[Task, ...]],
    mixes: Mapping[str, Mix],
    share: float,
    seed: int,
) -> tuple[dict[str, tuple[Task, ...]], Counts]:
    """The `drawn` tasks of each capability with the part `share` of them replaced, at most all that
    are no contrast cases. The second capabilities are the others, in equal parts. A capability that
    the suite can pair with none of them keeps its tasks. Raises UserError for a suite that makes no
    such tasks."""
    out = dict(drawn)
    counts: Counts = {}
    for name, tasks in drawn.items():
        able = pairing(suite).partners(name)
        seconds = [other for other in drawn if other != name and other in able]
        places = [n for n, task in enumerate(tasks) if not task.data.get("contrast", False)]
        count = min(round(share * len(tasks)), len(places))
        counts[name] = _parts(count, seconds)
        made = [
            task
            for second, part in counts[name].items()
            for task in drawer.tasks(suite, name, part, Mix(0.0, mixes[name].level), seed, second)
        ]
        rng = random.Random(stable_seed(seed, "trace", "pairs", name))
        rng.shuffle(made)
        put_at = dict(zip(rng.sample(places, len(made)), made, strict=True))
        out[name] = tuple(put_at.get(n, task) for n, task in enumerate(tasks))
    return out, counts


def _parts(count: int, seconds: list[str]) -> dict[str, int]:
    """`count` in parts that differ by one at most; none where there is no second capability."""
    parts = {s: count // len(seconds) + (n < count % len(seconds)) for n, s in enumerate(seconds)}
    return {second: part for second, part in parts.items() if part}


def said(counts: Counts) -> str:
    """A line for the log."""
    found = {name: sum(of.values()) for name, of in counts.items()}
    listed = ", ".join(f"{name} {number or 'none'}" for name, number in found.items())
    return f"tasks that need a second selected capability: {listed}"
