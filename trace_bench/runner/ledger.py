"""What a run has played, on disk: the ledger, which enforces the budget; whole episodes, of the lab
and of evaluations; and the limit on lost ones.

The ledger has one line per episode in which the agent acts, for any purpose. What `accounting`
exempts (`CHARGED`) is recorded but not charged. Lines on disk, by (call, index), count as
spent and are never written twice, so that a resumed run has the same ledger.

An episode is written once, as it ends; every later start is answered from the file. An episode is
lost when the infrastructure fails (environment, sandbox, policy, user). A call of which too many
are lost teaches nothing: it stops the run, and the next start takes them back."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.errors import BudgetExceeded, UserError
from trace_bench.core.run_files import packed
from trace_bench.core.store import Lines, damaged, parse_line, plain_file, whole_lines
from trace_bench.core.types import (
    CHARGED,
    Boundary,
    Charge,
    Entry,
    Failure,
    Head,
    Purpose,
    Stored,
    Task,
    Trajectory,
)
from trace_bench.play.suites import GENERATED

Spot = tuple[str, int]  # (call, index) of an episode


def entry(call: str, index: int, purpose: Purpose, trajectory: Trajectory) -> Entry:
    score = trajectory.score
    return Entry(
        call=call,
        index=index,
        purpose=purpose,
        seed=trajectory.seed,
        agent=trajectory.agent,
        similarity=None if score is None else score.similarity,
        success=None if score is None else score.success,
        **trajectory.facts,
    )


@dataclass(eq=False)
class Ledger:
    """Counts episodes of the purposes `charged` against `budget` and writes all to `path`."""

    path: Path
    budget: int
    charged: frozenset[Purpose] = CHARGED["strict"]

    def __post_init__(self) -> None:
        self._lines = Lines(self.path, Charge)
        self._calls: dict[str, dict[int, Purpose]] = {}
        self._counts: Counter[Purpose] = Counter()
        for number, line in enumerate(self._lines, start=1):
            if not self._remember(line):
                twice = f"episode {line.index} of {line.call!r} is in an earlier line too"
                raise damaged(self.path, number, twice)

    @property
    def spent(self) -> int:
        return sum(self._counts[purpose] for purpose in self.charged)

    @property
    def left(self) -> int:
        return self.budget - self.spent

    def by_purpose(self) -> dict[str, int]:
        """Episodes per purpose, whether charged or not."""
        return {p.value: self._counts[p] for p in Purpose if self._counts[p]}

    def check(self, call: str, count: int, purpose: Purpose, left: int) -> None:
        """Raises BudgetExceeded when `count` episodes of `call` do not fit what is `left`."""
        if purpose in self.charged and count > left:
            raise BudgetExceeded(
                f"{call!r} asks for {count} rollouts; {left} of {self.budget} are left. Change the "
                "setting `budget`."
            )

    def record(self, entry: Entry) -> bool:
        """Writes one line; False if that (call, index) is there already."""
        if entry.index in self._calls.get(entry.call, {}):
            return False
        self._lines.append(entry)
        self._remember(entry)
        return True

    def take_back(self, call: str, indices: Collection[int]) -> None:
        """Removes the lines of episodes that are run again."""
        gone = frozenset(indices)
        there = self._calls.get(call, {})
        for index in gone & there.keys():
            self._counts[there.pop(index)] -= 1
        self._lines.drop(lambda line: line.call == call and line.index in gone)

    def close(self) -> None:
        self._lines.close()

    def _remember(self, line: Charge) -> bool:
        """Counts an episode; False if it has been."""
        if line.index in (there := self._calls.setdefault(line.call, {})):
            return False
        there[line.index] = line.purpose
        self._counts[line.purpose] += 1
        return True


class EpisodeFile:
    """The episodes of a file. It holds where each lies, and reads and checks one on request."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path, Head)
        self._find()
        self._latest = next(reversed(self._numbers), "")  # call of an earlier start

    def _find(self) -> None:
        self._starts = array("Q")  # offset of each line
        self._numbers: dict[str, dict[int, int]] = {}  # of an episode's line, from 0
        for number, start, line in whole_lines(self._lines.path):
            head = parse_line(line, self._lines.path, number, Head)
            self._remember((head.call, head.index), start)

    def _remember(self, spot: Spot, start: int) -> None:
        self._numbers.setdefault(spot[0], {})[spot[1]] = len(self._starts)
        self._starts.append(start)

    def __contains__(self, spot: Spot) -> bool:
        return spot[1] in self._numbers.get(spot[0], {})

    def passed(self, call: str) -> bool:
        """Whether another call's episodes were written after this one's, in an earlier start."""
        return call in self._numbers and call != self._latest

    def of(self, call: str) -> dict[int, Trajectory]:
        """A call's episodes, in the order in which they ended."""
        return {index: self.read((call, index)) for index in self._numbers.get(call, ())}

    def read(self, spot: Spot) -> Trajectory:
        """The episode there. Raises UserError for a damaged line, KeyError for none."""
        path, number = self._lines.path, self._numbers[spot[0]][spot[1]]
        with plain_file(path) as file:
            file.seek(self._starts[number])
            return parse_line(file.readline(), path, number + 1, Stored).trajectory

    def add(self, call: str, index: int, trajectory: Trajectory) -> None:
        """Writes an episode that has ended, unless it is there."""
        if (call, index) not in self:
            path = self._lines.path
            start = path.stat().st_size if path.exists() else 0
            self._lines.append(packed(Stored(call, index, trajectory)))
            self._remember((call, index), start)

    def take_back(self, call: str, indices: Collection[int]) -> None:
        gone = frozenset(indices)
        self._lines.drop(lambda line: line.call == call and line.index in gone)
        self._find()

    def close(self) -> None:
        self._lines.close()


_OF_PROGRAM = (Boundary.ENVIRONMENT, Boundary.SANDBOX)


def counts(task: Task, failure: Failure | None) -> bool:
    """Whether an episode counts as lost. One that a generated environment fails does not: that is a
    finding about the environment, which its method then drops."""
    if failure is None:
        return False
    return not (task.env.startswith(GENERATED) and failure.boundary in _OF_PROGRAM)


def check(what: str, lost: Sequence[str], total: int, share: float, where: str = "") -> None:
    """Raises UserError if too many of `total` episodes are `lost` (the cause of each, in order).
    `where`: of the tracebacks, as `Faults` says it."""
    if len(lost) <= share * total:
        return
    raise UserError(
        f"{what}: {len(lost)} of {total} episodes were lost, more than max_lost={share:g} allows. "
        f"The first: {lost[0]}.{where} Remove the cause and run the same command again: the lost "
        "episodes are run again. To accept such losses, change the setting `max_lost`."
    )
