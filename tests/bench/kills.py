"""`python tests/bench/kills.py [overrides] --kills 30`: kill a run at random moments and repeat it.

One run goes through undisturbed. The same run in another folder is killed with SIGKILL at random
moments, repeated until it ends, and killed again in a fresh folder whenever it ended, until the
number of kills is reached. Ledger, trajectories, evaluation, agent and adapters must be the same,
byte by byte (the trainer's own state.pt holds speeds and is left out). Exit code 1 and the names of
the files if they are not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPARED = (
    "config.yaml",
    "ledger.jsonl",
    "trajectories.jsonl",
    "capabilities.json",
    "agent.json",
    "evaluation.jsonl",
    "curve.jsonl",
    "joint/ledger.jsonl",
    "joint/trajectories.jsonl",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("overrides", nargs="*", default=["experiment=smoke"])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        whole, cut = Path(place) / "whole", Path(place) / "cut"
        started = time.monotonic()
        start(arguments.overrides, whole).wait()
        length = time.monotonic() - started
        expected = digest(whole)
        print(f"undisturbed: {length:.1f} s, {len(expected)} files")
        kills = runs = 0
        wrong: list[str] = []
        while kills < arguments.kills:
            kills += kill_until_done(
                arguments.overrides, cut, length, draw, arguments.kills - kills
            )
            runs += 1
            found = digest(cut)
            names = sorted(expected.keys() | found.keys())
            wrong += [n for n in names if expected.get(n) != found.get(n)]
            print(
                f"{kills} kills, {runs} runs ended, differing files: {sorted(set(wrong)) or 'none'}"
            )
            shutil.rmtree(cut)
    return 1 if wrong else 0


def start(overrides: list[str], folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trace_bench", *overrides, f"run_dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_until_done(
    overrides: list[str], folder: Path, length: float, draw: random.Random, most: int
) -> int:
    """Starts the run again and again, killing it after a random time; the number of kills."""
    kills = 0
    while True:
        process = start(overrides, folder)
        try:
            process.wait(draw.uniform(0.0, length) if kills < most else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        if process.returncode != 0:
            raise SystemExit(
                f"the run ended with exit code {process.returncode} after {kills} kills"
            )
        return kills


def digest(folder: Path) -> dict[str, str]:
    """sha256 of every file that must be the same, and the parts of agent and summary that must."""
    adapters = sorted((folder / "adapters").rglob("*")) + sorted((folder / "joint").rglob("*0*/*"))
    files = [folder / name for name in COMPARED] + adapters
    found = {
        str(f.relative_to(folder)): hashlib.sha256(content(f, folder)).hexdigest()
        for f in files
        if f.is_file() and f.name != "state.pt"
    }
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("score", "base_score", "table", "rollouts", "curve", "adapters"):
        found[f"summary.json: {key}"] = json.dumps(summary[key], sort_keys=True)
    return found


def content(file: Path, folder: Path) -> bytes:
    """A file's bytes; the folder's own name, which differs between the runs, is left out."""
    return file.read_bytes().replace(str(folder).encode(), b"RUN")


if __name__ == "__main__":
    sys.exit(main())
