"""The seeds that a written environment is run with. Those of the checks, of calibration and of
training are disjoint parts of one random sequence, so that a module cannot tell from its seed what
it is run for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from trace_bench.core.store import stable_seed
from trace_bench.methods.trace.settings import SynthesisSettings

RANGE = 2**31
CHECKED = 16  # tasks that the checks look at


@dataclass(frozen=True)
class Seeds:
    """Each in 0 ... 2^31 - 1, and no seed twice. `training` holds twice the tasks that are wanted,
    since some may be refused."""

    checks: tuple[int, ...]
    calibration: tuple[int, ...]
    training: tuple[int, ...]

    @classmethod
    def of(cls, run: int, name: str, code: str, settings: SynthesisSettings) -> Seeds:
        """The seeds of a module in the run with the seed `run`. Its text is part of what they are
        drawn from: no module can know its own, nor those of its next version."""
        drawn = _drawn(run, name, code)

        def take(count: int) -> tuple[int, ...]:
            return tuple(islice(drawn, count))

        return cls(
            take(CHECKED), take(settings.calibration_groups), take(2 * settings.synthetic_tasks)
        )


def _drawn(run: int, name: str, code: str) -> Iterator[int]:
    """All different."""
    seen: set[int] = set()
    number = 0
    while True:
        seed = stable_seed(run, "trace", "written", name, code, number) % RANGE
        number += 1
        if seed not in seen:
            seen.add(seed)
            yield seed
