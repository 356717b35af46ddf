"""How long tables take over many runs: generated run folders, tables in a process of their own.

    python tests/bench/results.py [--runs 1000] [--lines 5000]

The folders have the form of real ones (a ledger, evaluations of 387 tasks by a dozen agents,
matching hashes) with drawn outcomes; they say nothing about methods. `--lines` is per ledger.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trace_bench.core.store import file_hash, fingerprint
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import identity, parts_of

METHODS = ("base", "grpo", "gepa", "trace", "prompt_only", "untargeted", "single_capability", "sft")
BUDGETS = 5
HASHED = ("ledger.jsonl", "evaluation.jsonl", "metrics.jsonl", "capabilities.json")
AGENTS = ("base", "idle", "random", "reference", "final", *(f"adapter:a{n}" for n in range(6)))
NOTHING = {"success": None, "similarity": None, "n": 0, "interval": None, "failures": 0}
TASKS = [f"toolsandbox/embedded/test/{n:04d}" for n in range(387)]


@functools.cache
def settings_of(method: str) -> Mapping[str, Any]:
    settings = compose([f"method={method}"])
    return identity(settings, parts_of(settings))


def generate(folder: Path, method: str, seed: int, lines: int) -> None:
    """One run folder whose budget is `lines`."""
    rng = random.Random(f"{method}{lines}{seed}")
    folder.mkdir(parents=True)
    who = {**settings_of(method), "budget": lines, "seed": seed}
    (folder / "config.yaml").write_text(yaml.safe_dump(who, sort_keys=False))
    point = (
        '{"rollouts":%d,"phase":"training","adapter":"x@0001","reward":0.5,"zero_share":0.1,'
        '"constant_share":0.3,"steps":2}\n'
    )
    (folder / "metrics.jsonl").write_text("".join(point % n for n in range(0, lines, 32)))
    run = {"coverage": 0.1, "gap": 0.3, "labels": {f"T{n:03d}": "PRESENT" for n in range(64)}}
    found = [
        {"name": f"c{n}", "votes": 8, "selected": n < 6, "runs": [run] * 10} for n in range(12)
    ]
    (folder / "capabilities.json").write_text(json.dumps({"candidates": found}))
    entry = (
        '{"call":"train/x/iter0001","index":%d,"purpose":"training","task":"toolsandbox/embedded/'
        'train/0003","seed":4989408586575525252,"agent":"base+x@0001","adapter":"x@0001",'
        '"similarity":1.0,"success":true,"tokens":96,"turns":3,"stop":"done","error":null}\n'
    )
    (folder / "ledger.jsonl").write_text("".join(entry % n for n in range(lines)))
    with (folder / "evaluation.jsonl").open("w") as file:
        for agent in AGENTS:
            for task in TASKS:
                success = "true" if rng.random() < 0.6 else "false"
                file.write(
                    f'{{"agent":"{agent}","version":"v","adapter":null,"task":"{task}","trial":0,'
                    f'"score":{{"success":{success},"similarity":0.5}},"stop":"done","error":null,'
                    '"tokens":90,"attempt":0}\n'
                )
    summary = {
        "complete": True,
        "method": method,
        "learns": True,
        "env": "toolsandbox",
        "suite": "embedded",
        "split": "test",
        "protocol": "held_out",
        "score": NOTHING,
        "base_score": NOTHING,
        "difference": None,
        "table": [],
        "curve_caveat": None,
        "budget": lines,
        "seed": seed,
        "accounting": "strict",
        "rollouts": {"training": lines, "evaluation": len(AGENTS) * len(TASKS)},
        "routing": None,
        "capabilities": [],
        "adapters": [],
        "curve": [],
        "wall_s": {"method": 1.0},
        "versions": {},
        "git": None,
        "fingerprint": fingerprint(who),
        "hashes": {n: file_hash(folder / n) for n in HASHED},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


MEASURE = """
import resource, sys
from trace_bench.results.__main__ import main
code = main(["tables", sys.argv[1], "--out", sys.argv[2]])
print("peak MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
sys.exit(code)
"""


def tables(place: Path) -> tuple[float, str]:
    """Seconds of the tables in a process of their own, and the last line that it says."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(place / "runs"), str(place / "tables")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return time.perf_counter() - began, done.stderr.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=5000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for n in range(given.runs):
            method = METHODS[n % len(METHODS)]
            more = n // len(METHODS)
            lines = given.lines + 160 * (more % BUDGETS)  # five budgets
            generate(place / "runs" / f"{n:04d}", method, more // BUDGETS, lines)
        size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
        print(f"{given.runs} runs, {size / 2**30:.2f} GiB")
        seconds, said = tables(place)
        print(f"{seconds:.1f} s, {said}")


if __name__ == "__main__":
    main()
