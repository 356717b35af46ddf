"""What of trainer=verl runs without verl: its plan, policy, what it reads and what it refuses."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import verl_job as jobs
from models import save_adapter, save_model
from toy import ToySuite, toy_task

from trace_bench.config import identity
from trace_bench.errors import UserError
from trace_bench.parts import check_trainer
from trace_bench.policies.engine import Engine, Order
from trace_bench.policies.local import LocalPolicy, backend_of, load_model
from trace_bench.policies.lora import read_adapter
from trace_bench.rollouts import play
from trace_bench.store import stable_seed
from trace_bench.trainers.adapters import fresh, insert, restart, write_adapter
from trace_bench.trainers.schedule import task_of_group
from trace_bench.trainers.settings import LINEAR, TrainerSettings, VerlSettings, full_iterations
from trace_bench.trainers.verl.arrivals import Arrivals, Steps
from trace_bench.trainers.verl.compose import environment, overrides
from trace_bench.trainers.verl.export import export
from trace_bench.trainers.verl.job import spec_of
from trace_bench.trainers.verl.preflight import preflight
from trace_bench.trainers.verl.spec import JobSpec, read_spec
from trace_bench.trainers.verl.tokens import Servers, ServersLost, TokenPolicy
from trace_bench.types import AdapterRef, AgentSpec, Trajectory

INSTALLED = {d.metadata["Name"] for d in metadata.distributions()}


def spec(**changes: Any) -> JobSpec:
    plain: dict[str, Any] = {
        "name": "grpo",
        "run": "r",
        "seed": 5,
        "reward": "similarity",
        "model": "nowhere",
        "agent": {"model": "nowhere", "adapters": ()},
        "trainer": {},
        "settings": {},
        "suites": "nowhere:nothing",
        "iterations": 3,
        "groups": 4,
        "group_size": 8,
        "decay": "linear",
        "context": 512,
        "deadline": 60.0,
        "max_turns": 20,
        "max_tokens": 24,
    }
    return JobSpec(**{**plain, **changes})


# -- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rollouts", "expected"),
    [(96, (3, 4)), (127, (3, 4)), (32, (1, 4)), (31, (1, 3)), (16, (1, 2))],
)
def test_iterations_are_all_alike(rollouts: int, expected: tuple[int, int]) -> None:
    assert full_iterations(rollouts, VerlSettings(), "grpo") == expected


def test_too_few_rollouts() -> None:
    with pytest.raises(UserError, match="has 15 rollouts and needs at least 16"):
        full_iterations(15, VerlSettings(), "grpo")


def test_a_small_job_is_still_shared_evenly() -> None:
    """Three groups of eight cannot be shared by sixteen processes, two can."""
    assert full_iterations(31, VerlSettings(gpus=16), "grpo") == (1, 2)
    assert full_iterations(31, VerlSettings(minibatches=2), "grpo") == (1, 2)
    with pytest.raises(UserError, match="needs at least 32"):
        full_iterations(31, VerlSettings(gpus=32), "grpo")


def test_places_and_seeds_are_those_of_the_lab(tmp_path: Path) -> None:
    """Iteration, index and seed of every episode, as trainer=local would play them."""
    s = spec()
    places = [s.place(group, member) for group in range(12) for member in range(8)]
    assert places == [(f"train/grpo/iter{i:04d}", n) for i in range(3) for n in range(32)]
    assert s.episode_seed(*places[40]) == stable_seed(5, "train/grpo/iter0001", 8)
    assert [s.rate(i) for i in range(3)] == pytest.approx([1, 2 / 3, 1 / 3])
    s.write(tmp_path)
    assert read_spec(tmp_path).place(5, 2) == s.place(5, 2)


def test_a_job_takes_what_the_run_has(tmp_path: Path) -> None:
    chosen = jobs.settings("budget=100", "trainer.gpus=2")
    lab = jobs.make_lab(tmp_path, chosen)
    tasks = list(lab.suite.tasks("train"))[:6]
    trainer: Any = lab.trainer
    made = spec_of(jobs.job("grpo", chosen, tasks), lab, trainer.settings, trainer.facts)
    lab.close()
    assert (made.iterations, made.groups, made.seed) == (3, 4, chosen.seed)
    assert made.context == 1024 and made.settings["trainer"]["name"] == "verl"
    assert task_of_group(0, tasks, 7) in tasks


def test_where_it_runs_is_not_what_it_is() -> None:
    """A run may move to another cluster in the middle; the recipe may not change."""
    one = identity(jobs.settings("trainer.workers=1"))
    assert one == identity(jobs.settings("trainer.workers=4", "trainer.ray_address=10.0.0.1:6379"))
    assert one != identity(jobs.settings("trainer.epochs=1"))


def test_settings_in_hydras_notation(tmp_path: Path) -> None:
    odd = tmp_path / "it's a, folder = here"
    odd.mkdir()
    s = replace(spec(), model="a'b")
    s.write(odd)
    given = overrides(s, VerlSettings(device="cpu", verl=("trainer.balance_batch=false",)), odd)
    assert given[-1] == "trainer.balance_batch=false"
    assert "actor_rollout_ref.model.path='a\\'b'" in given
    assert "actor_rollout_ref.rollout.n=8" in given and "data.train_batch_size=4" in given
    assert "trainer.total_training_steps=3" in given
    on_gpu = overrides(s, VerlSettings(gpus=8, tensor_parallel=2), odd)
    assert "actor_rollout_ref.rollout.name='vllm'" in on_gpu
    assert "actor_rollout_ref.rollout.layered_summon=true" in on_gpu
    assert not any("cpu" in line for line in on_gpu)
    assert "VERL_PLATFORM" not in environment(s, VerlSettings(), odd)


# -- the policy: tokens in, tokens out ------------------------------------------------------------


class TokenServer:
    """A server as verl's, in this process: this project's engine behind an asyncio loop."""

    def __init__(self, model: Path, adapter: AdapterRef | None, version: int) -> None:
        loaded, tokenizer = load_model(model)
        self.backend = backend_of(loaded, 4, 512)
        self.engine = Engine(self.backend, 4, 512, tokenizer.eos_token_id)
        self.adapter, self.version, self.count = adapter, version, 0
        if adapter is not None:
            self.backend.add(read_adapter(adapter, self.backend.shapes))
        self.tokenizer = tokenizer
        self.broken: Exception | None = None
        self.delay = 0.0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def generate(
        self, request: str, *, prompt_ids: list[int], sampling_params: Mapping[str, Any]
    ) -> Any:
        await asyncio.sleep(self.delay)
        if self.broken is not None:
            raise self.broken
        self.count += 1
        name = self.adapter.name if self.adapter else None
        self.engine.submit(
            Order(
                self.count,
                prompt_ids,
                name,
                sampling_params["seed"],
                sampling_params["temperature"],
                sampling_params["max_tokens"],
            )
        )
        while not (done := self.engine.step()):
            pass
        self.engine.release(self.count)
        return SimpleNamespace(
            token_ids=list(done[0].ids),
            log_probs=list(done[0].logprobs),
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    def policy(self, deadline: float = 60.0, context: int = 512) -> TokenPolicy:
        from trace_bench.policies.chat import Chat

        servers = Servers(
            self.generate, self.loop, spec().version, context, deadline, True, {"top_p": 1}
        )
        return TokenPolicy(Chat(self.tokenizer, "m"), servers, 12)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AgentSpec]:
    folder = tmp_path_factory.mktemp("tokens")
    model = save_model(folder / "model")
    path = save_adapter(model, folder / "grpo@0002")
    return model, AgentSpec(str(model), adapters=(AdapterRef("grpo@0002", str(path)),))


@pytest.fixture
def server(world: tuple[Path, AgentSpec]) -> Iterator[TokenServer]:
    model, agent = world
    made = TokenServer(model, agent.adapters[0], 2)
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


def played(policy: Any, agent: AgentSpec, temperature: float = 1.0) -> list[Trajectory]:
    tasks = [toy_task(i // 3, patience=2) for i in range(12)]
    return play(
        policy,
        ToySuite(),
        agent,
        tasks,
        [7_000_000_000_000 + i for i in range(12)],
        temperature=temperature,
        route=["grpo@0002"] * 12,
        max_tokens=24,
    )


def test_the_same_episodes_as_the_local_policy(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    """Token by token, with the adapter, over several turns: nothing is encoded again."""
    model, agent = world
    ours = played(server.policy(), agent)
    theirs = played(LocalPolicy(model, batch=12, context=512), agent)
    assert any(len(t.turns) > 1 for t in ours)
    for a, b in zip(ours, theirs, strict=True):
        assert [t.prompt_ids for t in a.turns] == [t.prompt_ids for t in b.turns]
        assert [t.token_ids for t in a.turns] == [t.token_ids for t in b.turns]
        assert [t.adapter for t in a.turns] == [t.adapter for t in b.turns]
        assert a.score == b.score
        for left, right in zip(a.turns, b.turns, strict=True):
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_another_version_of_the_weights_is_no_episode(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    server.version = 1
    with pytest.raises(ServersLost, match="hold 'grpo@0001' where 'grpo@0002' is to act"):
        played(server.policy(), world[1])


def test_a_server_that_refuses_fails_the_episodes(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    server.broken = ValueError("too long")
    found = played(server.policy(), world[1])
    assert {str(t.failure) for t in found} == {str(found[0].failure)}
    assert found[0].failure is not None and "too long" in found[0].failure.error
    assert found[0].failure.boundary == "policy" and found[0].score is None


def test_a_server_that_breaks_down_is_no_episode(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    server.broken = RuntimeError("the engine is dead")
    with pytest.raises(ServersLost, match="the engine is dead"):
        played(server.policy(), world[1])


def test_a_server_that_never_answers(world: tuple[Path, AgentSpec], server: TokenServer) -> None:
    server.delay = 30.0
    found = played(server.policy(deadline=0.2), world[1])
    assert all(t.failure and "no answer within 0.2 s" in t.failure.error for t in found)


def test_a_full_context_ends_the_episode(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    found = played(server.policy(context=40), world[1])
    assert {t.stop for t in found} == {"context_limit"}


# -- what verl's processes write ------------------------------------------------------------------


def test_arrivals_are_given_once(tmp_path: Path, world: tuple[Path, AgentSpec]) -> None:
    """Files that grow, a line that is being written, an episode that two processes played."""
    from trace_bench.types import to_json

    model, agent = world
    whole = [to_json(t) for t in played(LocalPolicy(model, batch=12, context=512), agent)[:3]]
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
    steps = Steps(tmp_path)
    assert (steps.starts(), steps.saved(), steps.of(1)) == (0, 0, None)
    for start, loss in ((0, 0.5), (1, 0.25)):
        line = {"step": 1, "data": {"actor/pg_loss": loss}}
        (tmp_path / f"metrics-{start:03d}.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    found = steps.of(1)
    assert found is not None and found["actor/pg_loss"] == 0.25
    assert (steps.starts(), steps.saved()) == (2, 4)


def test_a_file_of_verl_that_a_kill_left_empty(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
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


def test_starts_are_numbered_by_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "metrics-001.jsonl").write_text("")
    assert Steps(tmp_path).starts() == 2


def test_a_checkpoint_as_an_adapter(tmp_path: Path, world: tuple[Path, AgentSpec]) -> None:
    """Plain tensors under verl's names; a missing rank is said."""
    model, _ = world
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
    found = read_adapter(AdapterRef("x", str(tmp_path / "out")), shapes)
    assert found.weights.keys() == layers.keys()
    for name, (a, b) in found.weights.items():
        assert torch.equal(a, layers[name].a) and torch.equal(b, torch.full_like(b, 2.0))
    (actor / "model_world_size_1_rank_0.pt").rename(actor / "model_world_size_2_rank_0.pt")
    with pytest.raises(UserError, match=r"the shards of ranks \[0\], of \[2\] ranks"):
        export(tmp_path, tmp_path / "again", lora, str(model))


def test_both_trainers_start_from_the_same_adapter(
    tmp_path: Path, world: tuple[Path, AgentSpec]
) -> None:
    model, _ = world
    loaded, _ = load_model(model)
    layers = insert(loaded, LINEAR, 4, 8.0)
    restart(layers, 11)
    lora = {"rank": 4, "alpha": 8.0, "target_modules": LINEAR}
    write_adapter(tmp_path / "local", layers, lora, str(model))
    write_adapter(tmp_path / "verl", fresh(str(model), LINEAR, 4, 11), lora, str(model))
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "verl" / name).read_bytes()


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.skipif("verl" in INSTALLED, reason="verl is installed here")
def test_without_verl() -> None:
    with pytest.raises(UserError, match=r"needs the package verl.*trace_bench\[verl\]"):
        check_trainer(jobs.settings())


@pytest.mark.parametrize(
    ("versions", "settings", "said"),
    [
        ({"verl": "0.8.0"}, {}, "works with verl 0.9.1; 0.8.0 is installed"),
        (
            {"verl": "0.9.1", "transformers": "5.2.0"},
            {},
            "works with transformers from 5.5.3 to below 5.11.0; 5.2.0 is installed",
        ),
        ({"verl": "0.9.1"}, {"device": "cuda"}, "samples with vLLM, which is not installed"),
        ({"verl": "0.9.1"}, {"alpha": 0.5}, "trainer.alpha=0.5; verl takes whole numbers"),
        ({"verl": "0.9.1"}, {"minibatches": 3}, "trainer.groups=4 cannot be cut into"),
        ({"verl": "0.9.1"}, {"gpus": 5}, "32 rollouts of one optimizer step cannot be shared"),
        ({"verl": "0.9.1"}, {"gpus": 4, "tensor_parallel": 3}, "does not divide 4 GPUs"),
        ({"verl": "0.9.1"}, {"nnodes": 2}, "trainer.nnodes=2 needs a Ray cluster that runs"),
        ({"verl": "0.9.1"}, {"ray_address": "here"}, "'here' is not an address"),
        (
            {"verl": "0.9.1", "vllm": "0.24.0"},
            {"device": "cuda", "gpus": 16, "groups": 8},
            "trainer.gpus=16, and this machine has",
        ),
    ],
)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    settings: dict[str, Any],
    said: str,
) -> None:
    """Versions are looked up where pip keeps them; here they are made up."""
    real = metadata.version

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        if name in ("verl", "vllm"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        preflight(spec(), VerlSettings(**{"device": "cpu", **settings}))


def test_a_dead_cluster_and_an_unknown_module(
    monkeypatch: pytest.MonkeyPatch, world: tuple[Path, AgentSpec]
) -> None:
    monkeypatch.setattr(metadata, "version", {"verl": "0.9.1", "transformers": "5.10.4"}.get)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(UserError, match="no Ray cluster answers"):
        preflight(spec(), VerlSettings(device="cpu", ray_address=dead))
    model = spec(model=str(world[0]))
    with pytest.raises(UserError, match="unknown LoRA target 'w_proj'"):
        preflight(model, VerlSettings(device="cpu", target_modules=("q_proj", "w_proj")))


def test_the_context_of_a_served_agent_must_be_said() -> None:
    chosen = jobs.settings(
        "policy=openai", "model=served", "model.name=m", "policy.base_url=http://x"
    )
    with pytest.raises(UserError, match=r"Set policy\.context to what"):
        check_trainer(chosen)


def test_fine_tuning_stays_in_this_process() -> None:
    chosen = jobs.settings()
    other = replace(chosen, method={**chosen.method, "name": "sft"})
    with pytest.raises(UserError, match="method=sft trains in this process"):
        check_trainer(other)


def test_settings_that_only_local_has() -> None:
    assert "patience" not in VerlSettings.__dataclass_fields__
    assert TrainerSettings().patience == 5
    with pytest.raises(UserError, match=r"unknown key 'trainer\.patience'"):
        jobs.settings("+trainer.patience=3")


def test_a_step_of_which_nothing_was_said(tmp_path: Path) -> None:
    """verl was killed between keeping a checkpoint and logging the step: nobody waits for that."""
    from trace_bench.trainers.verl.process import Process, VerlFailed
    from trace_bench.trainers.verl.trainer import _Training

    said: list[str] = []
    process = Process(tmp_path, VerlSettings(), said.append, resumed=2)
    told = _Training.told
    steps = Steps(tmp_path)
    for step, expected in ((1, {}), (2, {}), (3, None)):
        assert told(None, step, steps, process) == expected  # type: ignore[arg-type]
    line = {"step": 3, "data": {"actor/pg_loss": 0.5}}
    (tmp_path / "metrics-000.jsonl").write_text(json.dumps(line) + "\n")
    assert told(None, 3, steps, process) == line["data"]  # type: ignore[arg-type]
    process.watch()  # nothing runs, and nothing has been missing for long
    process._progress -= 1000
    with pytest.raises(VerlFailed, match="verl is done, and something is missing"):
        process.watch()
