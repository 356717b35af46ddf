"""What a milestone and an assignment of milestones are worth; test_official.py compares the
rest with the official scorer."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from trace_bench.envs.toolsandbox.databases import AGENT, SYSTEM, USER, LogEntry, Snapshot
from trace_bench.envs.toolsandbox.goals import Goal, read_goal
from trace_bench.envs.toolsandbox.score import (
    column_similarity,
    rouge_l,
    rows_similarity,
    score_episode,
)


def test_texts_are_compared_by_words_in_order() -> None:
    assert column_similarity("rouge_l", "wifi is off!", "Wifi is off") == 1.0
    # 3 of 4 and 3 of 4 words in order; longest common subsequence 2, precision 2/2, recall 2/4.
    assert column_similarity("rouge_l", "Wifi is turned on", "Wifi is turned off") == 0.75
    assert column_similarity("rouge_l", "wifi off", "Wifi is turned off") == pytest.approx(2 / 3)
    assert column_similarity("rouge_l", 5, "5") == 0.0


def _columns(**targets: str) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((name, target, "rouge_l") for name, target in targets.items())


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


@pytest.mark.parametrize("seed", range(12))
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
