"""What trainer=verl will do, and what it refuses, without verl: iterations, seeds, settings."""

from __future__ import annotations

import socket
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import verl_job as jobs
from verl_job import spec

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task, to_json
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import identity, parts_of, plain
from trace_bench.trainers.course import Course
from trace_bench.trainers.local import TrainerSettings
from trace_bench.trainers.verl.compose import environment, overrides
from trace_bench.trainers.verl.preflight import _roles, preflight
from trace_bench.trainers.verl.settings import VerlSettings, full_iterations
from trace_bench.trainers.verl.spec import JobSpec

ITERATIONS = [
    (127, {}, (3, 4)),
    (32, {}, (1, 4)),
    (31, {}, (1, 3)),
    (16, {}, (1, 2)),
    (31, {"gpus": 16}, (1, 2)),  # three groups of eight cannot be shared by sixteen
    (31, {"minibatches": 2}, (1, 2)),
    (15, {}, "has 15 rollouts and needs at least 16"),
    (31, {"gpus": 32}, "needs at least 32"),
]


@pytest.mark.parametrize(("rollouts", "settings", "expected"), ITERATIONS)
def test_iterations_are_all_alike(rollouts: int, settings: dict[str, Any], expected: Any) -> None:
    if isinstance(expected, tuple):
        assert full_iterations(rollouts, VerlSettings(**settings), "grpo") == expected
        return
    with pytest.raises(UserError, match=expected):
        full_iterations(rollouts, VerlSettings(**settings), "grpo")


def test_calls_and_seeds_are_those_of_the_lab(tmp_path: Path) -> None:
    """The tasks, calls and seeds of all episodes, as trainer=local would play them."""
    tasks = [Task(str(n), "e", "train", n) for n in range(5)]
    s = spec(job_seed=7)
    s.write(tmp_path)
    ours, local = s.course(tasks), Course(tasks, TrainerSettings(groups=4), 7, 96, "grpo")
    for iteration in range(3):
        assert ours.begin() == local.begin() and ours.rate() == local.rate()
        call = JobSpec.read(tmp_path).call(iteration)
        assert s.when(call) == (iteration, 0) and s.when(f"{call}/again2") == (iteration, 2)
        for course in (ours, local):
            course.played([tasks[0]] * 4, [0.0] * 32)
    assert not ours.iterations_left()
    assert s.episode_seed(s.call(1), 8) == stable_seed(5, "train/grpo/iter0001", 8)
    assert {s.when(other) for other in ("validate/grpo/0001", "train/grpo2/iter0001")} == {(-1, 0)}


def test_a_job_takes_what_the_run_has(tmp_path: Path) -> None:
    chosen = jobs.settings("budget=100", "trainer.gpus=2")
    lab = jobs.make_lab(tmp_path, chosen)
    trainer: Any = lab.trainer
    tasks = list(lab.suite.tasks("train"))[:6]
    job = trainer.spec(jobs.job("grpo", chosen, tasks), lab)
    lab.close()
    assert (job.iterations, job.groups, job.seed) == (3, 4, chosen.seed)
    assert job.context == 1024 and job.settings["trainer"]["name"] == "verl"


def test_where_it_runs_is_not_what_it_is() -> None:
    """A run may move to another cluster in the middle; the recipe may not change."""

    def of(*more: str) -> dict[str, Any]:
        chosen = jobs.settings(*more)
        return identity(chosen, parts_of(chosen))

    one = of("trainer.workers=1")
    assert one == of("trainer.workers=4", "trainer.ray_address=10.0.0.1:6379")
    assert one != of("trainer.epochs=1")


FIXED = [
    "actor_rollout_ref.rollout.n=2",
    "++data.train_batch_size=64",
    "~trainer.total_epochs",
    "algorithm.filter_groups.enable=true",
    "algorithm.norm_adv_by_std_in_grpo=false",
    "actor_rollout_ref.actor.clip_ratio_high=0.4",
    "actor_rollout_ref.rollout={n: 4}",
]


@pytest.mark.parametrize("line", FIXED)
def test_what_the_ledger_rests_on_is_not_verls_to_change(line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which the other settings of `trainer` decide"):
        overrides(spec(trainer=VerlSettings(device="cpu", verl=(line,))), tmp_path)


def test_settings_in_hydras_notation(tmp_path: Path) -> None:
    odd = tmp_path / "it's a, folder = here"
    odd.mkdir()
    balanced = VerlSettings(device="cpu", verl=("trainer.balance_batch=false",))
    s = spec(agent=AgentSpec("a'b"), trainer=balanced)
    s.write(odd)
    assert JobSpec.read(odd) == s
    lines = overrides(s, odd)
    assert lines[-1] == "trainer.balance_batch=false"
    assert "actor_rollout_ref.model.path='a\\'b'" in lines
    assert "actor_rollout_ref.rollout.n=8" in lines and "data.train_batch_size=4" in lines
    assert "trainer.total_training_steps=3" in lines
    s = replace(s, trainer=VerlSettings(gpus=8, tensor_parallel=2))
    on_gpu = overrides(s, odd)
    assert "actor_rollout_ref.rollout.name=vllm" in on_gpu
    assert "VERL_PLATFORM" not in environment(s, odd) and not any("cpu" in x for x in on_gpu)


REFUSALS = [
    ({}, {}, "needs the package verl 0.9.1, and none is installed"),
    ({"verl": "0.8.0"}, {}, "and 0.8.0 is installed"),
    ({"verl": "0.9.1", "transformers": "5.24.0"}, {}, "below 5.11, and 5.24.0 is installed"),
    ({"verl": "0.9.1"}, {"device": "cuda"}, "samples with vLLM, which is not installed"),
    ({}, {"alpha": 0.5}, "trainer.alpha=0.5; verl takes whole numbers"),
    ({}, {"minibatches": 3}, "shared evenly by trainer.minibatches=3"),
    ({}, {"gpus": 5}, "trainer.minibatches=1 optimizer steps and 5 processes"),
    ({}, {"gpus": 4, "tensor_parallel": 3}, "does not divide 4 GPUs"),
    ({"verl": "0.9.1"}, {"nnodes": 2}, "trainer.nnodes=2 needs a running Ray cluster"),
    ({"verl": "0.9.1"}, {"ray_address": "here"}, "ray_address=here is not allowed"),
    (
        {"verl": "0.9.1", "vllm": "0.24.0"},
        {"device": "cuda", "gpus": 16, "groups": 8},
        "trainer.gpus=16, and this machine has",
    ),
    ({"verl": "0.9.1"}, {"target_modules": ("q_proj", "w_proj")}, "unknown LoRA target 'w_proj'"),
]


@pytest.mark.parametrize(("versions", "settings", "said"), REFUSALS)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch, small_model: Path, versions: dict, settings: dict, said: str
) -> None:
    """Versions are looked up where pip keeps them; here they are made up."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        trainer = VerlSettings(**{"device": "cpu", **settings})
        preflight(spec(trainer=trainer, agent=AgentSpec(str(small_model))))


def test_the_context_of_a_served_agent_must_be_stated() -> None:
    chosen = jobs.settings(
        "policy=openai", "model=served", "model.name=m", "policy.base_url=http://x"
    )
    with pytest.raises(UserError, match=r"Set policy\.context to the servers' limit"):
        parts_of(chosen)["trainer"].make(jobs.facts(chosen)).preflight(new=True)


def test_what_only_a_trainer_in_this_process_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*jobs.CPU, "method=sft"]) == 2
    said = capsys.readouterr().err
    assert "method=sft needs `Trainer.learner`" in said and "`trainer`, and verl" in said
    with pytest.raises(UserError, match=r"unknown key 'trainer\.memory'"):
        jobs.settings("+trainer.memory=3")


# -- several machines -----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["http://localhost:8000/v1", "http://127.0.0.1:8000/v1"])
def test_a_role_at_each_machines_own_address(
    monkeypatch: pytest.MonkeyPatch, address: str, small_model: Path
) -> None:
    monkeypatch.setattr("trace_bench.trainers.verl.preflight.CHECKS", (_roles,))

    def check(nnodes: int, url: str) -> None:
        chosen = jobs.settings("llm.user.by=endpoint", f"llm.shared.base_url=[{url}]")
        trainer = VerlSettings(device="cpu", nnodes=nnodes)
        agent = AgentSpec(str(small_model))
        preflight(spec(agent=agent, trainer=trainer, settings=to_json(chosen)), whole=False)

    check(1, address)
    check(2, "http://10.0.0.7:8000/v1")
    with pytest.raises(UserError, match=r"ask the user at .*Set llm\.user\.base_url"):
        check(2, address)


def test_a_dead_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"verl": "0.9.1"}.get)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(UserError, match="no Ray cluster answers"):
        preflight(spec(trainer=VerlSettings(device="cpu", ray_address=dead)))


def test_other_machines_are_told_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    monkeypatch.setenv("HF_TOKEN", "hf-planted")
    monkeypatch.setenv("MY_KEY", "sk-planted")
    paper = spec(settings=plain(compose(["experiment=paper_tau2", "llm.shared.key_env=MY_KEY"])))
    variables = environment(paper, tmp_path)
    assert variables["HF_ENDPOINT"] == "https://hub.example" and "planted" not in str(variables)
    model = jobs.base(jobs.settings())  # in a folder: nothing is read from a hub
    assert "HF_ENDPOINT" not in environment(spec(agent=model), tmp_path)
