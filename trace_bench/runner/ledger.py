"""The ledger enforces the budget: one line per episode in which the agent acts, for any purpose.

What `accounting` exempts (`types.CHARGED`) is recorded but not charged. Lines on disk, by (call,
index), count as spent and are never written twice, so that a resumed run has the same ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.errors import BudgetExceeded
from trace_bench.core.lines import Entry
from trace_bench.core.store import Lines, damaged
from trace_bench.core.types import CHARGED, Purpose, Trajectory


def entry(call: str, index: int, purpose: Purpose, trajectory: Trajectory) -> Entry:
    score, failure = trajectory.score, trajectory.failure
    return Entry(
        call=call,
        index=index,
        purpose=purpose,
        task=trajectory.task,
        seed=trajectory.seed,
        agent=trajectory.agent,
        adapter=trajectory.adapter,
        similarity=None if score is None else score.similarity,
        success=None if score is None else score.success,
        tokens=trajectory.tokens,
        turns=len(trajectory.turns),
        stop=trajectory.stop,
        error=None if failure is None else str(failure),
    )


@dataclass(eq=False)
class Ledger:
    """Counts episodes of the purposes `charged` against `budget` and writes all to `path`."""

    path: Path
    budget: int
    charged: frozenset[Purpose] = CHARGED["strict"]

    def __post_init__(self) -> None:
        self._lines = Lines(self.path, Entry)
        self._calls: dict[str, dict[int, Entry]] = {}
        self._counts: Counter[Purpose] = Counter()
        for number, entry in enumerate(self._lines.existing, start=1):
            if entry.index in self._calls.get(entry.call, {}):
                twice = f"episode {entry.index} of {entry.call!r} is in an earlier line too"
                raise damaged(self.path, number, twice)
            self._remember(entry)
        self._lines.existing.clear()

    @property
    def spent(self) -> int:
        """Episodes charged so far."""
        return sum(self._counts[purpose] for purpose in self.charged)

    @property
    def left(self) -> int:
        return self.budget - self.spent

    def by_purpose(self) -> dict[str, int]:
        """Episodes per purpose, whether charged or not."""
        return {p.value: self._counts[p] for p in Purpose if self._counts[p]}

    def call(self, name: str) -> dict[int, Entry]:
        return dict(self._calls.get(name, {}))

    def check(self, call: str, count: int, purpose: Purpose) -> None:
        """Raises BudgetExceeded when `count` episodes of `call` (less those already written)
        do not fit what is left, and ValueError when the call was made with another purpose."""
        there = self._calls.get(call, {})
        for entry in there.values():
            if entry.purpose is not purpose:
                raise ValueError(f"call {call!r} is {entry.purpose} in the ledger, not {purpose}")
        if purpose not in self.charged:
            return
        new = count - len(there)
        if new > self.left:
            raise BudgetExceeded(
                f"{call!r} asks for {new} more rollouts; {self.left} of {self.budget} are left. "
                "Change the setting `budget`."
            )

    def record(self, entry: Entry) -> bool:
        """Writes one line; False if that (call, index) is there already. Raises BudgetExceeded,
        before anything is written, if the budget is spent."""
        if entry.index in self._calls.get(entry.call, {}):
            return False
        if entry.purpose in self.charged and self.left < 1:
            raise BudgetExceeded(f"{entry.call!r}: all {self.budget} rollouts are spent.")
        self._lines.append(entry)
        self._remember(entry)
        return True

    def take_back(self, call: str, indices: Collection[int]) -> None:
        """Removes the lines of episodes that are run again."""
        gone = frozenset(indices)
        there = self._calls.get(call, {})
        for index in gone & there.keys():
            self._counts[there.pop(index).purpose] -= 1
        if self.path.exists():
            self._lines.drop(lambda line: line.call == call and line.index in gone)

    def close(self) -> None:
        self._lines.close()

    def _remember(self, entry: Entry) -> None:
        self._calls.setdefault(entry.call, {})[entry.index] = entry
        self._counts[entry.purpose] += 1
