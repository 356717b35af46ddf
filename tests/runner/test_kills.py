"""Programs that are killed while they write: the same command again ends with the same bytes, and
nothing half-made is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from forks import forked

from trace_bench.__main__ import main

pytestmark = pytest.mark.slow

TRAINED = (
    "method=grpo", "budget=16", "checkpoints=[]", "trainer.groups=2", "trainer.group_size=4",
    "evaluation.limit=2", "policy.max_turns=4", "policy.max_tokens=32", "env.train_tasks=4",
)  # fmt: skip
TIMES = ("timing.json", "metrics.jsonl", "summary.json", "state.pt", ".lock")  # they hold times


def killed(part: str, most: int, *command: str) -> None:
    """Runs a command and kills it in place of the `most`-th time that it puts a file or folder
    whose name contains `part` in its place (or copies one there)."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any, *more: Any, **named: Any) -> Any:
            nonlocal count
            count += part in str(target)
            if count == most:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(source, target, *more, **named)

        return call

    def deadly() -> None:
        os.replace, os.rename = counted(os.replace), counted(os.rename)
        shutil.copyfile = counted(shutil.copyfile)

    code, said = forked(*command, prepare=deadly)
    assert code == -signal.SIGKILL, said


def again(*command: str) -> None:
    code, said = forked(*command)
    assert code == 0, said


def files(place: Path) -> dict[str, bytes]:
    """Everything that lies there, by its name, but for what holds times."""
    found = [p for p in place.rglob("*") if p.is_file() and p.name not in TIMES]
    own = str(place).encode()
    return {str(p.relative_to(place)): p.read_bytes().replace(own, b"HERE") for p in found}


def hidden(place: Path) -> list[Path]:
    return [p for p in place.rglob(".*") if p.name != ".lock"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAINED, f"run_dir={folder}"]) == 0
    return folder


def test_an_adapter_that_is_killed_while_it_is_saved(trained: Path, tmp_path: Path) -> None:
    """Killed three times in a row: within the adapter, at its end, and in the state beside it."""
    folder = tmp_path / "run"
    for part in ("adapter_model", "0001", "state.pt"):
        killed(part, 1, "trace_bench", *TRAINED, f"run_dir={folder}")
    again("trace_bench", *TRAINED, f"run_dir={folder}")
    assert files(folder) == files(trained) and hidden(folder) == []


def test_a_sweep_that_is_killed(tmp_path: Path) -> None:
    """Its runs end with it; the same command then finds every folder free and finishes."""
    parameters = {
        "method": {"value": "base"},
        "policy": {"values": ["idle", "reference"]},
        "evaluation.limit": {"value": 4},
    }
    file = tmp_path / "small.yaml"
    sweep = {"program": "trace_bench", "method": "grid", "parameters": parameters}
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))

    def command(name: str) -> list[str]:
        return ["trace_bench.sweep", str(file), "--jobs", "2", "--runs-root", str(tmp_path / name)]

    again(*command("whole"))
    for signs in ("config.yaml", "evaluation.jsonl"):
        process = subprocess.Popen([sys.executable, "-m", *command("cut")], stdout=subprocess.PIPE)
        while process.poll() is None and not list((tmp_path / "cut").rglob(signs)):
            pass
        process.kill()
        process.communicate()
    again(*command("cut"))
    for name in ("cut", "whole"):  # the log has the order in which the runs ended
        (tmp_path / name / "sweeps" / "small.jsonl").unlink()
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert hidden(tmp_path / "cut") == []
