"""What verl's processes read and write: begun with, read while it is written, after a kill."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from verl_job import spec

import trace_bench as tb
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, TrainingJob
from trace_bench.core.store import read_lines
from trace_bench.core.types import Boundary, Failure, to_json
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.loading import load_model
from trace_bench.trainers.adapters import begin_with, fresh, insert, restart, write_adapter
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.grpo import Mismatch, group_advantages
from trace_bench.trainers.job import start_of
from trace_bench.trainers.loop import check_finite, stepped
from trace_bench.trainers.verl.job import export
from trace_bench.trainers.verl.process import Collector, Process, VerlFailed, rewind
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.spec import MISMATCH, Arrivals, StepFiles, spec_of
from trace_bench.trainers.verl.trainer import mismatch_of, reported, steps_of

SHORT = tb.Trajectory("toy/0", 0, "base", (), (), (), tb.StopReason.DONE, None)
LATEST = "checkpoints/latest_checkpointed_iteration.txt"
LORA = {"rank": 4, "alpha": 8.0, "target_modules": LINEAR}


def lines(path: Path, *values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def episode(call: str, index: int, failed: bool = False) -> dict[str, object]:
    failure = Failure(Boundary.ENVIRONMENT, "gone") if failed else None
    return {"call": call, "index": index, "trajectory": to_json(replace(SHORT, failure=failure))}


# -- what verl begins with ------------------------------------------------------------------------


@pytest.fixture
def begun(small_model: Path, small_adapter: Path) -> tb.AgentSpec:
    start = tb.AdapterRef("sft-12@0003", str(small_adapter))
    return tb.AgentSpec(str(small_model), "start-x", adapters=(start,))


def test_the_first_iteration_is_the_agents_own_adapter(begun: tb.AgentSpec, tmp_path: Path) -> None:
    settings = VerlSettings(device="cpu", group_size=4, groups=2)
    run = RunContext(model=begun.model, context=256)
    job = spec_of(TrainingJob("grpo", begun, (), 16, 0), settings, run, (2, 2), 1)
    assert [job.version(i) for i in range(3)] == ["sft-12@0003", "grpo@0001", "grpo@0002"]
    assert job.acting(0, tmp_path) == begun
    assert job.acting(1, tmp_path).version == "start-x+grpo@0001"
    with pytest.raises(UserError, match="routes between several"):
        start_of(tb.AgentSpec("m", "v", adapters=begun.adapters * 2))


@pytest.mark.parametrize("rank", [4, 8])
def test_what_verl_starts_from_is_the_same(rank: int, begun: tb.AgentSpec, tmp_path: Path) -> None:
    (start,) = begun.adapters
    layers = fresh(begun.model, LINEAR, rank, seed=3)
    begin_with(layers, start, VerlSettings(device="cpu", rank=rank, alpha=24.0))
    lora = {"rank": rank, "alpha": 24.0, "target_modules": LINEAR}
    write_adapter(tmp_path / "start", layers, lora, begun.model)
    shapes = {name: (x.b.shape[0], x.a.shape[1]) for name, x in layers.items()}
    weights = read_adapter(tb.AdapterRef("start", str(tmp_path / "start")), shapes).weights
    for name, (a, b) in read_adapter(start, shapes).weights.items():
        torch.testing.assert_close(weights[name][1] @ weights[name][0], b @ a)
        assert weights[name][0].shape[0] == rank and bool(weights[name][0].any(1).all())
    with pytest.raises(UserError, match=r"rank 4, more than trainer\.rank=2"):
        begin_with(fresh(begun.model, LINEAR, 2, seed=3), start, VerlSettings(rank=2))


def test_both_trainers_start_from_the_same_adapter(tmp_path: Path, small_model: Path) -> None:
    loaded, _ = load_model(small_model)
    layers = insert(loaded, LINEAR, 4, 8.0)
    restart(layers, 11)
    write_adapter(tmp_path / "local", layers, LORA, str(small_model))
    write_adapter(tmp_path / "verl", fresh(str(small_model), LINEAR, 4, 11), LORA, str(small_model))
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "verl" / name).read_bytes()


def test_a_checkpoint_as_an_adapter(tmp_path: Path, small_model: Path) -> None:
    """Plain tensors under verl's names; a missing rank is an error, and so is a damaged one."""
    layers = fresh(str(small_model), LINEAR, 4, 3)
    state: dict[str, torch.Tensor] = {}
    for name, pair in layers.items():
        state[f"base_model.model.{name}.lora_A.default.weight"] = pair.a
        state[f"base_model.model.{name}.lora_B.default.weight"] = pair.b + 1.0
    place = tmp_path / "checkpoints/global_step_2"
    shard = place / "actor/model_world_size_1_rank_0.pt"
    shard.parent.mkdir(parents=True)
    torch.save(state, shard)
    export(place, tmp_path / "out", LORA, str(small_model))
    shapes = {name: (x.b.shape[0], x.a.shape[1]) for name, x in layers.items()}
    adapter = read_adapter(tb.AdapterRef("x", str(tmp_path / "out")), shapes)
    assert adapter.weights.keys() == layers.keys()
    for name, (a, b) in adapter.weights.items():
        assert torch.equal(a, layers[name].a) and torch.equal(b, torch.full_like(b, 2.0))
    shard.write_text("no tensors")
    with pytest.raises(UserError, match=rf"Remove the folder {place} .* the checkpoint before"):
        export(place, tmp_path / "again", LORA, str(small_model))
    shard.rename(shard.with_name("model_world_size_2_rank_0.pt"))
    with pytest.raises(UserError, match=r"the shards of ranks \[0\], of \[2\] ranks"):
        export(place, tmp_path / "again", LORA, str(small_model))


# -- what its processes write ---------------------------------------------------------------------


def test_arrivals_are_given_once(tmp_path: Path) -> None:
    """Files that grow, a line that is being written, an episode that two processes played; and a
    damaged line, which is named."""
    one, two, three = (json.dumps(episode("c", i)) + "\n" for i in range(3))
    folder = tmp_path / "verl/episodes"
    folder.mkdir(parents=True)
    arrivals, a = Arrivals(folder), folder / "a.jsonl"
    assert list(arrivals.take("c", {0, 1})) == []
    a.write_text(one + two[:50])
    (folder / "b.jsonl").write_text(one)
    assert [i for i, _ in arrivals.take("c", {0, 1, 2})] == [0]
    assert list(arrivals.take("c", {1, 2})) == [] and arrivals.indices("c") == {0}
    with a.open("a") as file:
        file.write(two[50:] + three)
    assert list(arrivals.take("c", {1})) == [(1, SHORT)]
    assert [i for i, _ in arrivals.take("c", {2})] == [2]
    with a.open("a") as file:
        file.write('{"call": "c", "index": "0", "trajectory": {}}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 4 is corrupt.*`index` is '0'.*Remove it"):
        list(arrivals.take("c", {0}))


def test_the_latest_start_says_what_a_step_was(tmp_path: Path) -> None:
    steps = StepFiles(tmp_path / "verl")
    assert (steps.starts(), steps.saved(), steps.of(1)) == (0, 0, None)
    for start, loss in ((0, 0.5), (1, 0.25)):
        line = {"step": 1, "data": {"actor/pg_loss": loss}}
        lines(steps.folder / f"metrics-{start:03d}.jsonl", line)
    assert steps.of(1) == {"actor/pg_loss": 0.25}
    (steps.folder / "metrics-000.jsonl").unlink()
    assert steps.starts() == 2, "they are numbered by what is there"
    lines(steps.folder / "metrics-001.jsonl", {"step": 1, "data": 5})
    with pytest.raises(UserError, match=r"metrics-001\.jsonl, line 1 .*metrics of that step"):
        steps.of(1)


def test_a_file_of_verl_that_a_kill_left_empty(tmp_path: Path) -> None:
    steps, latest = StepFiles(tmp_path), tmp_path / LATEST
    steps.repair()
    for step in (1, 2):
        lines(tmp_path / f"checkpoints/global_step_{step}/data.pt")
    (tmp_path / "checkpoints/global_step_3").mkdir()
    latest.write_text("")
    steps.repair()
    assert steps.saved() == 2
    shutil.rmtree(tmp_path / "checkpoints/global_step_2")  # a damaged one, removed by hand
    steps.repair()
    assert steps.saved() == 1
    (tmp_path / "checkpoints/global_step_1/data.pt").unlink()
    steps.repair()
    assert not latest.exists() and steps.saved() == 0


def test_a_job_goes_back_to_the_start_of_an_iteration(tmp_path: Path) -> None:
    """verl has learned from what was left of the second iteration, saved that, and gone on."""
    job, folder = spec(), tmp_path / "grpo/verl"
    one, two, three = (job.call(i) for i in range(3))
    kept = [episode(one, 0, failed=True), episode(two, 0), episode(two, 1, failed=True)]
    gone = [episode(two, 2, failed=True), episode(f"{two}/again1", 0), episode(three, 0)]
    gone += [episode(three, 1, failed=True)]
    lines(folder / "episodes/a.jsonl", *kept, *gone)
    lines(folder / "episodes/b.jsonl", gone[3])
    lines(folder / "metrics-000.jsonl", *({"step": n, "data": {}} for n in (1, 2)))
    latest = folder / LATEST
    for step in (1, 2, 3):
        lines(folder / f"checkpoints/global_step_{step}/data.pt")
        lines(tmp_path / f"grpo/{step:04d}/adapter_config.json")
    latest.write_text("2")
    for expected in (4, 0):  # what was cut off is completed by the same call
        assert rewind(folder, job, two, {2, 3}) == expected
        assert latest.read_text() == "1" and StepFiles(folder).saved() == 1
        assert [p.name for p in folder.glob("checkpoints/global*")] == ["global_step_1"]
        assert [p.name for p in tmp_path.glob("grpo/0*")] == ["0001"]
        assert read_lines(folder / "episodes/a.jsonl") == kept
        assert read_lines(folder / "episodes/b.jsonl") == []
        assert [x["step"] for x in read_lines(folder / "metrics-000.jsonl")] == [1]
    assert rewind(folder, job, one, {0}) == 2
    assert not latest.exists() and read_lines(folder / "episodes/a.jsonl") == []


def test_episodes_that_the_ledger_has_and_verl_has_not(tmp_path: Path) -> None:
    """verl would play others, and learn from those."""
    job = spec(groups=1, trainer=VerlSettings(group_size=2))
    process = Process(tmp_path, job, print)
    collector = Collector(process, Arrivals(tmp_path / "episodes"), job.call(0), 2)
    lines(tmp_path / "episodes/a.jsonl", episode(job.call(0), 1))
    collector.check_kept({1})
    with pytest.raises(UserError, match=r"lacks 1 of the 2 episodes of 'train/grpo/iter0000' that"):
        collector.check_kept({0, 1})
    with pytest.raises(UserError, match="lacks 1 of the 1 episodes"):
        collector([1], lambda index, trajectory: None)
    lines(tmp_path / "checkpoints/global_step_1/data.pt")
    (tmp_path / LATEST).write_text("1")
    collector.check_kept({0, 1})


# -- what verl says -------------------------------------------------------------------------------


def test_a_job_that_fails_too_often_says_where_it_goes_on(tmp_path: Path) -> None:
    """verl is a process that fails, once."""
    process = Process(tmp_path, spec(trainer=VerlSettings(restarts=0)), print)
    process._child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    process._child.wait()
    with pytest.raises(VerlFailed, match=r"(?s)exit code 1.* the last checkpoint in .*checkpoints"):
        process.watch()


def test_a_step_of_which_nothing_was_logged(tmp_path: Path) -> None:
    """verl was killed between keeping a checkpoint and logging the step: nobody waits for that."""
    process = Process(tmp_path, spec(), print, resumed=2)
    assert [reported(step, process) for step in (1, 2, 3)] == [{}, {}, None]
    lines(tmp_path / "metrics-000.jsonl", {"step": 3, "data": {"actor/pg_loss": 0.5}})
    assert reported(3, process) == {"actor/pg_loss": 0.5}
    process.watch()  # nothing runs, and nothing has been missing for long
    process._progress -= 1000
    with pytest.raises(VerlFailed, match="verl has ended, but something is missing"):
        process.watch()


def test_what_verl_says_of_its_steps() -> None:
    rewards = torch.tensor([0.0, 1.0, 0.5, 0.5])
    lesson = group_advantages(rewards, torch.tensor([0, 0, 1, 1]))
    none = group_advantages(rewards, torch.tensor([0, 1, 2, 2]))
    assert steps_of({"actor/trace_bench_steps_max": 2.0}, lesson) == 2
    assert steps_of({"actor/trace_bench_steps_max": 0.0}, lesson) == 0
    assert steps_of({}, none) == 0, "verl was killed before it could say so"
    assert steps_of({}, lesson) is None
    assert stepped([{"steps": 0}, {"steps": None}]) and not stepped([{"steps": 0}])
    said = dict(zip(MISMATCH, (0.5, 2.0, 0.25), strict=True))
    assert mismatch_of(said) == Mismatch(0.5, 2.0, 0.25) and mismatch_of({}) is None
    check_finite("here", None)
    with pytest.raises(UserError, match=r"here: loss or gradient .* `trainer\.learning_rate`"):
        check_finite("here", float("nan"))
