"""What many tests read and none may change: a small model, an adapter, finished runs, their report.

Each is made once for a state of the code, in a folder of the system's temporary one that is named
by what the package and conf/ hold, under a lock: processes and later sessions of pytest find it
there. Runs are made by a process of their own, so that a test which only reads one needs no torch.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from forks import forked

ROOT = Path(__file__).resolve().parents[1]
DAY = 24 * 3600.0
RUN = "budget=160 checkpoints=[80] evaluation.limit=8 env.train_split=dev env.dev_split=train"
"""The settings of every shared run: tables may compare them. The curve and the router are measured
on the development split, hence on the smaller of the two."""


@cache
def place() -> Path:
    """The folder of this state of the code. Folders that nobody used for a day are removed."""
    digest = hashlib.sha256()
    files = [path for part in ("trace_bench", "conf") for path in (ROOT / part).rglob("*")]
    for path in sorted([*files, Path(__file__), ROOT / "tests" / "models.py"]):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    houses = Path(tempfile.gettempdir(), f"trace_bench_tests_{getpass.getuser()}")
    folder = houses / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    folder.touch()
    for other in houses.iterdir():
        if time.time() - other.stat().st_mtime > DAY:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def needs(package: str, why: str) -> pytest.MarkDecorator:
    """The mark of a file whose tests need a package, which is not imported for it: some take a
    second, in every worker."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=why)


def contents(path: Path) -> dict[str, list[int]]:
    """By file: its size and when it was written."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path)): [p.stat().st_size, p.stat().st_mtime_ns] for p in files}


@contextmanager
def shared(name: str, make: Callable[[Path], object]) -> Iterator[Path]:
    """The folder `name`, made by `make` if nobody did. Raises AssertionError, at the end, if it is
    no longer as it was made; the next to ask gets it made anew."""
    folder, done = place() / name, place() / f"{name}.json"
    with (place() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.write_text(json.dumps(contents(folder)))
    before = json.loads(done.read_text())
    yield folder
    after = contents(folder)
    if after != before:
        done.unlink(missing_ok=True)
        changed = sorted(k for k in {*before, *after} if before.get(k) != after.get(k))
        raise AssertionError(f"a test changed {changed} in the shared {name}: it must copy first")


def command(module: str, *words: str | Path) -> str:
    """What `python -m module words...` prints."""
    line = [sys.executable, "-m", module, *map(str, words)]
    if "torch" in sys.modules:  # the child of a process that has imported it needs not
        code, said = forked(module, *line[3:], prepare=lambda: os.chdir(place()))
        assert code == 0, f"{line}\n{said[-4000:]}"
        return said
    done = subprocess.run(line, cwd=place(), capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def run(*words: str) -> Callable[[Path], object]:
    """Makes a run of these settings in a folder."""
    return lambda folder: command("trace_bench", *words, *RUN.split(), f"run_dir={folder}")
