"""Sweep files: every command line composes; the runner runs, skips, remembers failures."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trace_bench.core.errors import UserError
from trace_bench.settings.choices import conf_dir
from trace_bench.settings.compose import compose_all
from trace_bench.settings.identity import identity, parts_of
from trace_bench.sweep import main, members, read_sweep

TIER = "model"  # it starts processes that import torch
ROOT = conf_dir().parent
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = str(ROOT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def write(place: Path, **changes: object) -> Path:
    sweep = {
        "program": "trace_bench",
        "method": "grid",
        "parameters": {
            "method": {"value": "base"},
            "policy": {"values": ["idle", "reference"]},
            "evaluation.limit": {"value": 4},
            "evaluation.split": {"value": "dev"},
            "evaluation.yardsticks": {"value": False},
        },
    }
    path = place / "small.yaml"
    path.write_text(yaml.safe_dump({**sweep, **changes}, sort_keys=False))
    return path


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_line_of_every_sweep_composes(path: Path) -> None:
    """And all lines of the smallest. Of every sweep the lines differ."""
    lines = read_sweep(path)
    assert len(set(lines)) == len(lines) > 1
    if path.name == "small.yaml":
        assert len(members(path)) == len(lines)
    compose_all([lines[-1]])


@pytest.mark.slow
def test_an_agent_of_wandb_starts_the_same_runs() -> None:
    """Its own rendering of values, and a tracker that reports to it."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    path = ROOT / "sweeps" / "wandb.yaml"
    data = yaml.safe_load(path.read_text())
    command, parameters = data["command"], data["parameters"]
    assert command[:2] == ["${env}", "python"] and command[-1] == "${args_no_hyphens}"
    assert "tracker=wandb" in command and "tracker.mode=online" in command
    choices = [p["values"] if "values" in p else [p["value"]] for p in parameters.values()]
    pairs = list(zip(itertools.product(*choices), read_sweep(path), strict=True))[::50]
    agents = []
    for values, _ in pairs:
        args = {name: {"value": value} for name, value in zip(parameters, values, strict=True)}
        rendered = utils.create_sweep_command_args({"args": args})["args_no_hyphens"]
        agents.append([*command[4:-1], *rendered])
    for one, two in zip(compose_all(agents), compose_all([o for _, o in pairs]), strict=True):
        assert identity(one, parts_of(one)) == identity(two, parts_of(two))


@pytest.mark.slow
def test_an_interrupted_sweep_starts_nothing_more(place: Path) -> None:
    """Ctrl-C as a terminal sends it: to the sweep and to what it runs."""
    path = write(place, parameters={
        "method": {"value": "base"}, "policy": {"value": "reference"},
        "seed": {"values": list(range(20))},
    })  # fmt: skip
    sweep = subprocess.Popen(
        [sys.executable, "-m", "trace_bench.sweep", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert sweep.stdout is not None
    assert "20 to run" in sweep.stdout.readline()
    assert "[1/20]" in sweep.stdout.readline()
    os.killpg(sweep.pid, signal.SIGINT)
    _, error = sweep.communicate(timeout=300)
    assert sweep.returncode == 130 and "the same command goes on" in error
    assert len(list(place.glob("runs/toolsandbox/base/*/summary.json"))) <= 2
    lines = (place / "runs" / "sweeps" / "small.jsonl").read_text().splitlines()
    assert all(json.loads(line)["code"] == 0 for line in lines)


def test_finished_runs_are_skipped_and_what_failed_stays_failed_until_it_is_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the way of one run, which stops no other."""
    path = write(place)
    broken, other = (member.folder for member in members(path))
    broken.parent.mkdir(parents=True)
    broken.write_text("a file in the way")

    def sweep(*words: str) -> tuple[int, str]:
        return main([str(path), *words]), capsys.readouterr().out

    code, said = sweep("--jobs", "2")
    assert code == 1 and "2 to run" in said and "failed with exit code 2: error: " in said
    assert (other / "summary.json").exists()
    broken.unlink()
    code, said = sweep()
    assert code == 1 and "failed before, skipped (--retry runs it again)" in said
    code, said = sweep("--retry")
    assert code == 0 and "1 finished, 1 to run" in said
    assert (broken / "summary.json").exists()
    code, said = sweep()
    assert code == 0 and "2 runs: 2 finished, 0 to run" in said


def test_one_run_named_twice_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = {"method": {"value": "base"}, "sandbox": {"values": ["inline", "process"]}}
    assert main([str(write(place, parameters=twice))]) == 2
    said = capsys.readouterr().err
    assert "method=base sandbox=inline, and method=base sandbox=process. Leave one out" in said


BAD_FILES = [
    ({"parameters": {}}, r"at least one setting"),
    ({"parameters": {"seed": {"min": 1}}}, r"parameters.seed of .* is .*allowed: `value: x`"),
    ({"parameters": {"sed": {"value": 1}}}, r"unknown key 'sed"),
    ({"parameters": {"method": {"value": "gpro"}}}, r"unknown method 'gpro'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_FILES)
def test_bad_sweep_files_are_named(place: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        members(write(place, **changes))


def test_a_file_of_more_runs_than_memory_is_refused(tmp_path: Path) -> None:
    many: dict[str, object] = {f"env.size{n}": {"values": list(range(100))} for n in range(8)}
    path = write(tmp_path, parameters=many)
    with pytest.raises(UserError, match="names 10000000000000000 runs; allowed: 10000"):
        read_sweep(path)
