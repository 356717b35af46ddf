"""Settings are checked at the edge; the budget is shared out exactly."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_bench.core.checked import build
from trace_bench.core.errors import UserError
from trace_bench.methods.trace.settings import Budget, TraceSettings

DEFAULTS = TraceSettings()


def test_every_setting_has_a_default_and_survives_the_edge() -> None:
    values = dataclasses.asdict(DEFAULTS)
    assert build(TraceSettings, values, "method") == DEFAULTS
    assert build(TraceSettings, {"gap": 0.3}, "method").gap == 0.3


BAD = [
    ({"gapp": 0.2}, ["gapp", "gap", "method.gapp"]),
    ({"gap": 1.5}, ["1.5", "0 to 1"]),
    ({"keep_runs": 11}, ["keep_runs=11", "1 to method.runs=10"]),
    ({"route": {"name": "linear", "others": 0.1}}, ["setting of", "soft", "method.route"]),
    ({"route": {"name": "linear", "weight": -1}}, ["method.route.weight"]),
]


@pytest.mark.parametrize(("values", "says"), BAD)
def test_bad_settings_are_named(values: dict, says: list[str]) -> None:
    with pytest.raises(UserError) as error:
        build(TraceSettings, values, "method")
    assert all(part in str(error.value) for part in says), str(error.value)


SHARES = [
    (640, 64, 64),  # the share and one each
    (2560, 64, 256),  # the share
    (640, 16, 64),
    (320, 64, 64),  # one each, within the ceiling
    (240, 64, 60),  # the ceiling
    (160, 64, 32),  # what one capability leaves
    (2560, 2048, 640),  # one each is out of reach: the ceiling
]


@pytest.mark.parametrize(("budget", "n_train", "want"), SHARES)
def test_analysis_rollouts(budget: int, n_train: int, want: int) -> None:
    assert Budget(DEFAULTS, budget).looking(n_train) == want


@given(st.integers(96, 20000), st.integers(1, 3000), st.integers(1, 10))
def test_free_phases_leave_the_budget_to_training(total: int, n_train: int, selected: int) -> None:
    least, budget = DEFAULTS.minimum_training, Budget(DEFAULTS, total, free=True)
    assert budget.looking(n_train) >= DEFAULTS.analysis_minimum
    assert budget.after_looking(n_train) == total
    n = min(selected, budget.capabilities(total))
    assert n == min(selected, DEFAULTS.max_capabilities, total // least)
    assert budget.calibration(total, n) >= n * DEFAULTS.calibration_round


@given(st.integers(160, 20000), st.integers(1, 3000), st.integers(1, 10))
def test_phases_fit_into_the_budget(total: int, n_train: int, selected: int) -> None:
    budget = Budget(DEFAULTS, total)
    left = budget.after_looking(n_train)
    n = min(selected, budget.capabilities(left))
    assert n >= 1
    pool = budget.calibration(left, n)
    assert pool >= n * DEFAULTS.calibration_round
    assert left - pool >= n * DEFAULTS.minimum_training
