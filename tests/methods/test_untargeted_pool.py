"""The pool that method=untargeted draws its kinds of environments from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from named import method
from test_trace_anywhere import Making
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, Synthesizes, SynthesizesDomains
from trace_bench.core.types import Task

RUN = PlannedRun(64, 64, ScriptedTrainer())


def drawn(seed: int = 3, suite: Any = None, **settings: Any) -> tuple[list[Task], MemoryLab]:
    """The tasks that it trains on."""
    lab = MemoryLab({}, 64, seed, suite)
    method("untargeted", synthetic_tasks=5, **settings).fit(BASE, [], lab)
    (job,) = lab.trainer.jobs
    return list(job.tasks), lab


def kinds(tasks: list[Task]) -> Counter[str]:
    return Counter(task.id.split("/")[3] for task in tasks)


@pytest.fixture(scope="module")
def usual() -> list[Task]:
    return drawn()[0]


@pytest.fixture(scope="module")
def broad() -> list[Task]:
    return drawn(pool="broad")[0]


def test_a_broad_pool_has_the_suites_own_kinds_and_other_domains(
    usual: list[Task], broad: list[Task]
) -> None:
    lab = MemoryLab({}, 64, 3)
    assert set(kinds(usual)) == set(lab.suite.capabilities())
    assert set(kinds(broad)) == {*lab.suite.capabilities(), *lab.suite.domains()}
    assert set(kinds(broad).values()) == {5}
    assert [t for t in broad if "domain" not in t.data] == usual


def test_breadth_is_the_number_of_kinds_and_a_larger_one_holds_a_smaller(
    broad: list[Task],
) -> None:
    three, lab = drawn(pool="broad", breadth=3)
    eight, _ = drawn(pool="broad", breadth=8)
    assert len(kinds(three)) == 3 and len(kinds(eight)) == 8
    assert set(kinds(three)) < set(kinds(eight))
    assert {t.id for t in eight} <= {t.id for t in broad}
    assert any(text.startswith("3 of 21 kinds of environments: ") for text in lab.logged)
    assert set(kinds(drawn(seed=4, pool="broad", breadth=3)[0])) != set(kinds(three))
    assert len(kinds(drawn(breadth=2)[0])) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"breadth": 10}, "method.breadth=10, and method.pool=suite has 9 kinds .* Lower `method"),
        ({"suite": Making(), "pool": "broad"}, "toy/tests has no environments of other domains"),
        ({"breadth": 0}, "breadth"),
        ({"pool": "wide"}, "pool"),
        ({"environments": "x", "pool": "broad"}, "method.environments=x is a pool of its own"),
        ({"environments": "x", "breadth": 3}, "method.environments=x is a pool of its own"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        drawn(**settings)


def test_the_plan_says_what_the_suite_must_have() -> None:
    def needs(**settings: Any) -> set[type]:
        return {n.protocol for n in method("untargeted", **settings).plan(RUN).needs}

    assert needs() == needs(breadth=3) == {Synthesizes}
    assert needs(pool="broad") == {Synthesizes, SynthesizesDomains}
