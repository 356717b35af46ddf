"""Our settings through verl's own configuration and schema, without a GPU and without Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import verl_job as jobs
from test_forecast import LAYOUTS

from trace_bench.core.errors import UserError
from trace_bench.settings.compose import compose
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.trainer import VerlTrainer

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

PAPER = ["paper_tau2", "paper_tau2_heldout", "paper_toolsandbox", "paper_toolsandbox_heldout"]
ACTOR = "actor_rollout_ref.actor"
REFUSED = {  # an unknown value, an unknown key, two settings that contradict each other
    "much": ["actor_rollout_ref.rollout.gpu_memory_utilization=much"],
    "no_such_key": [f"{ACTOR}.no_such_key=1"],
    "remove_padding": [f"{ACTOR}.ulysses_sequence_parallel_size=2"],
}


def composed(folder: Path, *more: str) -> Any:
    from trace_bench.trainers.verl import compose as verl

    chosen = compose(["method=grpo", *more])
    job = VerlTrainer(jobs.verl_settings(chosen), jobs.facts(chosen)).sample_job()
    return verl.composed(verl.overrides(job, folder))


def test_what_verl_takes_and_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PAPER:  # Qwen3-30B-A3B, on 4 GPUs of a machine; 4 more are for the servers
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
        assert not actor.use_kl_loss and not config.algorithm.use_kl_in_reward
        assert actor.loss_agg_mode == "seq-mean-token-mean" and actor.ppo_epochs == 1
        assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (4, 1)
        assert config.trainer.device == "cuda"
        assert config.ray_kwargs.ray_init.address == "local"
        assert config.algorithm.rollout_correction.rollout_is == "token"
    for given in (*LAYOUTS.values(), [*LAYOUTS["verl_30b"], "trainer.algorithm.kl=0.01"]):
        config = composed(tmp_path, *given)
        assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 1
        assert config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == 1
        assert config.actor_rollout_ref.model.use_fused_kernels
        assert config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size == 1
    for named, lines in REFUSED.items():
        override = f"trainer.verl={json.dumps(lines)}"
        with pytest.raises(UserError, match=rf"{named}.*Change the setting `trainer\.verl`"):
            composed(tmp_path, "experiment=paper_tau2", override)
    costs_nothing(tmp_path / "run")
    waits_as_long_as_a_job_may_stall(tmp_path, monkeypatch)


def costs_nothing(folder: Path) -> None:
    """A refusal is verl's own words, before anything is played."""
    override = f"trainer.verl={json.dumps(REFUSED['no_such_key'])}"
    command = [sys.executable, "-m", "trace_bench", *jobs.CPU, override, f"run_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "no_such_key" in done.stderr and "Change the setting `trainer.verl`" in done.stderr
    assert not folder.exists()


def waits_as_long_as_a_job_may_stall(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that wait for one another."""
    from torch.distributed import distributed_c10d

    from trace_bench.trainers.verl.engine import wait_longer
    from trace_bench.trainers.verl.spec import JOB_VARIABLE

    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, getattr(distributed_c10d, name))
    jobs.spec(trainer=VerlSettings(device="cpu", stall=4321.0)).write(folder)
    monkeypatch.setenv(JOB_VARIABLE, str(folder))
    wait_longer()
    for backend in ("gloo", "nccl"):
        limit = distributed_c10d._get_default_timeout(distributed_c10d.Backend(backend))
        assert limit.total_seconds() == 4321.0
