"""A mixture of experts with untied embeddings, behind a real vLLM: what it sampled with adapters
that were loaded at run time has the trainer's probabilities (.ci/vllm)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from at_servers import NEEDS_VLLM
from models import save_adapter, save_mixture
from playing import play
from servers.vllm_process import serve
from thinking import OPENED, AskingSuite

from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AdapterRef, AgentSpec, Trajectory
from trace_bench.policies.loading import load_tokenizer
from trace_bench.policies.openai import OpenAISettings, served
from trace_bench.trainers.adapters import begin_with, restart
from trace_bench.trainers.algorithms import LINEAR, Recipe
from trace_bench.trainers.job import exact
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import build, stretches

pytestmark = NEEDS_VLLM
RECIPE = Recipe(target_modules=LINEAR[:4], rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_mixture(tmp_path_factory.mktemp("mixture"))
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = OPENED
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """It is told the modules that adapters have; else it makes room for them in the experts, which
    kernels for CPUs cannot have."""
    told = ("--lora-target-modules", *RECIPE.served_modules)
    with serve(model, tmp_path_factory.mktemp("vllm") / "log", more=told) as address:
        yield address


def distances(model: Path, played: Sequence[Trajectory], adapter: AdapterRef | None) -> np.ndarray:
    """Of the sampler's log-probabilities to the trainer's, token by token."""
    learner = Learner(str(model), RECIPE.target_modules, RECIPE.rank, RECIPE.alpha)
    restart(learner.layers, 0)
    if adapter is not None:
        begin_with(learner.layers, adapter, RECIPE)
    gone = stretches(*played)
    with torch.no_grad():
        ours = learner.logprobs(build(gone)).numpy()
    return np.abs(ours - np.concatenate([each.logprobs for each in gone]))


def test_adapters_of_its_attention_act_as_trained(url: str, model: Path, tmp_path: Path) -> None:
    refs = []
    for seed in (1, 2):
        place = save_adapter(model, tmp_path / f"{seed}", seed, targets=list(LINEAR[:4]))
        refs.append(AdapterRef(f"cap{seed}@0001", str(place)))
    run = RunContext(model=str(model), served_model="tiny", batch=24)
    policy = served(OpenAISettings((url,)), run)
    agent = AgentSpec("tiny", adapters=tuple(refs))
    tasks = [task for task in AskingSuite().tasks("train") for _ in range(3)]
    route = [None, *(ref.name for ref in refs)] * 8
    episodes = play(policy, AskingSuite(1), agent, tasks, range(24), route=route, max_tokens=24)
    policy.close()
    assert all(map(exact, episodes)) and not any(t.failure for t in episodes)
    for acting in (None, *refs):
        name = None if acting is None else acting.name
        by_adapter = [t for t in episodes if {turn.adapter for turn in t.turns} == {name}]
        assert len(by_adapter) == 8
        apart = distances(model, by_adapter, acting)
        assert apart.mean() < 1e-5 and apart.max() < 1e-4
        other = distances(model, by_adapter, refs[0] if acting is None else None)
        assert other.mean() > 1e-2, "adapter and base model are the same"
