"""Evolution strategies: what they learn, what they cost, and that they need no weights."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import killed_until_done
from letters import LettersEnv, LettersSuite, job, make_lab
from models import save_adapter, save_model
from servers.scripted import Answer, chat, models, serve
from test_algorithms import Game
from test_local_trainer import everything

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.store import read_lines, remove_leftovers, stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Message, Score, Step, StopReason
from trace_bench.llm.client import Endpoint
from trace_bench.policies.engine.lora import read_weights
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
from trace_bench.trainers.adapters import fresh
from trace_bench.trainers.es import EsTrainer
from trace_bench.trainers.settings import EsSettings

HOW = EsSettings(pairs=8, tasks=2, sigma=0.05, step=0.1, rank=4, alpha=8.0)
FAR = replace(HOW, pairs=3, sigma=0.5)  # a few members whose rewards differ


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"))


def evolved_agent(
    folder: Path, model: Path, rollouts: int, how: EsSettings = HOW, suite=None
) -> AgentSpec:
    turns = 3 if isinstance(suite, Game) else 2
    lab = make_lab(folder, model, rollouts, suite=suite, max_turns=turns)
    agent = EsTrainer(how).train(job(model, rollouts), lab)
    lab.close()
    return agent


def evolved(folder: Path, model: Path, rollouts: int, how: EsSettings = HOW, suite=None) -> list:
    agent = evolved_agent(folder, model, rollouts, how, suite)
    found = [r for r in read_lines(folder / "metrics.jsonl") if r["phase"] == "training"]
    assert len(agent.adapters) == int(any(m["steps"] for m in found))
    return found


def test_the_adapter_is_the_weighted_mean_of_the_noise(model, tmp_path) -> None:
    """Algorithm 1 of the paper in float64, from the stored rollouts."""
    evolved(tmp_path, model, 12, FAR)
    played = [line["trajectory"] for line in read_lines(tmp_path / "trajectories.jsonl")]
    rewards = [t["score"]["similarity"] for t in sorted(played, key=lambda t: t["adapter"])]
    means = [(rewards[2 * m] + rewards[2 * m + 1]) / 2 for m in range(6)]
    centre = sum(means) / 6
    deviation = math.sqrt(sum((m - centre) ** 2 for m in means) / 5)
    score = [(m - centre) / deviation for m in means]
    noise = [torch.Generator().manual_seed(stable_seed(5, "noise", 0, pair)) for pair in range(3)]
    found = read_weights(AdapterRef("letters@0001", str(tmp_path / "adapters/letters/0001")))
    for name, start in fresh(str(model), HOW.target_modules, HOW.rank, 5).items():
        drawn = [torch.randn(start.b.shape, generator=n).double() for n in noise]
        moved = sum(score[m] * (-1) ** m * drawn[m // 2] for m in range(6)) * HOW.step / 6
        torch.testing.assert_close(
            found[f"base_model.model.{name}.lora_B.weight"].double(), moved, rtol=1e-3, atol=1e-5
        )
        assert torch.equal(found[f"base_model.model.{name}.lora_A.weight"], start.a)


def test_it_goes_on_from_an_adapter_and_a_lost_episode_moves_nothing(model, tmp_path) -> None:
    begun = evolved_agent(tmp_path / "one", model, 12, FAR)
    start = read_weights(begun.adapters[0])
    broken = LettersSuite([task.id for task in LettersSuite().tasks("train")])
    how = replace(FAR, rank=6, alpha=12.0)
    lab = make_lab(tmp_path / "two", model, 12, suite=broken)
    again = job(model, 12, agent=begun, name="more")
    assert EsTrainer(how).train(again, lab) == begun
    lab.close()
    kept = read_weights(AdapterRef("more@0001", str(tmp_path / "two/adapters/more/0001")))
    for name, value in start.items():
        part = kept[name][:4] if "lora_A" in name else kept[name][:, :4]
        torch.testing.assert_close(part, value)


@pytest.mark.parametrize("suite", [LettersSuite(), Game()], ids=["bandit", "game"])
def test_the_best_policy_is_learned(suite: LettersSuite, model, tmp_path) -> None:
    found = evolved(tmp_path, model, 32 * 18, suite=suite)
    rewards = [m["reward"] for m in found]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3, rewards


class Nothing(LettersSuite):
    def make(self) -> LettersEnv:
        class Worthless(LettersEnv):
            def step(self, action: Message) -> Step:
                return Step(done=True, score=Score(0.0, False), stop=StopReason.DONE)

        return Worthless(())


def test_equal_rewards_change_nothing_and_the_ledger_is_right(model, tmp_path) -> None:
    """121 rollouts: three iterations of 32, one of a task for each of 16, and nine that pay for
    nothing."""
    found = evolved(tmp_path, model, 121, suite=Nothing())
    assert [m["steps"] for m in found] == [0] * 4 and found[-1]["spent"] == 112
    calls = Counter(line["call"] for line in read_lines(tmp_path / "ledger.jsonl"))
    own = {f"train/letters/iter{i:04d}": 32 for i in range(3)} | {"train/letters/iter0003": 16}
    assert calls == own
    lines = read_lines(tmp_path / "trajectories.jsonl")
    played = {(x["call"], x["index"]): x["trajectory"] for x in lines}
    for call, count in own.items():
        tasks = [[played[call, n]["task"] for n in range(m * count // 16, (m + 1) * count // 16)]
                 for m in range(16)]  # fmt: skip
        assert all(member == tasks[0] for member in tasks), "other tasks for another member"
        assert len({played[call, n]["adapter"] for n in range(count)}) == 16


def test_killed_and_resumed_it_ends_the_same(model, tmp_path) -> None:
    how = replace(HOW, pairs=4, tasks=1)
    evolved(tmp_path / "whole", model, 24, how)
    folder = tmp_path / "killed"
    assert killed_until_done(lambda: evolved(folder, model, 24, how), 0.1, 0.2)
    remove_leftovers(folder.rglob(".*.tmp"))
    assert everything(folder) == everything(tmp_path / "whole")


def test_it_needs_servers_and_the_models_configuration_alone(model, tmp_path) -> None:
    """Behind a vLLM as far as its HTTP goes: every member is loaded there as an adapter, answers
    as one and is unloaded again; of the model there is the configuration, without weights."""
    (tmp_path / "bare").mkdir()
    shutil.copy(model / "config.json", tmp_path / "bare")
    there, acted = ["m"], set()

    def server(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return models(*there, owner="vllm")
        if path.endswith("_lora_adapter"):
            change = there.append if "/load" in path else there.remove
            change(body["lora_name"])
            return Answer("Success")
        own = sum(map(ord, body["model"])) % 6
        acted.add(body["model"])
        top = [{"token": "A", "logprob": -float(sum(map(ord, body["model"])))}]
        choice = {"logprobs": {"content": [{"top_logprobs": top, "logprob": -0.5}]}}
        return chat("a" * own + "1" * (5 - own), body["model"], choice=choice)

    with serve(server) as served:
        endpoint = Endpoint((served.url,), retries=0, pause=0.01, deadline=5.0)
        policy = OpenAIPolicy(endpoint, "m", capacity=4, extra=None)
        lab = make_lab(tmp_path / "run", model, 24, policy=policy)
        small = replace(HOW, pairs=2, tasks=2)
        agent = EsTrainer(small).train(job(tmp_path / "bare", 24), lab)
        lab.close()
        policy.close()
    assert len({name.partition("+")[0] for name in acted} - {"m"}) == 12 and there == ["m"]
    assert [a.name for a in agent.adapters] == ["letters@0003"]
    assert lab.budget_left() == 0


def test_what_is_refused(model, tmp_path) -> None:
    parts = parts_of(compose(["method=rl", "trainer=es", "trainer.pairs=3"]))
    trainer = parts["trainer"].make(RunContext())
    lab = make_lab(tmp_path / "run", model, 24)
    assert trainer.settings == EsSettings(pairs=3)
    with pytest.raises(UserError, match=r"has 5 rollouts and needs at least 6 .*trainer.pairs"):
        trainer.plan_training(5, "rl", ())
    assert trainer.plan_training(24, "rl", [12]) is None
    assert "of 12 rollouts" in str(trainer.plan_training(24, "rl", [13]))
    two = tuple(AdapterRef(name, "nowhere") for name in "ab")
    with pytest.raises(UserError, match="training continues one adapter"):
        trainer.train(job(model, 24, agent=AgentSpec(str(model), adapters=two)), lab)
    large = AgentSpec(
        str(model), adapters=(AdapterRef("a", str(save_adapter(model, tmp_path / "a"))),)
    )
    with pytest.raises(UserError, match="has rank 4, more than"):
        EsTrainer(EsSettings(pairs=3, rank=2)).train(job(model, 24, agent=large), lab)
