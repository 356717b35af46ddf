"""Every kind of part of one's own, from outside the package and without an edit: in a file of the
working folder, and as entry points of an installed package. The parts are those of the pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import forked, forked_in
from pages import lay_out

DESK = ["env=custom", "env.factory=desk:Suite", "env.options.size=16", "checkpoints=[]"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    lay_out(tmp_path)
    return tmp_path


def summary_in(folder: Path) -> dict:
    """Of the one run in the folder."""
    (path,) = folder.glob("runs/**/summary.json")
    return {**json.loads(path.read_text()), "folder": path.parent}


def test_an_environment_from_the_page_keeps_the_contract(here: Path) -> None:
    command = ("trace_bench.check", "env.factory=bell:Suite")
    code, said = forked_in(here, *command, "env.options.most=9")
    assert code == 0 and "bell/own train, sandbox=inline: 16 tasks" in said, said
    # Another length: bytecode is known by its source's size and second.
    broken = (here / "bell.py").read_text().replace("self.rung = task", "self.rung_up = task")
    (here / "bell.py").write_text(broken)
    code, said = forked_in(here, *command)
    assert code == 1 and "AttributeError" in said and "FAILED" in said, said


def test_a_policy_in_a_file(here: Path) -> None:
    policy = ["policy=custom", "policy.factory=my_policy:Patient"]
    code, said = forked_in(here, "trace_bench", "method=base", *policy, *DESK)
    assert code == 0, said
    summary = summary_in(here)
    assert summary["score"]["success"] == 1.0 and summary["score"]["failures"] == 0
    assert summary["origins"]["policy"]["attribute"] == "Patient"
    code, said = forked_in(here, "trace_bench", "method=grpo", *policy, *DESK, "seed=1")
    assert code == 2 and said.startswith("error: policy=my_policy:Patient is scripted and cannot")


# -- installed ------------------------------------------------------------------------------------

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "guest-parts"
version = "4.5.6"

[tool.setuptools]
py-modules = ["desk", "warm_up", "my_trainer", "my_policy", "my_tracker", "small"]

[project.entry-points."trace_bench.suites"]
desk = "desk:Suite"
[project.entry-points."trace_bench.methods"]
warm_up = "warm_up:WarmUp"
[project.entry-points."trace_bench.trainers"]
search = "my_trainer:RandomSearch"
[project.entry-points."trace_bench.policies"]
patient = "my_policy:Patient"
[project.entry-points."trace_bench.trackers"]
csv = "my_tracker:Csv"
[project.entry-points."trace_bench.models"]
small = "small:weights"
"""
WEIGHTS = """
from trace_bench.tiny import MODEL_FOLDER

def weights(size: str = "tiny") -> str:
    return str(MODEL_FOLDER)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third-party package, installed by pip into a folder."""
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    lay_out(project)
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "small.py").write_text(WEIGHTS)
    options = ["--no-index", "--no-build-isolation", "--no-deps", "--quiet", "--target", str(site)]
    command = [sys.executable, "-m", "pip", "install", *options, str(project)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(project)
    return site


@pytest.mark.slow
def test_all_kinds_as_entry_points(site: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
    words = "env=desk env.options.size=16 checkpoints=[] method=warm_up method.options.looks=1 "
    words += "trainer=search trainer.options.tries=2 tracker=csv model=small "
    words += "model.options.size=tiny budget=48"
    command = [sys.executable, "-m", "trace_bench", *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "warm_up, RandomSearch on desk" in done.stdout, done.stderr
    summary = summary_in(tmp_path)
    assert summary["folder"].relative_to(tmp_path).parts[:3] == ("runs", "desk", "warm_up")
    assert set(summary["origins"]) == {"env", "method", "trainer", "tracker", "model"}
    assert {origin["version"] for origin in summary["origins"].values()} == {"4.5.6"}
    assert (summary["folder"] / "metrics.csv").is_file()


@pytest.mark.slow
def test_wrong_names_and_settings_are_met_with_all_there_are(site: Path) -> None:
    def installed() -> None:
        sys.path.insert(0, str(site))

    for argument, words in {
        "env=dusk": "unknown env 'dusk'; allowed: babyai, bfcl, custom, desk, mcp, openenv",
        "trainer=serch": "unknown trainer 'serch'; allowed: cispo, custom, dapo, dr_grpo, "
        "gigpo, gspo, local, reinforce_pp, rloo, search",
        "trainer=search trainer.options.tris=2": "unknown key 'trainer.options.tris'; allowed: ",
        "trainer=search trainer.options.tries=two": "tries='two' is not allowed; allowed",
    }.items():
        code, said = forked("trace_bench", *argument.split(), prepare=installed)
        assert code == 2 and words in said, said
        assert said.startswith("error: ") and said.count("\n") == 1
