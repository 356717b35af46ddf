"""A real W&B, offline: it listens, and changes nothing."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shared import needs

from trace_bench.__main__ import main
from trace_bench.core.protocols import RunContext
from trace_bench.rehearse.scripted import Answer, chat, models, serve
from trace_bench.runner.trackers import Metrics, WandbTracker

pytestmark = needs("wandb", "the tracker needs wandb, which is not installed")

Said = pytest.CaptureFixture[str]
RUN = ["method=base", "policy=reference", "evaluation.limit=4", "evaluation.split=dev"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_a_tracked_run_computes_what_an_untracked_one_does(tmp_path: Path) -> None:
    assert main([*RUN, "tracker=wandb", f"run_dir={tmp_path / 'with'}"]) == 0
    assert main([*RUN, f"run_dir={tmp_path / 'without'}"]) == 0
    for name in ("evaluation.jsonl", "agent.json"):
        one, two = (tmp_path / kind / name for kind in ("with", "without"))
        assert one.read_bytes() == two.read_bytes()
    content = record_of(tmp_path / "with")
    assert b"score.success" in content and b"agent-" in content


def record_of(folder: Path, limit: float = 60.0) -> bytes:
    """What W&B keeps of a run folder's only W&B run. W&B's own process may still be writing when
    the run has ended, until this program ends: waits up to `limit` seconds for the score, and until
    nothing more comes."""
    (place,) = (folder / "wandb").glob("offline-run-*")
    (record,) = place.glob("*.wandb")
    until, before = time.monotonic() + limit, b""
    while (content := record.read_bytes()) != before or b"score.success" not in content:
        if time.monotonic() > until:
            break
        before = content
        time.sleep(0.5)
    return content


def metrics(folder: Path, seed: int) -> tuple[Metrics, WandbTracker]:
    """A run's metrics with W&B listening."""
    run = RunContext(folder=folder, fingerprint=f"seed{seed}", identity={"seed": seed})
    tracker = WandbTracker(run, "p", "offline")
    log = partial(print, file=sys.stderr)
    return Metrics(folder / "metrics.jsonl", tracker, log), tracker


def test_a_repeated_run_logs_only_what_is_new(tmp_path: Path) -> None:
    for steps in (2, 3):
        lines, _ = metrics(tmp_path, 1)
        for step in range(steps):
            lines.log({"step": step, "reward": 0.5, "loss": None})
        lines.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    runs = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(runs) == 2 and len({run.name.split("-")[3] for run in runs}) == 1  # one id


def test_an_outage_is_logged_once_and_the_run_goes_on(tmp_path: Path, capsys: Said) -> None:
    lines, tracker = metrics(tmp_path, 2)
    tracker._run.finish()  # as if the service had gone away
    for step in range(3):
        lines.log({"step": step})
    lines.conclude({})
    lines.close()
    assert capsys.readouterr().err.count("the tracker failed (WandbTracker") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_no_key_gets_into_anything_that_a_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """A server that repeats the key in its refusals, W&B listening."""
    key = "sk-planted-5551234567"
    monkeypatch.setenv("SOME_KEY", key)

    tried: list[str] = []

    def script(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return models("m")
        tried.append(path)
        if len(tried) == 1:  # the turn before the first episode
            return chat("Hello.", "m")
        return Answer({"error": f"{key} may not do this"}, 403)

    with serve(script) as server:
        acting = ["policy=openai", f"policy.base_url={server.url}", "policy.key_env=SOME_KEY"]
        more = ["model=served", "model.name=m", "tracker=wandb", f"run_dir={tmp_path / 'r'}"]
        assert main(["method=base", "evaluation.limit=4", *acting, *more]) == 2  # all are lost
        assert all(h["Authorization"] == f"Bearer {key}" for h in server.headers)
    written = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert any(b"*** may not do this" in f.read_bytes() for f in written)
    assert not [f for f in written if key.encode() in f.read_bytes()]
    said = capfd.readouterr()
    assert key not in said.out + said.err
