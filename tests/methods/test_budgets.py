"""The budget is a promise of every method: never above, and what is left is logged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named import PLAYING, QUICK, method
from trace_lab import BASE, MemoryLab, ScriptedTrainer

HABITS = {"recovers_from_errors": 0.6, "completes_all_parts": 0.5, "disambiguates": 0.7}
METHODS = {name: method(name, **QUICK.get(name, {})) for name in [*PLAYING, "base"]}
METHODS["select"] = method("trace", synthesis="select")
BUDGETED = sorted(METHODS.keys() - {"base"})


def played(name: str, budget: int, seed: int, leave: int) -> MemoryLab:
    lab = MemoryLab(HABITS, budget, seed, trainer=ScriptedTrainer(leave))
    METHODS[name].fit(BASE, lab.suite.tasks("train"), lab)
    return lab


@pytest.mark.parametrize("name", BUDGETED)
@given(budget=st.integers(160, 900), seed=st.integers(0, 9), leave=st.sampled_from([0, 3, 40]))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_no_method_ever_exceeds_its_budget(name: str, budget: int, seed: int, leave: int) -> None:
    """Also when the trainer leaves a part of its share. The lab raises when a call goes beyond."""
    lab = played(name, budget, seed, leave)
    spent: Counter[Any] = Counter()
    for _, purpose, tasks in lab.calls:
        spent[purpose] += len(tasks)
    assert sum(spent.values()) == budget - lab.left and lab.left >= 0
    assert len({call for call, _, _ in lab.calls}) == len(lab.calls)
    assert not any("/test/" in t or "/dev/" in t for _, _, tasks in lab.calls for t in tasks)


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_is_used_up_but_for_what_cannot_be_used(name: str) -> None:
    lab = played(name, 777, 0, 0)
    # One more of its iterations or rounds might cost that much.
    most = {"gepa": 40, "ace": 31}.get(name, 0)
    assert lab.left <= most
    assert lab.left == 0 or any(f"{lab.left} of 777 rollouts unspent" in s for s in lab.logged)


def test_base_plays_nothing() -> None:
    assert played("base", 100, 0, 0).calls == []
