"""The score of an episode: similarities from a column up to a milestone at one message, and the
best assignment of milestones to messages (ToolSandbox, section on evaluation).

Columns make rows and rows databases by geometric means, rows are paired by the Hungarian method,
and databases that are guarded count as a factor of 0 or 1. What the official code does with nulls
holds here, too: in a difference of databases they are 0, false or the empty text
(`databases.without_nulls`); in a whole database, a null where the target has a value takes its
column out of the mean of the row.

Milestones are matched to messages so that along every edge of their DAG the messages do not
decrease, which is the same as non-decreasing messages over some topological order. The assignment
with the largest weighted sum is found exactly by dynamic programming over the messages; its states
are the sets of milestones already placed, so a chain of n has n + 1 of them. Milestones that
others refer to ("since") add the snapshot at which they were placed to the state.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from itertools import permutations
from operator import getitem
from typing import Any

from trace_bench.core.types import Milestone as Outcome
from trace_bench.core.types import Score
from trace_bench.envs.toolsandbox import goals
from trace_bench.envs.toolsandbox.databases import LogEntry, Row, Snapshot, without_nulls


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    """rouge-score's, which takes one stemmer of nltk. All of nltk, with scipy's statistics, would
    take longer to import than an evaluation: its packages are there without what they import."""
    bare = [name for name in ("nltk", "nltk.stem") if name not in sys.modules]
    for name in bare:
        parent = name.rpartition(".")[0]
        where = list(sys.modules[parent].__path__) if parent else None
        spec = PathFinder.find_spec(name, where)
        if spec is not None:
            sys.modules[name] = module_from_spec(spec)
    try:
        from rouge_score import rouge_scorer
    finally:  # who imports nltk later gets all of it
        for name in [n for n in sys.modules if bare and n.partition(".")[0] == "nltk"]:
            del sys.modules[name]
    return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)


@lru_cache(maxsize=4096)
def rouge_l(target: str, text: str) -> float:
    """Rouge-L F measure with stemming, 0 to 1."""
    return float(_rouge_scorer().score(target=target, prediction=text)["rougeL"].fmeasure)


def column_similarity(measure: goals.Measure, value: Any, target: Any) -> float:
    """0 to 1. Equal means Python's ==: 1, 1.0 and true are equal, and numbers have no tolerance
    unless the measure gives one."""
    if measure == "rouge_l":
        if value is None or target is None:
            return float(value is target)
        return rouge_l(target, value) if isinstance(value, str) else 0.0
    numbers = isinstance(value, int | float) and isinstance(target, int | float)
    if isinstance(measure, Mapping) and numbers:
        return float(abs(value - target) <= measure["tolerance"])
    return float(value == target)


def row_similarity(columns: goals.Columns, row: Mapping[str, Any]) -> float | None:
    """Geometric mean over the listed columns; one that the row lacks scores 0. A null where an
    exact value is wanted is left out of the mean; None if all columns are."""
    product, count = 1.0, 0
    for name, target, measure in columns:
        value = row.get(name)
        if measure == "exact" and value is None and target is not None and name in row:
            continue
        count += 1
        product *= column_similarity(measure, value, target) if name in row else 0.0
        if product == 0.0:
            return 0.0
    if not count:
        return None
    return product if product == 1.0 else product ** (1 / count)


def rows_similarity(targets: Sequence[goals.Columns], rows: Sequence[Mapping[str, Any]]) -> float:
    """Best geometric mean over one-to-one pairings; 1 for no rows, 0 when the counts differ or
    any target has nothing to compare with some row."""
    count = len(targets)
    if count != len(rows):
        return 0.0
    if count == 0:
        return 1.0
    similarities = [[row_similarity(columns, row) for row in rows] for columns in targets]
    table = [[value for value in line if value is not None] for line in similarities]
    if any(len(line) < count for line in table):
        return 0.0
    if count == 1:
        return table[0][0]
    if count <= 3:
        best = max(math.prod(map(getitem, table, order)) for order in permutations(range(count)))
    else:
        best = math.prod(map(getitem, table, _hungarian(table)))
    return best if best in (0.0, 1.0) else best ** (1 / count)


def _hungarian(table: Sequence[Sequence[float]]) -> list[int]:
    """The pairing with the largest product: the smallest sum of negative logarithms."""
    from scipy.optimize import linear_sum_assignment

    never = 1e6  # stands for an infinite cost, which the solver refuses
    costs = [[-math.log(value) if value > 0 else never for value in line] for line in table]
    return [int(i) for i in linear_sum_assignment(costs)[1]]


def _difference(kind: str, now: tuple[Row, ...], then: tuple[Row, ...]) -> list[Row] | None:
    """The rows that `kind` speaks of, None when the databases differ in another way, too."""
    now, then = without_nulls(now), without_nulls(then)
    if kind == "removed":
        now, then = then, now
    elif kind == "updated":
        return [row for row in now if row not in then] if len(now) == len(then) else None
    # Rows that are in both, counted as a join does: a row that is there twice matches twice.
    both = sum(row == other for row in then for other in now)
    return [row for row in now if row not in then] if both == len(then) else None


class Similarities:
    """Scores milestones at messages of one finished episode; every comparison is made once."""

    def __init__(self, log: Sequence[LogEntry], snapshots: Sequence[Snapshot]) -> None:
        self.log = log
        self.snapshots = snapshots
        self._known: dict[tuple[int, int, int], float] = {}

    def milestone(
        self, milestone: goals.GoalMilestone, message: int, moments: Mapping[int, int]
    ) -> float:
        """Geometric mean of the constraints at a message, times the guards. `moments` gives the
        snapshots at which earlier milestones were matched."""
        snapshot = self.log[message].snapshot
        state = self.snapshots[snapshot]
        for guard in milestone.guards:
            then = self.snapshots[0 if guard.since is None else moments[guard.since]]
            now, before = state[guard.database], then[guard.database]
            if now is not before and now != before:
                return 0.0
        product = 1.0
        for constraint in milestone.constraints:
            reference = 0 if constraint.since is None else moments[constraint.since]
            at = message if constraint.database == goals.SANDBOX else snapshot
            key = (id(constraint), at, reference)
            if key not in self._known:
                self._known[key] = self._constraint(constraint, at, reference)
            product *= self._known[key]
            if product == 0.0:
                return 0.0
        return product if product == 1.0 else product ** (1 / len(milestone.constraints))

    def _constraint(self, constraint: goals.Constraint, at: int, then: int) -> float:
        if constraint.kind == "tool_trace":
            return self._trace(constraint, self.log[at].trace)
        if constraint.database == goals.SANDBOX:
            entry = self.log[at]
            row = {c: getattr(entry, c) for c in ("sender", "recipient", "content")}
            return rows_similarity(constraint.columns, (row,))
        now = self.snapshots[at][constraint.database]
        rows: Sequence[Row] | None = now
        if constraint.kind != "snapshot":
            reference = self.snapshots[then][constraint.database]
            rows = _difference(constraint.kind, now, reference)
        return 0.0 if rows is None else rows_similarity(constraint.columns, rows)

    @staticmethod
    def _trace(constraint: goals.Constraint, trace: Mapping[str, Any] | None) -> float:
        if trace is None:
            return 0.0
        scores = (
            _arguments_similarity(columns, trace["arguments"])
            for name, columns in zip(constraint.names, constraint.columns, strict=True)
            if name == trace["name"]
        )
        return max(scores, default=0.0)


def _arguments_similarity(columns: goals.Columns, arguments: Mapping[str, Any]) -> float:
    """Geometric mean over the listed arguments; one that was not given scores 0."""
    product = math.prod(
        column_similarity(measure, arguments[name], target) if name in arguments else 0.0
        for name, target, measure in columns
    )
    return product if product in (0.0, 1.0) else product ** (1 / len(columns))


_PERFECT = 1 - 1e-6
_TIE = 1e-12  # sums that differ by less are equal

# A state: the placed milestones as a bit set, and of those referred to (milestone, snapshot).
State = tuple[int, frozenset[tuple[int, int]]]
# How it was reached: weighted sum, and the chain of (milestone, message, score) placements.
Chain = tuple[int, int, float, Any]


def score_episode(
    milestones: goals.Goal,
    minefields: goals.Goal,
    log: Sequence[LogEntry],
    snapshots: Sequence[Snapshot],
) -> Score:
    """The scenario score in [0, 1]: weighted mean over milestones, 0 once a minefield is hit; an
    empty graph counts as 1. The log's first entry, the system prompt, is never matched.

    The place of a milestone or minefield is the earliest index into the log that the best
    assignment allows, None where nothing matched. A minefield is hit by any similarity above 0."""
    similarities = Similarities(log, snapshots)
    mean, reached = _match(milestones, similarities, lambda value: value >= _PERFECT)
    mined, hits = _match(minefields, similarities, lambda value: value > 0.0)
    similarity = 1.0 if mean is None else mean
    if mined is not None and mined > 0.0:
        similarity = 0.0
    return Score(similarity, similarity >= _PERFECT, milestones=reached, minefields=hits)


def _match(
    goal: goals.Goal, similarities: Similarities, hit: Callable[[float], bool]
) -> tuple[float | None, tuple[Outcome, ...]]:
    """The weighted mean over the milestones, None where the graph is empty, and what became of
    each. `hit`: whether a similarity counts as met."""
    mean: float | None = None
    places: dict[int, tuple[float, int | None]] = {}
    if goal.linked:
        total, chain = _best(goal, similarities)
        mean = min(1.0, total / sum(goal.weights))
        while chain is not None:
            milestone, message, score, chain = chain
            if score > 0.0:
                places[milestone] = (score, message)
    placed = [(wanted, *places.get(i, (0.0, None))) for i, wanted in enumerate(goal.milestones)]
    return mean, tuple(Outcome(w.name, score, hit(score), at, w.tells) for w, score, at in placed)


def _best(goal: goals.Goal, similarities: Similarities) -> tuple[float, Chain | None]:
    """The largest weighted sum and its placements. Of equal sums the one found first stays, so
    milestones are matched as early as they can be."""
    count = len(goal.milestones)
    messages = range(1, len(similarities.log))
    referred = {since for m in goal.milestones for since in m.references}
    # Milestones that refer to no other have one score a message.
    columns: list[dict[int, float] | None] = [
        None if m.references else {j: similarities.milestone(m, j, {}) for j in messages}
        for m in goal.milestones
    ]
    states: dict[State, tuple[float, Chain | None]] = {(0, frozenset()): (0.0, None)}
    for message in messages:
        snapshot = similarities.log[message].snapshot
        # A state made at this message may grow at the same message: the messages need not rise.
        fresh = list(states)
        while fresh:
            grown: dict[State, None] = {}
            for state in fresh:
                placed, moments = state
                total, chain = states[state]
                left = goal.linked & ~placed
                for i in range(count):
                    if not left >> i & 1 or goal.before[i] & ~placed:
                        continue
                    if (table := columns[i]) is not None:
                        value = table[message]
                    else:
                        wanted = goal.milestones[i]
                        value = similarities.milestone(wanted, message, dict(moments))
                    after = moments | {(i, snapshot)} if i in referred else moments
                    target = (placed | 1 << i, after)
                    reached = total + goal.weights[i] * value
                    if target not in states or reached > states[target][0] + _TIE:
                        states[target] = (reached, (i, message, value, chain))
                        grown[target] = None
            fresh = list(grown)
    complete = (entry for (placed, _), entry in states.items() if placed == goal.linked)
    return max(complete, key=lambda entry: entry[0])
