"""A report of many runs, and of runs with more conversations than a page can hold."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import time
from pathlib import Path

import pytest
from forks import forked
from report_data import unpacked

from trace_bench.core.store import fingerprint
from trace_bench.core.summary import read_settings
from trace_bench.results.folder import ELSEWHERE

RUNS = 120
TALKS = "evaluation_trajectories.jsonl"


@pytest.fixture(scope="module")
def many(base_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of other seeds with the files of one, and in each 40 long conversations."""
    place = tmp_path_factory.mktemp("many")
    small = Path(shutil.copytree(base_run, place / "small"))
    talk, talks = json.loads((small / TALKS).read_text().splitlines()[0]), []
    for _ in range(40):
        talk["trajectory"]["turns"][0]["reply"]["content"] = random.randbytes(4000).hex()
        talks.append(json.dumps(talk) + "\n")
    (small / TALKS).write_text("".join(talks))
    summary = json.loads((small / "summary.json").read_text())
    settings = (small / "config.yaml").read_text()
    for seed in range(RUNS):
        run = place / "runs" / f"{seed:03d}"
        run.mkdir(parents=True)
        for name in ("ledger.jsonl", "evaluation.jsonl", "tasks.json", TALKS):
            if (small / name).exists():
                os.link(small / name, run / name)
        (run / "config.yaml").write_text(settings.replace("\nseed: 0\n", f"\nseed: {seed}\n"))
        config = read_settings(run / "config.yaml")
        identity = fingerprint({k: v for k, v in config.items() if k not in ELSEWHERE})
        changed = {**summary, "seed": seed, "fingerprint": identity}
        (run / "summary.json").write_text(json.dumps(changed))
    return place / "runs"


def narrow() -> None:
    """At most 1 GB more than the process that the test was started in."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 10**9, now + 10**9))


@pytest.mark.slow
def test_many_runs_in_one_report_have_their_bounds(many: Path, tmp_path: Path) -> None:
    """Of time, size and memory."""
    out, started = tmp_path / "report.html", time.monotonic()
    code, said = forked(
        "trace_bench.report", str(many), "--out", str(out), "--limit-mb", "5", prepare=narrow
    )
    assert code == 0, said
    assert time.monotonic() - started < 60, "some seconds, of which a slow machine makes more"
    page = out.read_text()
    assert len(page) < 12e6, "the library, some kilobytes a run, and 5 MB of conversations"
    assert said.count("left out:") == 1
    assert " more: some held-out conversations, for the size" in said
    index = unpacked(page, "index")
    assert len(index["runs"]) == sum(len(row["runs"]) for row in index["rows"]) == RUNS
    assert len(index["remarks"]) == 1 and not index["skipped"]
    assert unpacked(page, f"run-{RUNS - 1}")["tasks"]["ids"]
