"""What verl's processes write, read while they write it, and after they were killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models import save_model
from playing import play
from toy import ToySuite, toy_task
from verl_job import spec

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import (
    AdapterRef,
    AgentSpec,
    Boundary,
    Failure,
    StopReason,
    Trajectory,
    to_json,
)
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.loading import load_model
from trace_bench.policies.local import backend_of
from trace_bench.policies.scripted import RandomPolicy
from trace_bench.trainers.adapters import fresh, insert, restart, write_adapter
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.grpo import Mismatch, group_advantages
from trace_bench.trainers.loop import stepped
from trace_bench.trainers.record import check_finite
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.job import export
from trace_bench.trainers.verl.process import Collector, Process, VerlFailed, rewind
from trace_bench.trainers.verl.spec import MISMATCH, Arrivals, StepFiles
from trace_bench.trainers.verl.trainer import mismatch_of, reported, steps_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("files") / "model")


def test_arrivals_are_given_once(tmp_path: Path) -> None:
    """Files that grow, a line that is being written, an episode that two processes played."""
    tasks = [toy_task(i) for i in range(3)]
    played = play(RandomPolicy(), ToySuite(), AgentSpec("random"), tasks, [1, 2, 3])
    whole = [to_json(t) for t in played]
    line = [
        json.dumps({"call": "c", "index": i, "trajectory": t}) + "\n" for i, t in enumerate(whole)
    ]
    arrivals = Arrivals(tmp_path)
    assert list(arrivals.take("c", {0, 1})) == []
    (tmp_path / "a.jsonl").write_text(line[0] + line[1][:50])
    (tmp_path / "b.jsonl").write_text(line[0])
    assert [i for i, _ in arrivals.take("c", {0, 1, 2})] == [0]
    assert list(arrivals.take("c", {1, 2})) == []
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(line[1][50:] + line[2])
    got = dict(arrivals.take("c", {1}))
    assert list(got) == [1] and to_json(got[1]) == whole[1]
    assert [i for i, _ in arrivals.take("c", {2})] == [2]


def test_the_latest_start_says_what_a_step_was(tmp_path: Path) -> None:
    steps = StepFiles(tmp_path)
    assert (steps.starts(), steps.saved(), steps.of(1)) == (0, 0, None)
    for start, loss in ((0, 0.5), (1, 0.25)):
        line = {"step": 1, "data": {"actor/pg_loss": loss}}
        (tmp_path / f"metrics-{start:03d}.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    data = steps.of(1)
    assert data is not None and data["actor/pg_loss"] == 0.25
    assert (steps.starts(), steps.saved()) == (2, 4)
    (tmp_path / "metrics-000.jsonl").unlink()
    assert steps.starts() == 2, "they are numbered by what is there"


def test_a_file_of_verl_that_a_kill_left_empty(tmp_path: Path) -> None:
    steps = StepFiles(tmp_path)
    steps.repair()
    for step, whole in ((1, True), (2, True), (3, False)):
        folder = tmp_path / "checkpoints" / f"global_step_{step}"
        folder.mkdir(parents=True)
        if whole:
            (folder / "data.pt").write_text("")
    latest = tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt"
    latest.write_text("")
    steps.repair()
    assert steps.saved() == 2
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"global_step_{step}" / "data.pt").unlink()
    latest.write_text("")
    steps.repair()
    assert not latest.exists() and steps.saved() == 0


SHORT = Trajectory("toy/0", 0, "base", (), (), (), StopReason.DONE, None)


def lines(path: Path, *values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def test_a_job_goes_back_to_the_start_of_an_iteration(tmp_path: Path) -> None:
    """verl has learned from what was left of the second iteration, saved that, and gone on."""

    def episode(call: str, index: int, failed: bool = False) -> dict[str, object]:
        failure = Failure(Boundary.ENVIRONMENT, "gone") if failed else None
        return {
            "call": call,
            "index": index,
            "trajectory": to_json(replace(SHORT, failure=failure)),
        }

    job, folder = spec(), tmp_path / "grpo/verl"
    one, two, three = (job.call(i) for i in range(3))
    kept = [episode(one, 0, failed=True), episode(two, 0), episode(two, 1, failed=True)]
    gone = [episode(two, 2, failed=True), episode(f"{two}/again1", 0), episode(three, 0)]
    gone += [episode(three, 1, failed=True)]
    lines(folder / "episodes/a.jsonl", *kept, *gone)
    lines(folder / "episodes/b.jsonl", gone[3])
    lines(folder / "metrics-000.jsonl", *({"step": n, "data": {}} for n in (1, 2)))
    latest = folder / "checkpoints/latest_checkpointed_iteration.txt"
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
    assert not latest.exists() and StepFiles(folder).saved() == 0
    assert read_lines(folder / "episodes/a.jsonl") == []


def test_a_checkpoint_as_an_adapter(tmp_path: Path, model: Path) -> None:
    """Plain tensors under verl's names; a missing rank is an error."""
    layers = fresh(str(model), LINEAR, 4, 3)
    state: dict[str, torch.Tensor] = {}
    for name, pair in layers.items():
        state[f"base_model.model.{name}.lora_A.default.weight"] = pair.a
        state[f"base_model.model.{name}.lora_B.default.weight"] = pair.b + 1.0
    actor = tmp_path / "actor"
    actor.mkdir()
    torch.save(state, actor / "model_world_size_1_rank_0.pt")
    lora = {"rank": 4, "alpha": 8.0, "target_modules": LINEAR}
    export(tmp_path, tmp_path / "out", lora, str(model))
    loaded, _ = load_model(model)
    shapes = backend_of(loaded, 2, 64).shapes
    adapter = read_adapter(AdapterRef("x", str(tmp_path / "out")), shapes)
    assert adapter.weights.keys() == layers.keys()
    for name, (a, b) in adapter.weights.items():
        assert torch.equal(a, layers[name].a) and torch.equal(b, torch.full_like(b, 2.0))
    (actor / "model_world_size_1_rank_0.pt").rename(actor / "model_world_size_2_rank_0.pt")
    with pytest.raises(UserError, match=r"the shards of ranks \[0\], of \[2\] ranks"):
        export(tmp_path, tmp_path / "again", lora, str(model))


def test_both_trainers_start_from_the_same_adapter(tmp_path: Path, model: Path) -> None:
    loaded, _ = load_model(model)
    layers = insert(loaded, LINEAR, 4, 8.0)
    restart(layers, 11)
    lora = {"rank": 4, "alpha": 8.0, "target_modules": LINEAR}
    write_adapter(tmp_path / "local", layers, lora, str(model))
    write_adapter(tmp_path / "verl", fresh(str(model), LINEAR, 4, 11), lora, str(model))
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "verl" / name).read_bytes()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", r"`it` is \[1\]; allowed: object"),
        (
            '{"call": "c", "index": "0", "trajectory": {}}',
            "`index` is '0'; allowed: a whole",
        ),
        ('{"call": "c", "index": 0}', "`trajectory` is missing"),
        (
            '{"call": "c", "index": 0, "trajectory": {"turns": 1}}',
            "`trajectory.turns` is 1",
        ),
        ("\x00\x00", "Expecting value"),
    ],
)
def test_a_damaged_episode_of_a_worker_is_named(tmp_path: Path, text: str, why: str) -> None:
    """Not the line that is still being written."""
    path = tmp_path / "verl/episodes/a.jsonl"
    path.parent.mkdir(parents=True)
    fine = json.dumps({"call": "b", "index": 0, "trajectory": to_json(SHORT)})
    path.write_text(f"{fine}\n{text}")
    arrivals = Arrivals(path.parent)
    assert list(arrivals.take("c", {0})) == [] and arrivals.indices("b") == {0}
    path.write_text(f"{fine}\n{text}\n{fine}\n")
    with pytest.raises(UserError, match=why) as caught:
        list(arrivals.take("c", {0}))
    assert f"{path}, line 2 is corrupt" in str(caught.value)
    assert "Remove it and run the same command again" in str(caught.value)


def test_damaged_metrics_and_checkpoints_are_named(tmp_path: Path, model: Path) -> None:
    steps = StepFiles(tmp_path / "verl")
    lines(steps.folder / "metrics-000.jsonl", {"step": 1, "data": 5})
    with pytest.raises(
        UserError, match=r"metrics-000\.jsonl, line 1 .*the metrics of that step are"
    ):
        steps.of(1)
    lora = {"rank": 4, "alpha": 8.0, "target_modules": LINEAR}
    for step in (1, 2):
        lines(steps.folder / f"checkpoints/global_step_{step}/data.pt")
    place = steps.folder / "checkpoints/global_step_2"
    lines(place / "actor/model_world_size_1_rank_0.pt", "no tensors")
    with pytest.raises(UserError, match=rf"Remove the folder {place} .* the checkpoint before"):
        export(place, tmp_path / "out", lora, str(model))
    (place.parent / "latest_checkpointed_iteration.txt").write_text("2")
    shutil.rmtree(place)
    steps.repair()
    assert steps.saved() == 1


def test_episodes_that_the_ledger_has_and_verl_has_not(tmp_path: Path) -> None:
    """verl would play others, and learn from those."""
    job = spec(groups=1, trainer=VerlSettings(group_size=2))
    job.write(tmp_path)
    process = Process(tmp_path, job, print)
    collector = Collector(process, Arrivals(tmp_path / "episodes"), job.call(0), 2)
    line = {"call": job.call(0), "index": 1, "trajectory": to_json(SHORT)}
    lines(tmp_path / "episodes/a.jsonl", line)
    collector.check_kept({1})
    with pytest.raises(UserError, match=r"lacks 1 of the 2 episodes of 'train/grpo/iter0000' that"):
        collector.check_kept({0, 1})
    with pytest.raises(UserError, match="lacks 1 of the 1 episodes"):
        collector([1], lambda index, trajectory: None)
    lines(tmp_path / "checkpoints/global_step_1/data.pt")
    (tmp_path / "checkpoints/latest_checkpointed_iteration.txt").write_text("1")
    collector.check_kept({0, 1})


def test_a_checkpoint_that_verl_cannot_read_is_named(tmp_path: Path) -> None:
    """verl is a process that fails, once."""
    process = Process(tmp_path, spec(trainer=VerlSettings(restarts=0)), print)
    for saved in (0, 3):
        if saved:
            lines(tmp_path / f"checkpoints/global_step_{saved}/data.pt")
            (tmp_path / "checkpoints/latest_checkpointed_iteration.txt").write_text(str(saved))
        process._child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
        process._child.wait()
        with pytest.raises(VerlFailed, match=r"(?s)exit code 1.* last checkpoint\.") as caught:
            process.watch()
        named = str(tmp_path / "checkpoints/global_step_3") in str(caught.value)
        assert named is bool(saved)


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
    check_finite("here", 0.5)
    check_finite("here", None)
    with pytest.raises(UserError, match=r"here: loss or gradient .* `trainer\.learning_rate`"):
        check_finite("here", float("nan"))


def test_a_step_of_which_nothing_was_logged(tmp_path: Path) -> None:
    """verl was killed between keeping a checkpoint and logging the step: nobody waits for that."""
    said: list[str] = []
    process = Process(tmp_path, spec(), said.append, resumed=2)
    for step, expected in ((1, {}), (2, {}), (3, None)):
        assert reported(step, process) == expected
    line = {"step": 3, "data": {"actor/pg_loss": 0.5}}
    (tmp_path / "metrics-000.jsonl").write_text(json.dumps(line) + "\n")
    assert reported(3, process) == line["data"]
    process.watch()  # nothing runs, and nothing has been missing for long
    process._progress -= 1000
    with pytest.raises(VerlFailed, match="verl has ended, but something is missing"):
        process.watch()
