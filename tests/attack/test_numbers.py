"""Weights out of all bounds: what they compute is no agent's turn and no training's step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from models import save_adapter, save_model
from playing import play
from safetensors.torch import load_file, save_file
from toy import ToySuite

from trace_bench.core.store import write_json
from trace_bench.core.types import AdapterRef, AgentSpec, Boundary
from trace_bench.policies.local import LocalPolicy


def large(adapter: Path) -> None:
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({k: v.fill_(1e38) for k, v in weights.items()}, adapter / "adapter_model.safetensors")


def scaled(adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    write_json(adapter / "adapter_config.json", {**config, "lora_alpha": 1e30})


@pytest.mark.parametrize(("damage", "temperature"), [(large, 0.0), (scaled, 1.0)])
def test_logits_that_are_not_finite_lose_the_episode_at_the_policy(
    damage: Callable[[Path], None], temperature: float, tmp_path: Path
) -> None:
    model = save_model(tmp_path / "model")
    place = save_adapter(model, tmp_path / "wild", 1)
    damage(place)
    tame = save_adapter(model, tmp_path / "tame", 2)
    adapters = (AdapterRef("wild", str(place)), AdapterRef("tame", str(tame)))
    agent = AgentSpec(str(model), adapters=adapters)
    world = ToySuite()
    tasks = world.tasks("train")[:3]
    policy = LocalPolicy(model, batch=4, threads=1)
    route = ["wild", "tame", None]
    wild, *others = play(
        policy, world, agent, tasks, [0, 1, 2], temperature=temperature, route=route, max_turns=2
    )
    assert wild.failure is not None and wild.failure.boundary is Boundary.POLICY
    assert "not finite" in wild.failure.error and "'wild'" in wild.failure.error
    assert wild.score is None and not wild.turns
    assert all(t.failure is None and t.turns for t in others), "they shared its batches"
