"""What a machine lacks or forbids: reported in a line that names it, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pages import ROOT

from trace_bench.__main__ import main

QUICK = ("method=base", "policy=idle", "evaluation.limit=1")
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    assert main([*QUICK, f"run_dir={place / 'run'}"]) == 0
    return place


def test_figures_without_matplotlib_name_the_extra(finished: Path, tmp_path: Path) -> None:
    """Before anything is written; what draws nothing goes on."""
    module, run = "trace_bench.results.__main__", str(finished / "run")
    done = without("matplotlib", module, ["tables", run, "--out", "out"], tmp_path)
    assert done.returncode == 2 and "pip install '.[plots]'" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
    done = without("matplotlib", module, ["collect", run, "--out", "out.jsonl"], tmp_path)
    assert done.returncode == 0 and (tmp_path / "out.jsonl").is_file(), done.stderr


def test_a_part_without_its_package_names_the_extra(tmp_path: Path) -> None:
    done = without("wandb", "trace_bench.__main__", [*QUICK, "tracker=wandb"], tmp_path)
    named = ("pip install", "wandb]", "`tracker`")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("launcher", ["submitit_slurm"])
def test_a_launcher_without_its_package_names_the_extra(launcher: str, tmp_path: Path) -> None:
    """A third-party package `hydra_plugins` hides those that are installed."""
    (tmp_path / "other" / "hydra_plugins").mkdir(parents=True)
    (tmp_path / "other" / "hydra_plugins" / "__init__.py").write_text("")
    paths = os.pathsep.join([str(tmp_path / "other"), str(ROOT)])
    command = [sys.executable, "-m", "trace_bench", "-m", f"hydra/launcher={launcher}", *QUICK]
    done = started(command, tmp_path, PYTHONPATH=paths)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"hydra/launcher={launcher}" in done.stderr and ".[launchers]" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def read_only(place: Path, command: Sequence[str], working: Path) -> Done:
    """A command in a mount namespace of its own in which the place cannot be written."""
    wall = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(place)]
    if shutil.which("unshare") is None or started([*wall, "true"], working).returncode:
        pytest.skip("this machine lets nobody mount a folder read-only")
    return started([*wall, *command], working)


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def test_nothing_is_written_to_a_read_only_place(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    run = tmp_path / "closed" / "run"
    done = read_only(tmp_path / "closed", module("trace_bench", *QUICK, f"run_dir={run}"), tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in (str(run), "Read-only file system", "`run_dir`"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "closed"]


LOOKS: dict[str, Callable[[Path], list[str]]] = {
    "run": lambda run: module("trace_bench", *QUICK, f"run_dir={run}"),
    "show": lambda run: module("trace_bench.show", str(run)),
    "collect": lambda run: module("trace_bench.results", "collect", str(run), "--out", "out"),
    "export": lambda run: module("trace_bench.results", "export", str(run), "--out", "out"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_finished_run_can_be_looked_at_where_nothing_can_be_written(
    look: str, finished: Path, tmp_path: Path
) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    done = read_only(finished, LOOKS[look](finished / "run"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before
    if look == "run":
        assert f"run: {finished / 'run'}" in done.stdout and "stored result" in done.stderr


def test_the_parent_of_a_clone_as_the_working_folder(tmp_path: Path) -> None:
    """A folder of the package's name lies in the way there, which is no package. An editable
    install finds the package all the same: it adds the checkout to the path, as a plain line."""
    clone = tmp_path / "trace_bench"
    clone.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copyfile(ROOT / name, clone / name)
    for name in ("trace_bench", "conf"):
        (clone / name).symlink_to(ROOT / name)
    build = (
        "import zipfile\nfrom setuptools import build_meta\n"
        "zipfile.ZipFile(build_meta.build_editable('.')).extractall('../installed')"
    )
    done = started([sys.executable, "-c", build], clone)
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "installed").glob("__editable__*.pth")
    assert Path(line.read_text().strip()).samefile(clone)
    look = (
        "import sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        "from trace_bench.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", look, *QUICK, "dry_run=true"]
    done = started(command, tmp_path, PYTHONPATH=line.read_text().strip())
    assert done.returncode == 0 and "plan: method=base" in done.stdout, done.stderr
