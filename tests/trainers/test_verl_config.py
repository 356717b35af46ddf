"""The settings for GPUs through verl's own configuration and schema, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_layouts import LAYOUTS
from verl_job import facts, verl_settings

from trace_bench.settings.compose import compose
from trace_bench.trainers.verl.trainer import VerlTrainer

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")


def composed(folder: Path, *more: str) -> Any:
    from trace_bench.trainers.verl import compose as verl

    chosen = compose(["method=grpo", *more])
    own = verl_settings(chosen)
    job = VerlTrainer(own, facts(chosen)).sample_job()
    return verl.composed(verl.overrides(job, folder))


@pytest.mark.parametrize(
    "name", ["paper_tau2", "paper_tau2_heldout", "paper_toolsandbox", "paper_toolsandbox_heldout"]
)
def test_the_papers_experiments(name: str, tmp_path: Path) -> None:
    """Qwen3-30B-A3B, as the paper trains, on 4 GPUs of a machine; 4 more are for the servers."""
    config = composed(tmp_path, f"experiment={name}")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model = config.actor_rollout_ref.model
    assert model.path == "Qwen/Qwen3-30B-A3B-Instruct-2507"
    assert (model.lora_rank, model.lora_alpha) == (16, 16)
    assert list(model.target_modules) == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert (rollout.name, rollout.n, rollout.max_model_len) == ("vllm", 16, 32000)
    assert rollout.layered_summon and rollout.load_format == "safetensors"
    assert rollout.tensor_model_parallel_size == 2
    told = rollout.engine_kwargs.vllm.lora_target_modules
    assert list(told) == [*model.target_modules, "qkv_proj"], "not the experts"
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2)
    assert not actor.use_kl_loss and not config.algorithm.use_kl_in_reward
    assert actor.loss_agg_mode == "seq-mean-token-mean" and actor.ppo_epochs == 1
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (4, 1)
    assert config.trainer.device == "cuda"
    assert config.ray_kwargs.ray_init.address == "local"
    assert model.use_fused_kernels and config.algorithm.rollout_correction.rollout_is == "token"


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_shipped_layouts(name: str, tmp_path: Path) -> None:
    config = composed(tmp_path, *LAYOUTS[name])
    assert config.actor_rollout_ref.model.use_fused_kernels
    assert config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["actor_rollout_ref.rollout.gpu_memory_utilization=much"], "much"),
        (["actor_rollout_ref.actor.no_such_key=1"], "no_such_key"),
        (
            [
                "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
                "actor_rollout_ref.model.use_remove_padding=false",
            ],
            "remove_padding",
        ),
    ],
)
def test_what_verl_refuses_is_named(given: list[str], named: str, tmp_path: Path) -> None:
    """An unknown value, an unknown key, two settings that contradict each other."""
    from trace_bench.core.errors import UserError

    override = f"trainer.verl={json.dumps(given)}"
    with pytest.raises(UserError, match=rf"{named}.*Change the setting `trainer\.verl`"):
        composed(tmp_path, "experiment=paper_tau2", override)
