"""Converts our settings to verl's. Hydra composes verl's configuration from verl's own files, so
that unknown keys are refused, and verl's schema checks it before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.policies.hub import TRUSTED, trusted
from trace_bench.settings.compose import word
from trace_bench.trainers.algorithms import GRADIENT
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.spec import CPU_ROLLOUT, JOB_VARIABLE, LOSS, JobSpec

AGGREGATE = {
    "trajectory": "seq-mean-token-mean",
    "token": "token-mean",
    "constant": "seq-mean-token-sum-norm",
}
_UNSET = (
    "algorithm.filter_groups", "algorithm.norm_adv_by_std_in_grpo", "data.gen_batch_size",
    "actor_rollout_ref.actor.clip_ratio", "trainer.use_v1", "trainer.v1",
)  # fmt: skip
"""Keys of verl that this project does not set, as they would change the rollouts, or as the
algorithm's loss and advantages are in their place."""
HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE")
"""The hub's settings, which other machines are given as they are here; its token they must have."""
_ENGINE = "trace_bench.trainers.verl.engine"
_PLUGIN = "trace_bench.trainers.verl.cpu"


def overrides(spec: JobSpec, folder: Path, start: int = 0) -> list[str]:
    """The settings of a job's `start`-th start in Hydra's notation. `trainer.verl` comes last and
    overrides the others. Raises UserError for keys that it must not override."""
    settings = spec.trainer
    decided = {**_recipe(spec), **_model(spec, folder), **_rollout(spec, folder)}
    decided |= _trainer(spec, folder)
    _refuse_decided(settings.verl, decided)
    device = _on_cpu() if settings.device == "cpu" else _on_gpu(settings)
    values = {**decided, **device, **_ray(settings, environment(spec, folder, start))}
    return [f"{key}={word(value)}" for key, value in values.items()] + list(settings.verl)


def _refuse_decided(lines: Sequence[str], decided: Mapping[str, Any]) -> None:
    """Raises UserError for keys that change what is trained or how many rollouts are run: the
    ledger and the run's fingerprint assume the settings of `trainer`."""
    keys = {key.lstrip("+") for key in decided}
    for line in lines:
        key = line.partition("=")[0].lstrip("+~").strip()
        above = any(name.startswith(f"{key}.") for name in keys)  # Hydra merges what it is given
        if key in keys or above or key.startswith(_UNSET):
            raise UserError(
                f"trainer.verl has {key!r}, which the other settings of `trainer` decide, or which "
                "changes how many rollouts are run. Remove it there."
            )


def environment(spec: JobSpec, folder: Path, start: int = 0) -> dict[str, str]:
    """Environment variables of every process of the job, on every machine."""
    variables = {
        JOB_VARIABLE: str(folder),
        # verl overwrites its metrics at every start, so each start has a file of its own
        "VERL_FILE_LOGGER_PATH": str(folder / f"metrics-{start:03d}.jsonl"),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if Path(spec.agent.model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"  # nothing needs to be downloaded
    else:
        variables |= {name: os.environ[name] for name in HUB if name in os.environ}
    if trusted(spec.agent.model):
        variables[TRUSTED] = spec.agent.model
    if spec.trainer.device == "cpu":
        variables |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": _PLUGIN}
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def composed(lines: Sequence[str]) -> Any:
    """verl's full configuration. Raises UserError for a key or a value that verl refuses."""
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    place = Path(verl.__file__).parent / "trainer" / "config"
    try:
        with initialize_config_dir(str(place), version_base=None):
            config = compose("ppo_trainer", list(lines))
        _instantiated(config)
        # The last of these checks imports vLLM. If it is not installed, nothing runs on GPUs
        # (preflight.py), and the settings for them are checked without it.
        if config.actor_rollout_ref.rollout.name != "vllm" or find_spec("vllm") is not None:
            validate_config(config, need_reference_policy(config), need_critic(config))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError) as error:
        text = " ".join(str(error).split())
        raise UserError(
            f"verl refuses its settings: {text}. Change the setting `trainer.verl`, or the "
            "corresponding one of `trainer`."
        ) from error
    return config


def _instantiated(config: Any) -> None:
    """Instantiates every part of the configuration that has a schema, to check it."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig

    # Instantiating this one would load the model's files; its types are checked without that.
    OmegaConf.merge(OmegaConf.structured(HFModelConfig), config.actor_rollout_ref.model)
    trainer, model = config.trainer, config.actor_rollout_ref.model
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.validate(trainer.nnodes * trainer.n_gpus_per_node, config.data.train_batch_size, model)
    for part in (
        config.actor_rollout_ref.actor.optim,
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.rollout.checkpoint_engine,
        config.algorithm,
    ):
        # Instantiating runs the schema's own checks; the merge checks the fields' types.
        schema = type(omega_conf_to_dataclass(part))
        values = {key: value for key, value in part.items() if key != "_target_"}
        OmegaConf.merge(OmegaConf.structured(schema), values)


def _recipe(spec: JobSpec) -> dict[str, Any]:
    s, actor, batch = spec.trainer, "actor_rollout_ref.actor", spec.groups
    algorithm = s.algorithm
    aggregate, length = algorithm.aggregation()
    return {
        "algorithm.adv_estimator": "grpo",  # steps.py puts ours in its place
        "algorithm.use_kl_in_reward": False,
        "data.train_batch_size": batch,
        f"{actor}.ppo_mini_batch_size": batch // s.minibatches,
        f"{actor}.ppo_epochs": s.epochs,
        f"{actor}.use_dynamic_bsz": False,  # it counts tokens without their padding
        f"{actor}.ppo_micro_batch_size_per_gpu": s.rows(spec.context),
        f"{actor}.policy_loss.loss_mode": LOSS,
        f"{actor}.loss_agg_mode": AGGREGATE[aggregate],
        f"{actor}.loss_scale_factor": length,
        f"{actor}.use_kl_loss": algorithm.kl > 0,
        f"{actor}.kl_loss_coef": algorithm.kl,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.entropy_coeff": 0,
        f"{actor}.grad_clip": GRADIENT,
        f"{actor}.shuffle": True,
        f"{actor}.data_loader_seed": spec.seed % 2**31,
        f"{actor}.optim.lr": s.learning_rate,
        f"{actor}.optim.clip_grad": GRADIENT,
        f"{actor}.optim.weight_decay": 0.0,
        f"{actor}.optim.lr_scheduler_type": "constant",  # engine.py sets the course's rate
    }


def _model(spec: JobSpec, folder: Path) -> dict[str, Any]:
    s, model = spec.trainer, "actor_rollout_ref.model"
    return {
        f"{model}.path": spec.agent.model,
        f"{model}.lora_rank": s.rank,
        f"{model}.lora_alpha": int(s.alpha),  # it is a whole number
        f"{model}.target_modules": list(s.target_modules),
        f"{model}.lora_adapter_path": str(folder / "start"),
        f"{model}.external_lib": _ENGINE,
        f"{model}.trust_remote_code": trusted(spec.agent.model),
        # By torch, padded: flash-attn, which packs, compiles for an hour where no wheel fits.
        f"{model}.use_remove_padding": False,
        f"+{model}.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.fsdp_config.strategy": "fsdp2",
        "+actor_rollout_ref.actor.checkpoint.save_lora_only": True,
    }


def _rollout(spec: JobSpec, folder: Path) -> dict[str, Any]:
    s, rollout = spec.trainer, "actor_rollout_ref.rollout"
    return {
        f"{rollout}.n": s.group_size,
        f"{rollout}.temperature": 1.0,
        f"{rollout}.seed": spec.seed % 2**31,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": s.rows(spec.context),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": s.rows(spec.context),
        f"{rollout}.load_format": "safetensors",
        f"{rollout}.max_model_len": spec.context,
        f"{rollout}.tensor_model_parallel_size": s.tensor_parallel,
        f"{rollout}.agent.num_workers": s.workers,
        f"{rollout}.agent.default_agent_loop": "trace_bench",
        f"{rollout}.agent.agent_loop_config_path": str(folder / "agent_loop.yaml"),
        "data.max_prompt_length": spec.context,
        "data.max_response_length": spec.context,
        "reward.num_workers": 1,
    }


def _trainer(spec: JobSpec, folder: Path) -> dict[str, Any]:
    s = spec.trainer
    return {
        "data.train_files": str(folder / "tasks.parquet"),
        "data.val_files": str(folder / "tasks.parquet"),  # unused
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": spec.iterations,
        "trainer.nnodes": s.nnodes,
        "trainer.n_gpus_per_node": s.gpus,
        "trainer.device": s.device,
        "trainer.save_freq": s.save_every,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "auto",
        "trainer.max_actor_ckpt_to_keep": None,  # trainer.py removes old checkpoints
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.project_name": "trace_bench",
        "trainer.experiment_name": spec.name,
        "trainer.logger": ["console", "file"],
    }


def _on_gpu(s: VerlSettings) -> dict[str, Any]:
    """vLLM for rollouts. LoRA with vLLM's server requires layered summon and loading the weights
    from the model's files. Weights are stored in float32, for the adapter's sake, and computed with
    in bf16: FSDP2 requires one type for base model and adapter. Logits are never whole (fused
    kernels): 32,768 tokens by a vocabulary of 152k would be 10 GB, several times. vLLM's kernels
    round in another way: truncated importance sampling, token by token, with the bound 2
    (fengyao.notion.site/off-policy-rl)."""
    engine, correction = "actor_rollout_ref.actor.fsdp_config", "algorithm.rollout_correction"
    return {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization": s.gpu_memory,
        "actor_rollout_ref.rollout.layered_summon": True,
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.lora_target_modules": s.served_modules,
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "actor_rollout_ref.model.use_fused_kernels": True,
        f"{engine}.model_dtype": "fp32",
        f"{engine}.param_offload": s.offload,
        f"{engine}.optimizer_offload": s.offload,
        f"{correction}.rollout_is": "token",
        f"{correction}.rollout_is_threshold": 2.0,
    }


def _on_cpu() -> dict[str, Any]:
    engine = "actor_rollout_ref.actor.fsdp_config"
    return {
        "actor_rollout_ref.rollout.name": CPU_ROLLOUT,
        "actor_rollout_ref.rollout.free_cache_engine": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "actor_rollout_ref.actor.use_torch_compile": False,
        f"{engine}.use_torch_compile": False,
        f"{engine}.model_dtype": "fp32",
        f"+{engine}.mixed_precision": {
            "param_dtype": "fp32",
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        },
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def _ray(s: VerlSettings, variables: Mapping[str, str]) -> dict[str, Any]:
    """Ray's settings. A running cluster has its own resources; one started here is given them."""
    init = "+ray_kwargs.ray_init"
    values: dict[str, Any] = {f"{init}.runtime_env.env_vars": variables}
    if s.ray_address is None:
        # "local" starts a cluster even if another one is running.
        values |= {f"{init}.address": "local", f"{init}.include_dashboard": False}
        if s.device == "cpu":
            # Ray counts logical resources: processes of a small model share the cores.
            values |= {f"{init}.num_cpus": 16 + 4 * s.gpus + s.workers, f"{init}.num_gpus": s.gpus}
    else:
        values[f"{init}.address"] = s.ray_address
    return values
