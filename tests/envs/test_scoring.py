"""Similarities and assignments against values worked out by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from trace_bench.envs.toolsandbox.databases import (
    AGENT,
    ENVIRONMENT,
    SYSTEM,
    USER,
    LogEntry,
    Snapshot,
)
from trace_bench.envs.toolsandbox.goals import Goal, read_goal
from trace_bench.envs.toolsandbox.score import (
    Similarities,
    column_similarity,
    rouge_l,
    rows_similarity,
    score_episode,
)

NOTHING = read_goal((), ())


@pytest.mark.parametrize(
    ("measure", "value", "target", "similarity"),
    [
        ("exact", "a", "a", 1.0),
        ("exact", "a", "A", 0.0),
        ("exact", 1, 1.0, 1.0),
        ("exact", True, 1, 1.0),
        ("exact", 1718190000.0, 1718190001, 0.0),
        ("exact", False, False, 1.0),
        ("exact", None, None, 1.0),
        ("exact", None, "a", 0.0),
        ("exact", "a", None, 0.0),
        ({"tolerance": 5}, 100, 105, 1.0),
        ({"tolerance": 5}, 100, 105.1, 0.0),
        ({"tolerance": 5}, "100", 100, 0.0),
        ("rouge_l", "Wifi is turned off", "Wifi is turned off", 1.0),
        ("rouge_l", "wifi is off!", "Wifi is off", 1.0),
        # 3 of 4 and 3 of 4 words in order.
        ("rouge_l", "Wifi is turned on", "Wifi is turned off", 0.75),
        # Longest common subsequence 2; precision 2/2, recall 2/4.
        ("rouge_l", "wifi off", "Wifi is turned off", 2 / 3),
        ("rouge_l", "walks", "walking", 1.0),  # stems
        ("rouge_l", 5, "5", 0.0),
    ],
)
def test_column_similarity(measure: Any, value: Any, target: Any, similarity: float) -> None:
    assert column_similarity(measure, value, target) == pytest.approx(similarity)


def test_an_unknown_measure_is_an_error() -> None:
    with pytest.raises(ValueError, match="no measure 'fuzzy'"):
        column_similarity("fuzzy", "a", "b")


def _columns(**targets: str) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((name, target, "rouge_l") for name, target in targets.items())


def test_a_row_is_the_geometric_mean_of_its_columns() -> None:
    row = {"a": "one two three four", "b": "same", "c": "not compared"}
    target = _columns(a="one two three five", b="same")
    assert rows_similarity([target], [row]) == pytest.approx(0.75**0.5)
    assert rows_similarity([(*target, ("missing", "x", "exact"))], [row]) == 0.0


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_rows_are_paired_for_the_best_mean(count: int) -> None:
    """Against all pairings; 4 and more rows take the Hungarian method."""
    words = ["red", "green", "blue", "black", "white", "grey", "pink"]
    rng = random.Random(count)
    for _ in range(20):
        texts = [" ".join(rng.choices(words, k=3)) for _ in range(2 * count)]
        rows = [{"a": text} for text in texts[:count]]
        targets = [_columns(a=text) for text in texts[count:]]
        best = 0.0
        for order in itertools.permutations(range(count)):
            product = 1.0
            for i, j in enumerate(order):
                product *= rouge_l(texts[count + i], texts[j])
            best = max(best, product)
        assert rows_similarity(targets, rows) == pytest.approx(best ** (1 / count), abs=1e-9)


def test_row_counts_must_match() -> None:
    assert rows_similarity([], []) == 1.0
    assert rows_similarity([], [{"a": "x"}]) == 0.0
    assert rows_similarity([_columns(a="x")], []) == 0.0


# -- constraints ----------------------------------------------------------------------------------

BO = {"person_id": "b", "name": "Bo", "relationship": None}
CY = {"person_id": "c", "name": "Cy", "relationship": "boss"}
DI = {"person_id": "d", "name": "Di", "relationship": "friend"}


def _episode(*contacts: Sequence[dict[str, Any]]) -> tuple[list[LogEntry], list[Snapshot]]:
    """A log whose message i + 1 shows the i-th state of the contacts; message 0 is the system's."""
    states: list[Snapshot] = [
        {"SETTING": ({"wifi": True},), "CONTACT": tuple(rows), "MESSAGING": (), "REMINDER": ()}
        for rows in contacts
    ]
    log = [LogEntry(SYSTEM, AGENT, "", 0)]
    log += [LogEntry(ENVIRONMENT, AGENT, "null", i) for i in range(len(states))]
    return log, states


def _milestone(kind: str, *rows: dict[str, Any], guards: Sequence[str] = (), **more: Any) -> Any:
    constraint = {"database": "CONTACT", "kind": kind, "rows": list(rows), **more}
    return {"constraints": [constraint], "guards": list(guards)}


@pytest.mark.parametrize(
    ("kind", "now", "rows", "similarity"),
    [
        ("snapshot", [BO], [{"name": "Bo"}], 1.0),
        ("snapshot", [BO, CY], [{"name": "Cy"}, {"name": "Bo"}], 1.0),
        ("snapshot", [BO, CY], [{"name": "Bo"}], 0.0),
        ("snapshot", [CY, DI], [{"name": "Cy"}, {"name": "Di", "relationship": "good friend"}],
         ((1 * (2 / 3)) ** 0.5) ** 0.5),
        ("added", [BO, CY, DI], [{"name": "Di"}], 1.0),
        ("added", [BO, DI], [{"name": "Di"}], 0.0),  # something is gone, too
        ("added", [BO, CY], [], 1.0),
        ("removed", [BO], [{"name": "Cy"}], 1.0),
        ("removed", [BO], [{"name": "Bo"}], 0.0),
        ("removed", [BO, DI], [{"name": "Cy"}], 0.0),
        ("updated", [BO, {**CY, "name": "Cyd"}], [{"person_id": "c", "name": "Cyd"}], 1.0),
        ("updated", [BO, {**CY, "name": "Cyd"}], [{"name": "Cy"}], 0.0),
        ("updated", [BO], [{"name": "Bo"}], 0.0),
    ],
)  # fmt: skip
def test_database_constraints(
    kind: str, now: list[dict[str, Any]], rows: list[dict[str, Any]], similarity: float
) -> None:
    goal = read_goal([_milestone(kind, *rows)], [])
    log, states = _episode([BO, CY], now)
    measured = Similarities(log, states).milestone(goal.milestones[0], 2, {})
    assert measured == pytest.approx(similarity)


def test_guards_and_several_constraints() -> None:
    log, states = _episode([BO], [BO, CY])
    states[1] = {**states[1], "SETTING": ({"wifi": False},)}
    off = {"database": "SETTING", "kind": "snapshot", "rows": [{"wifi": False}]}
    text = {"database": "SANDBOX", "kind": "snapshot", "rows": [{"content": "null value"}]}

    def measured(*guards: str) -> float:
        milestone = {"constraints": [off, text], "guards": guards}
        return Similarities(log, states).milestone(read_goal([milestone], []).milestones[0], 2, {})

    # Rouge of "null" and "null value" is 2/3; the geometric mean with 1 is its root.
    assert measured() == pytest.approx((2 / 3) ** 0.5)
    assert measured("MESSAGING") == pytest.approx((2 / 3) ** 0.5)
    assert measured("CONTACT") == 0.0


def test_a_guard_may_look_back_to_an_earlier_milestone() -> None:
    """The contacts change before the first milestone, which is allowed, and not after it."""
    log, states = _episode([BO], [BO, CY], [BO, CY])
    off = {"database": "SETTING", "kind": "snapshot", "rows": [{"wifi": False}]}
    states[1] = {**states[1], "SETTING": ({"wifi": False},)}
    states[2] = {**states[2], "SETTING": ({"wifi": False},)}
    scores = []
    for guard in ("CONTACT", {"database": "CONTACT", "since": 0}):
        milestones: list[dict[str, Any]] = [
            {"constraints": [off]},
            {"constraints": [off], "guards": [guard]},
        ]
        goal = read_goal(milestones, [[0, 1]])
        scores.append(score_episode(goal, read_goal([], []), log, states).similarity)
    assert scores == [0.5, 1.0]
    with pytest.raises(ValueError, match="refers to 1, not an ancestor"):
        read_goal([{"constraints": [off], "guards": [{"database": "CONTACT", "since": 1}]}], [])


@pytest.mark.parametrize(
    ("rows", "measures", "similarity"),
    [
        ([{"name": "search_stock", "arguments": {"query": "Apple"}}], {}, 1.0),
        ([{"name": "search_stock"}], {}, 1.0),
        ([{"name": "search_stock", "arguments": {"query": "Meta"}}], {}, 0.0),
        ([{"name": "search_stock", "arguments": {"days": 1}}], {}, 0.0),
        ([{"name": "search_holiday"}], {}, 0.0),
        ([{"name": "search_holiday"}, {"name": "search_stock"}], {}, 1.0),
        ([{"name": "search_stock", "arguments": {"limit": 12}}], {"limit": {"tolerance": 2}}, 1.0),
        ([{"name": "search_stock", "arguments": {"limit": 13}}], {"limit": {"tolerance": 2}}, 0.0),
    ],
)
def test_tool_traces(rows: list[Any], measures: dict[str, Any], similarity: float) -> None:
    trace = {"name": "search_stock", "arguments": {"query": "Apple", "limit": 10}}
    log = [LogEntry(SYSTEM, AGENT, "", 0), LogEntry(ENVIRONMENT, AGENT, "1", 0, trace)]
    constraint = {"database": "SANDBOX", "kind": "tool_trace", "rows": rows, "measures": measures}
    goal = read_goal([{"constraints": [constraint]}], [])
    assert Similarities(log, [{}]).milestone(goal.milestones[0], 1, {}) == similarity


def test_since_compares_with_the_matched_moment() -> None:
    log, states = _episode([BO], [BO, CY], [BO, CY, DI])
    first = _milestone("added", {"name": "Cy"})
    for since, similarity in ((0, 1.0), (None, 0.5)):
        second = _milestone("added", {"name": "Di"}, since=since)
        score = score_episode(read_goal([first, second], [[0, 1]]), NOTHING, log, states)
        # From the start on, two contacts came: the second milestone alone can't be met.
        assert score.similarity == pytest.approx(similarity)
    assert [m.place for m in score.milestones] == [2, None]


# -- the assignment -------------------------------------------------------------------------------


def _texts(*contents: str) -> tuple[list[LogEntry], list[Snapshot]]:
    log = [LogEntry(SYSTEM, AGENT, "", 0), LogEntry(USER, AGENT, "opening", 0)]
    return log + [LogEntry(AGENT, USER, text, 0) for text in contents], [{}]


def _wants(text: str) -> dict[str, Any]:
    row = {"sender": AGENT, "recipient": USER, "content": text}
    return {"constraints": [{"database": "SANDBOX", "kind": "snapshot", "rows": [row]}]}


def _score(wanted: list[str], edges: list[list[int]], said: list[str], **more: Any) -> float:
    goal = read_goal([_wants(text) for text in wanted], edges, more.get("weights"))
    mined = read_goal([_wants(text) for text in more.get("mines", ())], more.get("mine_edges", ()))
    return score_episode(goal, mined, *_texts(*said)).similarity


def test_order_matters_along_edges_only() -> None:
    assert _score(["alpha", "beta"], [[0, 1]], ["alpha", "beta"]) == 1.0
    assert _score(["alpha", "beta"], [[0, 1]], ["beta", "alpha"]) == 0.5
    assert _score(["alpha", "beta"], [], ["beta", "alpha"]) == 1.0
    # A miss in the middle does not block what follows.
    assert _score(["alpha", "beta", "gamma"], [[0, 1], [1, 2]], ["alpha", "gamma"]) == 2 / 3
    # A fork: the join must come last, the two branches in any order.
    fork = [[0, 2], [1, 2]]
    assert _score(["alpha", "beta", "gamma"], fork, ["beta", "alpha", "gamma"]) == 1.0
    assert _score(["alpha", "beta", "gamma"], fork, ["beta", "gamma", "alpha"]) == 2 / 3


def test_milestones_that_no_edge_names() -> None:
    """As in the official code: one alone counts and is never met, and no graph is a perfect one."""
    assert _score(["alpha", "beta", "gamma"], [[0, 1]], ["alpha", "beta", "gamma"]) == 2 / 3
    assert _score(["alpha", "beta"], [], ["gamma"]) == 1.0
    assert _score(["alpha"], [], ["gamma"]) == 0.0
    assert _score(["alpha"], [], ["alpha"], mines=["alpha", "delta"]) == 1.0
    chain = read_goal([_wants(text) for text in ("alpha", "beta", "gamma")], None)
    assert chain.before == (0, 1, 3) and chain.linked == 7


def test_weights_minefields_and_nothing_to_do() -> None:
    assert _score(["alpha", "beta"], [[0, 1]], ["alpha"], weights=[3, 1]) == 0.75
    assert _score([], [], ["alpha"]) == 1.0
    assert _score([], [], ["alpha"], mines=["alpha"]) == 0.0
    assert _score(["alpha"], [], ["alpha"], mines=["delta"]) == 1.0
    # Any similarity above 0 is a hit, also of a part of the minefields.
    assert _score(["alpha"], [], ["alpha"], mines=["alpha delta"]) == 0.0
    assert _score(["alpha"], [], ["alpha"], mines=["delta", "alpha"], mine_edges=[[0, 1]]) == 0.0


def _brute(table: list[list[float]], goal: Goal) -> float:
    """The best mean over all monotone assignments of milestones that have an edge, one by one."""
    linked = [i for i in range(len(table)) if goal.linked >> i & 1]
    best = 0.0 if linked else 1.0
    for chosen in itertools.product(range(len(table[0])), repeat=len(linked)):
        places = dict(zip(linked, chosen, strict=True))
        if all(places[j] <= places[i] for i in linked for j in linked if goal.before[i] >> j & 1):
            best = max(best, sum(table[i][places[i]] for i in linked) / len(table))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_the_assignment_is_the_best_one(seed: int) -> None:
    rng = random.Random(seed)
    words = ["red", "green", "blue", "black"]
    count = rng.choice([2, 3, 4])
    wanted = [" ".join(rng.choices(words, k=2)) for _ in range(count)]
    said = [" ".join(rng.choices(words, k=2)) for _ in range(5)]
    pairs = itertools.combinations(range(count), 2)
    edges = [[i, j] for i, j in pairs if rng.random() < 0.5]
    goal = read_goal([_wants(text) for text in wanted], edges)
    # Sender and recipient are equal, so a row is the cubic root of its text's similarity.
    table = [[rouge_l(text, answer) ** (1 / 3) for answer in said] for text in wanted]
    assert _score(wanted, edges, said) == pytest.approx(_brute(table, goal))


@pytest.mark.parametrize(
    ("milestones", "edges", "weights", "error"),
    [
        ([_wants("a")], [[0, 1]], None, "edge 0 -> 1"),
        ([_wants("a"), _wants("b")], [[0, 1], [1, 0]], None, "cycle"),
        ([_wants("a")], [], [1, 2], "weights"),
        ([_wants("a")], [], [0], "weights"),
        ([_milestone("snapshot", {"nick": 1})], [], None, "no column 'nick'"),
        ([_milestone("changed", {"name": 1})], [], None, "no constraint of kind 'changed'"),
        ([_milestone("added", {"name": "x"}, since=0)], [], None, "not an ancestor"),
        ([{"constraints": [], "guards": []}], [], None, "without constraints"),
        ([_milestone("snapshot", guards=["PHONE"])], [], None, "no database 'PHONE'"),
    ],
)
def test_goals_that_cannot_be(milestones: Any, edges: Any, weights: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_goal(milestones, edges, weights)
