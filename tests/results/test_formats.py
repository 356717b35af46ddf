"""Runs in the formats of others, read by their programs."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trace_bench.__main__ import main as start
from trace_bench.core.decode import convert
from trace_bench.core.types import Trajectory, to_json
from trace_bench.results.__main__ import main
from trace_bench.results.formats.episodes import FinishedRun
from trace_bench.results.formats.inspect import _figures, _sample, read_arguments
from trace_bench.results.runs import finished


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of GRPO with two trials a task."""
    folder = tmp_path_factory.mktemp("formats") / "run"
    few = ("budget=64", "evaluation.limit=12", "evaluation.trials=2", "policy.eval_temperature=1.0")
    assert start(["method=grpo", *few, "checkpoints=[]", f"run_dir={folder}"]) == 0
    return folder


def exported(run: Path, out: Path, kind: str) -> Path:
    assert main(["export", str(run), "--format", kind, "--out", str(out)]) == 0
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_inspect_reads_every_log(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai.log import list_eval_logs, read_eval_log

    out = exported(run, tmp_path / "logs", "inspect")
    assert len(list_eval_logs(str(out))) == len(list(out.iterdir()))
    summary = json.loads((run / "summary.json").read_text())
    outcomes = lines(run / "evaluation.jsonl")
    read: dict[str, Any] = {}
    for path in out.iterdir():
        log = read_eval_log(str(path))
        assert log.status == "success" and log.samples is not None and log.results is not None
        read[log.eval.model.rpartition("tiny/")[2]] = log
    assert {o["agent"] for o in outcomes} < read.keys()
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
    assert sum(len(log.samples) for name, log in read.items() if "train" in name) == 64


def test_inspects_tables_have_a_row_for_each_log_and_sample(run: Path, tmp_path: Path) -> None:
    """By the readers that docs/report.md names."""
    pytest.importorskip("inspect_ai")
    pytest.importorskip("pyarrow")
    from inspect_ai.analysis import evals_df, samples_df

    out = exported(run, tmp_path / "logs", "inspect")
    logs = [json.loads(path.read_text()) for path in out.iterdir()]
    evals, samples = evals_df(str(out)), samples_df(str(out))
    assert len(evals) == evals["eval_id"].nunique() == len(logs)
    assert len(samples) == samples["sample_id"].nunique() == sum(len(g["samples"]) for g in logs)
    counted = sum(log["stats"]["model_usage"]["agent"]["total_tokens"] for log in logs)
    assert counted == samples["total_tokens"].sum() > 0


@pytest.mark.parametrize("kind", ["card", "inspect", "atif"])
def test_an_export_says_one_line(
    kind: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = exported(run, tmp_path / kind, kind)
    said = capsys.readouterr().out
    files = sum(p.is_file() for p in out.rglob("*"))
    assert said == f"{out}: {files} files\n"


def test_a_lost_episode_is_an_error_and_no_score(run: Path, tmp_path: Path) -> None:
    """Scores of lost episodes are left out of an exported mean."""
    source = _source(run)
    [first, *_] = [p for p in source.episodes() if p.held_out]
    lost = _changed(first, score=None, failure={"boundary": "sandbox", "error": "gone"})
    sample = _sample(lost, source)
    assert "scores" not in sample and sample["error"]["message"] == "sandbox: gone"
    found = _figures("success", [_sample(first, source), sample])
    assert found["metrics"]["mean"]["value"] == float(first.trajectory.score.success)
    assert (found["scored_samples"], found["unscored_samples"]) == (1, 1)


def test_atif_has_the_tokens_and_the_results_of_tools(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "atif", "atif")
    stored = {
        (x["call"], x["index"]): x["trajectory"]
        for name in ("trajectories.jsonl", "evaluation_trajectories.jsonl")
        for x in lines(run / name)
    }
    documents = list(out.rglob("*.json"))
    assert len(documents) == len(stored) == 64 + 2 * 2 * 12
    results = 0
    for path in documents:
        document = json.loads(path.read_text())
        call = str(path.parent.relative_to(out))
        trajectory = stored[call, int(path.stem)]
        steps = [s for s in document["steps"] if s["source"] == "agent"]
        context: list[int] = []
        for step, turn in zip(steps, trajectory["turns"], strict=True):
            context += turn["prompt_ids"]
            assert step["metrics"]["prompt_token_ids"] == context
            assert step["metrics"]["completion_token_ids"] == turn["token_ids"]
            assert step["metrics"]["logprobs"] == turn["logprobs"]
            context += turn["token_ids"]
        told = [r["content"] for s in steps for r in s.get("observation", {}).get("results", ())]
        turns = [m for t in trajectory["turns"] for m in t["messages"]] + trajectory["closing"]
        assert told == [m["content"] for m in turns if m["role"] == "tool"]
        results += len(told)
    assert results > 50


@pytest.mark.skipif(
    importlib.util.find_spec("harbor") is None,
    reason="the package harbor (Python 3.12 or newer) is not installed",
)
def test_harbor_validates_every_document(run: Path, tmp_path: Path) -> None:
    from harbor.models.trajectories.trajectory import Trajectory

    for path in exported(run, tmp_path / "atif", "atif").rglob("*.json"):
        Trajectory.model_validate(json.loads(path.read_text()))


def test_the_hubs_dataset_has_a_row_an_episode(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = exported(run, tmp_path / "hf", "hf")
    rows = parquet.read_table(out / "data" / "held_out.parquet").to_pylist()
    outcomes = [o for o in lines(run / "evaluation.jsonl") if o["agent"] in ("base", "final")]
    found = sorted((r["group"][11:], r["task"], r["trial"], r["success"]) for r in rows)
    wanted = [(o["agent"], o["task"], o["trial"], o["score"]["success"]) for o in outcomes]
    assert found == sorted(wanted)
    assert len(parquet.read_table(out / "data" / "rollouts.parquet")) == 64
    traces = list((out / "traces").iterdir())
    assert len(traces) == len(rows)
    head, *messages = lines(traces[0])
    assert head["type"] == "session" and head["harness"] == "trace_bench"
    assert all(m["type"] == "message" and m["message"]["role"] for m in messages)
    assert "config_name: held_out" in (out / "README.md").read_text()


@pytest.mark.parametrize("text", ["[1]", "{", "null", ""])
def test_arguments_that_are_no_object_are_kept_apart(text: str) -> None:
    found, why = read_arguments(text)
    assert found == {} and why


def test_an_unknown_format_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--format", "csv", "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert "csv" in said and "inspect" in said and "--format" in said and said.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_an_edited_run_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    path = copy / "trajectories.jsonl"
    path.write_text(path.read_text().replace('"success":false', '"success":true', 1))
    assert main(["export", str(copy), "--format", "atif", "--out", str(tmp_path / "x")]) == 2
    assert "trajectories.jsonl is not the file" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def _source(run: Path) -> Any:
    return FinishedRun(run, finished(run))


def _changed(played: Any, **changes: Any) -> Any:
    data = {**to_json(played.trajectory), **changes}
    return replace(played, trajectory=convert(data, Trajectory))
