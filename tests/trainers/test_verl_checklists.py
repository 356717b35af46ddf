"""method=cm2 with the real verl: its advantages are those of the episodes' checklists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from recordings import recorded, write

from trace_bench.__main__ import main
from trace_bench.checklists.rewards import Cm2Settings
from trace_bench.core.decode import convert
from trace_bench.core.protocols import TrainingJob
from trace_bench.core.store import read_lines, write_json
from trace_bench.core.types import AgentSpec, Trajectory
from trace_bench.envs.recorded.data import META
from trace_bench.trainers.grpo import credit, earned
from trace_bench.trainers.settings import Recipe

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

SIZE = 8  # rollouts of a group


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cm2")
    recordings = write(place / "recordings", recorded(16))
    write_json(recordings / META, {"made_by": {"suite": "toolsandbox/embedded"}})
    given = ["method=cm2", "method.level=turn", "method.holders=2", "env=recorded"]
    given += [f"env.folder={recordings}", "env.dev_split=real_dev", "evaluation.split=real_test"]
    given += ["evaluation.limit=4", "checkpoints=[]", "budget=32", f"run_dir={place / 'run'}"]
    given += ["trainer=verl", "trainer.device=cpu", "trainer.groups=2", "trainer.restarts=0"]
    assert main(given) == 0
    return place / "run"


def played(folder: Path, iteration: int) -> list[Trajectory]:
    lines = read_lines(folder / "trajectories.jsonl")
    own = [x for x in lines if x["call"] == f"train/cm2/iter{iteration:04d}"]
    return [convert(x["trajectory"], Trajectory) for x in sorted(own, key=lambda x: x["index"])]


def test_every_token_has_the_advantage_that_the_local_trainer_gives_it(folder: Path) -> None:
    """By what verl reports of them: largest, smallest and mean over the sampled tokens."""
    (path,) = (folder / "adapters/cm2/verl").glob("metrics-*.jsonl")
    told = {line["step"]: line["data"] for line in read_lines(path)}
    learned, recipe = 0, Recipe(group_size=SIZE)
    how = dataclasses.asdict(Cm2Settings(level="turn", holders=2))
    job = TrainingJob("cm2", AgentSpec("none"), (), 0, 0, assignment=how)
    for iteration in (0, 1):
        episodes = played(folder, iteration)
        found = credit(episodes, earned(episodes, job, recipe), job, recipe)
        assert found.tokens is not None and found.groups == 2
        tokens = torch.cat(list(found.tokens))
        learned += int(tokens.abs().max() > 0)
        for name, value in (("max", tokens.max()), ("min", tokens.min()), ("mean", tokens.mean())):
            reported = told[iteration + 1][f"critic/advantages/{name}"]
            assert reported == pytest.approx(float(value), abs=1e-5)
    assert learned


def test_the_agent_has_its_adapter(folder: Path) -> None:
    (adapter,) = (folder / "adapters/cm2").glob("0002/adapter_model.safetensors")
    assert adapter.stat().st_size > 0
