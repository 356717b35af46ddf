"""Runs as logs of Inspect, read by its own programs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trace_bench.__main__ import main as start
from trace_bench.core.store import read_lines
from trace_bench.core.types import Boundary, Failure
from trace_bench.results.__main__ import main
from trace_bench.results.inspect import _call, _figures, _sample, episodes


@pytest.fixture(scope="module")
def logs(grpo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "logs"
    assert main(["export", str(grpo_run), "--out", str(out)]) == 0
    return out


def test_inspect_reads_every_log(grpo_run: Path, logs: Path) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai.log import list_eval_logs, read_eval_log

    assert len(list_eval_logs(str(logs))) == len(list(logs.iterdir()))
    summary = json.loads((grpo_run / "summary.json").read_text())
    outcomes = read_lines(grpo_run / "evaluation.jsonl")
    read: dict[str, Any] = {}
    for path in logs.iterdir():
        log = read_eval_log(str(path))
        assert log.status == "success" and log.samples is not None and log.results is not None
        read[log.eval.model.rpartition("tiny/")[2]] = log
    assert {"base", "final"} < read.keys()
    for agent, wanted in (("base", summary["base_score"]), ("final", summary["score"])):
        log = read[agent]
        figures = {s.name: s.metrics["mean"].value for s in log.results.scores}
        assert figures == pytest.approx({k: wanted[k] for k in ("success", "similarity")})
        own = {(o["task"], o["trial"] + 1): o for o in outcomes if o["agent"] == agent}
        assert {(s.id, s.epoch) for s in log.samples} == own.keys()
        for sample in log.samples:
            score = own[sample.id, sample.epoch]["score"]
            assert sample.scores["success"].value == score["success"]
            assert sample.messages[0].role == "system" and len(sample.messages) > 1
    assert sum(len(log.samples) for name, log in read.items() if "train" in name) == 160


def test_inspects_tables_have_a_row_for_each_log_and_sample(logs: Path) -> None:
    """By the readers that docs/report.md names."""
    pytest.importorskip("inspect_ai")
    pytest.importorskip("pyarrow")
    from inspect_ai.analysis import evals_df, samples_df

    written = [json.loads(path.read_text()) for path in logs.iterdir()]
    evals, samples = evals_df(str(logs)), samples_df(str(logs))
    assert len(evals) == evals["eval_id"].nunique() == len(written)
    assert len(samples) == samples["sample_id"].nunique() == sum(len(w["samples"]) for w in written)
    counted = sum(log["stats"]["model_usage"]["agent"]["total_tokens"] for log in written)
    assert counted == samples["total_tokens"].sum() > 0


def test_trials_are_epochs(tmp_path: Path) -> None:
    few = ("policy=reference", "evaluation.limit=3", "evaluation.trials=2", "evaluation.split=dev")
    assert start(["method=base", *few, f"run_dir={tmp_path / 'run'}"]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "logs")]) == 0
    (log,) = [json.loads(p.read_text()) for p in (tmp_path / "logs").glob("*evaluation-base*")]
    assert log["eval"]["config"] == {"epochs": 2} and len(log["eval"]["dataset"]["sample_ids"]) == 3
    assert sorted(sample["epoch"] for sample in log["samples"]) == [1, 1, 1, 2, 2, 2]


def test_a_lost_episode_is_an_error_and_no_score(grpo_run: Path) -> None:
    """Scores of lost episodes are left out of an exported mean."""
    first = next(episodes(grpo_run))[2].read().trajectory
    gone = replace(first, score=None, failure=Failure(Boundary.SANDBOX, "gone"))
    sample = _sample(gone, 0, {})
    assert "scores" not in sample and sample["error"]["message"] == "sandbox: gone"
    figures = _figures("success", [_sample(first, 0, {}), sample])
    assert first.score and figures["metrics"]["mean"]["value"] == float(first.score.success)
    assert (figures["scored_samples"], figures["unscored_samples"]) == (1, 1)


@pytest.mark.parametrize("text", ["[1]", "{", "null", "", "\ud800", "[" * 100_000])
def test_arguments_that_are_no_object_are_kept_apart(text: str) -> None:
    call = _call({"id": "1", "function": {"name": "f", "arguments": text}})
    assert call["arguments"] == {} and call["parse_error"]


def test_an_edited_run_is_refused(
    grpo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(grpo_run, copy)
    path = copy / "trajectories.jsonl"
    path.write_text(path.read_text().replace('"success":false', '"success":true', 1))
    assert main(["export", str(copy), "--out", str(tmp_path / "x")]) == 2
    assert "trajectories.jsonl is not the file" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
