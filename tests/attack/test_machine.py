"""What a machine lacks or forbids: reported in a line that names it, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pages import ROOT
from shared import RUN

QUICK = ("method=base", "policy=idle", "evaluation.limit=1", "evaluation.split=dev")
BLOCKED = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from {module} import main
sys.exit(main(sys.argv[1:]))
"""
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" "$1" && shift && exec "$@"'
Done = subprocess.CompletedProcess[str]


def started(command: Sequence[str], place: Path, **more: str) -> Done:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, cwd=place, env={**env, **more}, capture_output=True, text=True)


def without(package: str, module: str, arguments: Sequence[str], place: Path) -> Done:
    """A command on a machine where the package is not installed."""
    code = BLOCKED.format(package=package, module=module)
    return started([sys.executable, "-c", code, *arguments], place)


def test_tables_without_matplotlib_say_what_is_missing(base_run: Path, tmp_path: Path) -> None:
    module, run = "trace_bench.results.__main__", str(base_run)
    done = without("matplotlib", module, ["tables", run, "--out", "out"], tmp_path)
    assert done.returncode == 0 and "pip install '.[plots]'" in done.stderr
    assert done.stderr.count("\n") == 1
    kinds = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert kinds == {".md", ".csv", ".tex"}


@pytest.mark.slow
def test_a_part_without_its_package_names_the_extra(tmp_path: Path) -> None:
    done = without("wandb", "trace_bench.__main__", [*QUICK, "tracker=wandb"], tmp_path)
    named = ("pip install", "wandb]", "`tracker`")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_launcher_without_its_package_names_the_extra(tmp_path: Path) -> None:
    """A third-party package `hydra_plugins` hides those that are installed."""
    (tmp_path / "other" / "hydra_plugins").mkdir(parents=True)
    (tmp_path / "other" / "hydra_plugins" / "__init__.py").write_text("")
    paths = os.pathsep.join([str(tmp_path / "other"), str(ROOT)])
    command = [sys.executable, "-m", "trace_bench", "-m", "hydra/launcher=submitit_slurm", *QUICK]
    done = started(command, tmp_path, PYTHONPATH=paths)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "hydra/launcher=submitit_slurm" in done.stderr and ".[launchers]" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def read_only(place: Path, command: Sequence[str], working: Path) -> Done:
    """A command in a mount namespace of its own in which the place cannot be written."""
    wall = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(place)]
    if shutil.which("unshare") is None or started([*wall, "true"], working).returncode:
        pytest.skip("this machine lets nobody mount a folder read-only")
    return started([*wall, *command], working)


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


@pytest.mark.slow
def test_nothing_is_written_to_a_read_only_place(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    run = tmp_path / "closed" / "run"
    done = read_only(tmp_path / "closed", module("trace_bench", *QUICK, f"run_dir={run}"), tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in (str(run), "Read-only file system", "`run_dir`"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "closed"]


@pytest.mark.slow
@pytest.mark.parametrize("look", ["run", "show", "collect", "export"])
def test_a_finished_run_is_shown_where_read_only(look: str, base_run: Path, tmp_path: Path) -> None:
    looks = {
        "run": module("trace_bench", "method=base", *RUN.split(), f"run_dir={base_run}"),
        "show": module("trace_bench.show", str(base_run)),
        "collect": module("trace_bench.results", "collect", str(base_run), "--out", "out"),
        "export": module("trace_bench.results", "export", str(base_run), "--out", "out"),
    }
    done = read_only(base_run, looks[look], tmp_path)
    assert done.returncode == 0, done.stderr
    if look == "run":
        assert f"run: {base_run}" in done.stdout and "stored result" in done.stderr
