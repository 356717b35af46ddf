"""Whole episodes on disk, for the lab and for evaluations, and the limit on lost ones.

An episode is written once, as it ends; every later start is answered from the file. It is lost when
the infrastructure fails (environment, sandbox, policy, user). Nothing can be learned or measured
from a call that is mostly lost, so that a call of which too many are lost stops the run, and the
next start takes them back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.lines import Stored
from trace_bench.core.store import Lines, read_lines
from trace_bench.core.types import Boundary, Failure, Task, Trajectory
from trace_bench.play.steps import Faults
from trace_bench.play.suites import GENERATED

Spot = tuple[str, int]
"""(call, index) of an episode."""


class EpisodeFile:
    """The episodes of a run folder's file, by call and index. Without a `path` none is kept.

    Those of earlier starts are held until their call is asked for (`take`); with `held=False` they
    are only known to be there."""

    def __init__(self, path: Path | None, *, held: bool = True) -> None:
        self._lines = None if path is None else Lines(path, Stored)
        self._there: set[Spot] = set()
        self._held: dict[str, dict[int, Trajectory]] = {}
        for line in self._lines.existing if self._lines is not None else ():
            self._there.add((line.call, line.index))
            if held:
                self._held.setdefault(line.call, {})[line.index] = line.trajectory
        if self._lines is not None:
            self._lines.existing.clear()

    @property
    def keeps(self) -> bool:
        """Whether episodes are kept at all."""
        return self._lines is not None

    def __contains__(self, spot: object) -> bool:
        return spot in self._there

    def of(self, call: str) -> dict[int, Trajectory]:
        """The episodes of a call that earlier starts have written, in the order in which they
        ended."""
        return dict(self._held.get(call, {}))

    def take(self, call: str) -> dict[int, Trajectory]:
        """As `of`; they are no longer held."""
        return self._held.pop(call, {})

    def read(self, spots: Iterable[Spot]) -> dict[Spot, Trajectory]:
        """These episodes, from the file."""
        wanted = set(spots)
        if self._lines is None or not wanted:
            return {}
        found = ((x.call, x.index, x.trajectory) for x in read_lines(self._lines.path, Stored))
        return {(call, index): t for call, index, t in found if (call, index) in wanted}

    def add(self, call: str, index: int, trajectory: Trajectory) -> None:
        """Writes an episode that has ended, unless it is there."""
        if self._lines is not None and (call, index) not in self._there:
            self._lines.append(Stored(call, index, trajectory))
            self._there.add((call, index))

    def take_back(self, call: str, indices: Collection[int]) -> None:
        """Removes episodes that are run again."""
        gone = frozenset(indices)
        if self._lines is not None:
            self._lines.drop(lambda line: line.call == call and line.index in gone)
        for index in gone:
            self._there.discard((call, index))
            self._held.get(call, {}).pop(index, None)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


_OF_PROGRAM = (Boundary.ENVIRONMENT, Boundary.SANDBOX)
AGAIN = "Remove the cause and run the same command again: the lost episodes are run again."
NOT_AGAIN = "The training has learned from what is left of them: change the setting `run_dir`."


def counts(task: Task, failure: Failure | None) -> bool:
    """Whether an episode counts as lost. One that a generated environment fails does not: that is
    a finding about the environment, and the methods that use such environments drop them."""
    if failure is None:
        return False
    return not (task.env.startswith(GENERATED) and failure.boundary in _OF_PROGRAM)


def too_many(lost: int, total: int, share: float) -> bool:
    """Whether more than this share of the episodes is lost."""
    return lost > share * total


def check(
    what: str,
    lost: Sequence[str],
    total: int,
    share: float,
    faults: Faults | None = None,
    remedy: str = AGAIN,
) -> None:
    """Raises UserError if too many of the `total` episodes are lost. `lost`: the cause of each, in
    the order in which they ended."""
    if not too_many(len(lost), total, share):
        return
    where = faults.where if faults is not None else ""
    raise UserError(
        f"{what}: {len(lost)} of {total} episodes were lost, more than max_lost={share:g} allows. "
        f"The first: {lost[0]}.{where} {remedy} To accept such losses, change the setting "
        "`max_lost`."
    )
