"""Many runs at once by Hydra's launchers: real processes, and errors that come back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trace_bench.__main__ import main
from trace_bench.settings.choices import conf_dir

JOBS = ["-m", "method=base", "policy=idle,reference", "evaluation.limit=3"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = str(conf_dir().parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.slow
def test_joblib_runs_side_by_side(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="not installed")
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert main([*JOBS, *launcher]) == 0
    assert len(list(place.glob("runs/toolsandbox/base/*/summary.json"))) == 2
    assert main([*JOBS, *launcher, "env.train_tasks=9999"]) == 2
    assert "env.train_tasks=9999 is more than the split train has" in capfd.readouterr().err


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "submitit_slurm"])
def test_every_launcher_composes(launcher: str) -> None:
    package = "joblib" if launcher == "joblib" else "submitit"
    pytest.importorskip(f"hydra_plugins.hydra_{package}_launcher", reason="not installed")
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", [f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert package in cfg.hydra.launcher._target_ and cfg.budget == 640
