"""The main road in small, with the shipped model: analysis, calibration, training, routing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import shared
from transformers import AutoModelForCausalLM

from trace_bench.__main__ import main
from trace_bench.core.store import read_lines
from trace_bench.core.types import Entry
from trace_bench.show import main as show
from trace_bench.tiny import MODEL_FOLDER


def summary_of(trace_run: Path) -> dict:
    return json.loads((trace_run / "summary.json").read_text())


def test_every_rollout_is_in_the_ledger_and_within_the_budget(trace_run: Path) -> None:
    summary, ledger = summary_of(trace_run), read_lines(trace_run / "ledger.jsonl", Entry)
    counts = Counter(entry.purpose.value for entry in ledger)
    assert {k: v for k, v in summary["rollouts"].items() if k != "evaluation"} == dict(counts)
    assert 0 < len(ledger) <= summary["budget"] == 160
    assert len((trace_run / "trajectories.jsonl").read_text().splitlines()) == len(ledger)
    splits = {entry.task.split("/")[2] for entry in ledger}
    assert not splits & {"test", "train"}, "it trains on dev, and train is its development split"


def test_the_phases_left_their_files(trace_run: Path) -> None:
    summary = summary_of(trace_run)
    assert summary["complete"]
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER)
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())
    assert summary["capabilities"], "the shipped agent lacks something, and it must be found"
    assert [p["checkpoint"] for p in summary["curve"]] == [80]
    agent = json.loads((trace_run / "agent.json").read_text())
    assert [a["name"] for a in agent["adapters"]] == summary["adapters"]
    for adapter in agent["adapters"]:
        assert (Path(adapter["path"]) / "adapter_model.safetensors").exists()
    training = list(map(json.loads, (trace_run / "metrics.jsonl").read_text().splitlines()))
    assert any(m["phase"] == "training" and m["steps"] > 0 for m in training)


def test_the_oracle_route_bounds_what_it_chooses_from(trace_run: Path) -> None:
    rows = {row["name"]: row["success"] for row in summary_of(trace_run)["table"]}
    assert rows["oracle route"] >= max(rows["base"], rows["trace"])
    assert rows["reference ceiling"] == 1.0
    single = next(name for name in rows if name.startswith("only "))
    assert rows["oracle route"] >= rows[single]


def test_the_joint_yardstick_has_a_ledger_of_its_own(trace_run: Path) -> None:
    summary, ledger = summary_of(trace_run), read_lines(trace_run / "joint" / "ledger.jsonl", Entry)
    played = Counter(e.purpose.value for e in ledger)
    assert summary["yardsticks"]["joint"]["rollouts"] == dict(played)
    assert len(ledger) <= summary["budget"]
    assert "one joint adapter" in {row["name"] for row in summary["table"]}
    shared = [e for e in ledger if e.purpose.value in ("analysis", "calibration")]
    assert shared == read_lines(trace_run / "ledger.jsonl", Entry)[: len(shared)]  # up to training


def test_analysis_episodes_show_labels(trace_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = read_lines(trace_run / "ledger.jsonl", Entry)[0]
    assert first.purpose.value == "analysis"
    assert show([str(trace_run), first.task, "0"]) == 0
    text = capsys.readouterr().out
    assert "\nlabels\n" in text and "call      analysis [" in text


def fingerprints(folder: Path) -> dict[str, str]:
    names = ("ledger.jsonl", "trajectories.jsonl", "evaluation.jsonl", "curve.jsonl")
    files = [folder / n for n in names] + sorted((folder / "adapters").rglob("adapter_*"))
    digest = {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    return {str(f.relative_to(folder)): value for f, value in digest.items()}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_a_run_that_is_cut_off_ends_the_same(trace_run: Path, tmp_path: Path, share: float) -> None:
    """Only the first lines of ledger and trajectories are left, and nothing of what came after."""
    cut = tmp_path / "run"
    gone = shutil.ignore_patterns("adapters", "*.jsonl", "summary*")
    shutil.copytree(trace_run, cut, ignore=gone)
    shutil.copy(trace_run / "evaluation.jsonl", cut)
    for name in ("ledger.jsonl", "trajectories.jsonl"):
        lines = (trace_run / name).read_bytes().splitlines(keepends=True)
        count = int(share * len(lines))
        (cut / name).write_bytes(b"".join(lines[:count]) + lines[count][:33])
    assert main(["method=trace", *shared.RUN.split(), f"run_dir={cut}"]) == 0
    # Merged adapters are made when an episode asks for one, and the held-out episodes are there.
    whole = {k: v for k, v in fingerprints(trace_run).items() if "/merged/" not in k}
    assert fingerprints(cut) == whole
    for key in ("score", "table", "rollouts", "curve"):
        assert summary_of(cut)[key] == summary_of(trace_run)[key]
