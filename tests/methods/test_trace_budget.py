"""Settings are checked at the edge; the budget is shared out exactly, too small ones refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_bench.core.checked import build
from trace_bench.core.errors import UserError
from trace_bench.methods.trace import budget as b
from trace_bench.methods.trace.settings import TraceSettings

DEFAULTS = TraceSettings()


def test_every_setting_has_a_default_and_survives_the_edge() -> None:
    values = dataclasses.asdict(DEFAULTS)
    assert build(TraceSettings, values, "method") == DEFAULTS
    assert build(TraceSettings, {"gap": 0.3}, "method").gap == 0.3


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"gapp": 0.2}, ["gapp", "gap", "method.gapp"]),
        ({"gap": "much"}, ["'much'", "0 to 1", "method.gap"]),
        ({"gap": 1.5}, ["1.5", "0 to 1"]),
        ({"runs": 0}, ["method.runs=0", "from 1"]),
        ({"runs": True}, ["whole number"]),
        ({"calibration_group_size": 1}, ["from 2"]),
        ({"keep_runs": 11}, ["keep_runs=11", "1 to 10"]),
        ({"route_failures": 1}, ["true or false"]),
        ({"adapters": "many"}, ["many", "per_capability, joint", "method.adapters"]),
        ({"band_low": 0.7}, ["band_low", "band_high"]),
        ({"synthesis": "steal"}, ["steal", "generate, select", "method.synthesis"]),
        ({"route_threshold": -0.1}, ["0 to 1", "method.route_threshold"]),
        ({"analysis_temperature": 2.5}, ["0 to 2", "method.analysis_temperature"]),
    ],
)
def test_bad_settings_are_named(values: dict, says: list[str]) -> None:
    with pytest.raises(UserError) as error:
        build(TraceSettings, values, "method")
    assert all(part in str(error.value) for part in says), str(error.value)


def test_the_smallest_budget_says_which_phase_needs_how_much() -> None:
    need = b.minimum(DEFAULTS)
    assert need == 32 + 4 * 8 + 96
    b.check_budget(need, DEFAULTS)
    with pytest.raises(UserError) as error:
        b.check_budget(need - 1, DEFAULTS)
    for part in ("budget=159", "at least 160", "analysis 32", "calibration 32", "training 96"):
        assert part in str(error.value)


def test_without_calibration_the_smallest_budget_has_none() -> None:
    select = TraceSettings(synthesis="select")
    assert b.minimum(select) == 32 + 96
    with pytest.raises(UserError, match="at least 128 rollouts") as error:
        b.check_budget(127, select)
    assert "calibration" not in str(error.value)
    assert b.affordable(300, select) == 3


@pytest.mark.parametrize(
    ("budget", "n_train", "want"),
    [
        (640, 64, 64),  # the share and one each
        (2560, 64, 256),  # the share
        (640, 16, 64),
        (320, 64, 64),  # one each, within the ceiling
        (240, 64, 60),  # the ceiling
        (160, 64, 32),  # what one capability leaves
        (2560, 2048, 640),  # one each is out of reach: the ceiling
    ],
)
def test_analysis_rollouts(budget: int, n_train: int, want: int) -> None:
    assert b.analysis_rollouts(budget, DEFAULTS, n_train) == want


@given(st.integers(64, 20000), st.integers(1, 3000), st.integers(1, 10))
def test_free_phases_leave_the_whole_budget_to_training(
    budget: int, n_train: int, selected: int
) -> None:
    least = DEFAULTS.minimum_training
    if budget < least:
        with pytest.raises(UserError, match=f"at least {least} rollouts"):
            b.check_budget(budget, DEFAULTS, free=True)
        return
    b.check_budget(budget, DEFAULTS, free=True)
    assert b.analysis_rollouts(budget, DEFAULTS, n_train, free=True) >= DEFAULTS.analysis_minimum
    n = min(selected, b.affordable(budget, DEFAULTS, free=True))
    assert n == min(selected, DEFAULTS.max_capabilities, budget // least)
    pool = b.calibration_pool(budget, budget, n, DEFAULTS, free=True)
    assert pool >= n * DEFAULTS.calibration_round


@given(st.integers(160, 20000), st.integers(1, 3000), st.integers(1, 10))
def test_phases_fit_into_the_budget(budget: int, n_train: int, selected: int) -> None:
    analysis = b.analysis_rollouts(budget, DEFAULTS, n_train)
    left = budget - analysis
    n = min(selected, b.affordable(left, DEFAULTS))
    assert n >= 1
    pool = b.calibration_pool(budget, left, n, DEFAULTS)
    assert pool >= n * DEFAULTS.calibration_round
    assert left - pool >= n * DEFAULTS.minimum_training


@given(st.integers(0, 5000), st.integers(1, 9))
def test_shares_spend_everything(left: int, jobs: int) -> None:
    spent = 0
    for n in range(jobs):
        share = b.next_share(left - spent, jobs - n)
        assert share >= 0
        spent += share
    assert spent == left
