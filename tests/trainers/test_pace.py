"""How long a run takes: the formulas, what a dry run says, and a measurement of the very model."""

from __future__ import annotations

import re

import pytest

from trace_bench.core.protocols import Typical
from trace_bench.runner.forecast import describe
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
from trace_bench.trainers.memory import SHAPES
from trace_bench.trainers.verl.machines import active, played, step_seconds, update_seconds

DENSE, EXPERTS = SHAPES["Qwen3-8B"], SHAPES["Qwen3-30B-A3B"]
TAU2 = Typical(14, 8000, 120, 7)


def test_the_parameters_that_a_token_passes_are_the_models_own_figure() -> None:
    assert active(DENSE) == DENSE.parameters
    assert 3.0e9 < active(EXPERTS) < 3.6e9  # "A3B": 3.3 billion


def test_a_step_reads_weights_and_caches() -> None:
    """One episode of an 8B model: 16 GB at half of 3.35 TB/s are 10 ms; GPUs share it; experts are
    read as far as they are chosen, all of them by many episodes."""
    one = step_seconds(DENSE, 1, 0, 1)
    assert 0.005 + 0.0093 < one < 0.005 + 0.0103
    assert step_seconds(DENSE, 1, 0, 2) == pytest.approx(0.005 + (one - 0.005) / 2)
    assert step_seconds(DENSE, 64, 8000, 1) > 2 * one
    few, many = (step_seconds(EXPERTS, live, 0, 1) for live in (1, 256))
    assert few < one < many
    assert many == pytest.approx(0.005 + 2 * EXPERTS.parameters / (3.35e12 * 0.5), rel=0.01)


def test_more_room_means_fewer_waves_and_as_much_work_as_before() -> None:
    small, large = (played(DENSE, 128, TAU2, 2, 1, cache, 128) for cache in (1e10, 1e11))
    assert small.live < large.live <= 128
    assert large.seconds < small.seconds
    assert played(DENSE, 256, TAU2, 2, 1, 1e10, 128).seconds >= 1.9 * small.seconds
    two, one = (update_seconds(DENSE, 128, TAU2, 4, epochs) for epochs in (2, 1))
    assert one < two < 2 * one
    assert update_seconds(DENSE, 128, TAU2, 8, 1) == pytest.approx(one / 2)


def said(*given: str) -> str:
    settings = compose(given)
    return describe(settings, parts_of(settings))[0]


def test_the_papers_run_has_hours_with_what_they_assume() -> None:
    text = said("experiment=paper_tau2", "dry_run=true")
    (found,) = re.findall(r"about ([\d.]+) hours, (\d+) GPU-hours on 8 GPU\(s\)", text)
    assert 1 < float(found[0]) < 20 and int(found[1]) == pytest.approx(8 * float(found[0]), abs=4)
    assert "assumed, not measured" in text and "beside these" not in text
    two = said(
        *("experiment=paper_tau2", "dry_run=true", "llm.user.model=Qwen/Qwen3-32B"),
        "llm.user.base_url=http://10.0.0.9:8000/v1",
    )
    assert "serving Qwen/Qwen3-32B for user at http://10.0.0.9:8000/v1: 65" in two


def test_a_model_in_this_process_is_timed() -> None:
    text = said("method=grpo", "budget=64", "evaluation.limit=4", "dry_run=timed")
    (episode, count, update, trained) = re.findall(
        r"an episode took ([\d.]+) s, of (\d+) and an update ([\d.]+) s a rollout, of (\d+)", text
    )[0]
    assert 0 < float(episode) < 20 and 0 < float(update) < 20
    assert int(trained) == 64 < int(count)
    assert "hours here" not in said("method=grpo", "budget=64", "dry_run=true")
