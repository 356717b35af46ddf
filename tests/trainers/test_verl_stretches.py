"""The real verl trains on a model that thinks, whose template drops earlier thoughts: its rows are
what was sampled, and one step on them is the local trainer's (run by .ci/verl)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import verl_job as jobs
from thinking import OPENED, AskingSuite, save_thinker

from trace_bench.core.decode import convert
from trace_bench.core.store import read_lines
from trace_bench.core.types import Trajectory

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

TESTS = Path(__file__).parents[1]
SHAPE = ("trainer.groups=8", "trainer.group_size=8", "trainer.epochs=1", "trainer.minibatches=1")


def trained(
    folder: Path, monkeypatch: Any, *more: str
) -> tuple[list[Trajectory], dict[str, Any], Any]:
    """64 episodes and one step of a job: (episodes, its metrics, the job's settings)."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
    model = save_thinker(folder / "model", OPENED)
    given = ["env=custom", "env.factory=thinking:AskingSuite", "model=hf", f"model.path={model}"]
    limits = ["policy.context=512", "policy.max_turns=6", "policy.max_tokens=24", "budget=64"]
    chosen = jobs.settings("trainer.restarts=0", *SHAPE, *given, *limits, *more)
    lab = jobs.make_lab(folder / "run", chosen)
    lab.trainer.train(jobs.job("thinks", chosen, AskingSuite().tasks("train")), lab)
    lab.close()
    lines = sorted(read_lines(folder / "run/trajectories.jsonl"), key=lambda x: x["index"])
    (found,) = jobs.metrics(folder / "run")
    return [convert(x["trajectory"], Trajectory) for x in lines], found, chosen


def test_verl_takes_the_local_trainers_step(tmp_path: Path, monkeypatch: Any) -> None:
    """`policy.thoughts=keep` makes episodes of one stretch, as those of any other model."""
    played, found, chosen = trained(tmp_path, monkeypatch)
    assert len(played) == 64 and found["failures"] == found["inexact"] == 0
    assert any(turn.kept is not None for t in played for turn in t.turns)
    assert sum(bool(turn.thoughts) for t in played for turn in t.turns) > 64
    assert found["steps"] == 1
    assert found["logprob_difference_max"] < 2e-4, "verl's rows are what the sampler read"
    job = jobs.job("thinks", chosen, AskingSuite().tasks("train"))
    ours = jobs.one_step(chosen, job, played)
    # verl keeps groups without an advantage in the mean over episodes.
    assert found["loss"] == pytest.approx(ours.loss, rel=2e-3, abs=1e-6)
    assert found["grad_norm"] == pytest.approx(ours.grad_norm, rel=2e-3)
