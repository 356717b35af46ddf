"""verl's synchronous trainer, extended: it uses this project's advantages, also logs the difference
between sampler and trainer, polls for an iteration's episodes more often, and stops when they can
no longer arrive."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pprint import pprint
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from trace_bench.checklists.rewards import Assignment
from trace_bench.trainers import grpo
from trace_bench.trainers.algorithms import Episodes
from trace_bench.trainers.grpo import Advantages, mismatch, unpacked
from trace_bench.trainers.record import assignment_of
from trace_bench.trainers.settings import Recipe
from trace_bench.trainers.verl import rows
from trace_bench.trainers.verl.spec import (
    CREDIT,
    ESTIMATOR,
    JOB_VARIABLE,
    MISMATCH,
    NOTHING,
    JobSpec,
    read_spec,
)

_POLL = 0.05  # seconds; verl's own 2 s are as long as a small model's step
_LEFTOVERS = 60.0  # seconds until Ray has removed what a killed run left behind
_WATCH = 3.0  # seconds between checks that all actors are alive


def advantages(
    recipe: Recipe,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: np.ndarray,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both [rows, tokens], of rewards and mask of that shape, by the
    recipe's algorithm; `index` [rows] is the group of each row. A group of equal rewards, or of one
    row, has advantages of zero. What observations add comes later (`by_observations`)."""
    turns = [[n] for n in response_mask.sum(-1).long().tolist()]
    unseen: list[tuple[str, ...]] = [()] * len(turns)
    episodes = Episodes(token_level_rewards.sum(dim=-1), labels_of(index), turns, unseen)
    spread = in_rows(recipe.algorithm.advantages(episodes, recipe), response_mask)
    return spread, spread


def by_observations(
    recipe: Recipe, episodes: Sequence[str], rewards: Tensor, mask: Tensor, index: np.ndarray
) -> Tensor:
    """The advantages [rows, tokens] of episodes with packed observations (`episodes.credit_of`)."""
    data = [json.loads(text) if text else {"lengths": [], "seen": []} for text in episodes]
    turns, seen = [d["lengths"] for d in data], [d["seen"] for d in data]
    made = recipe.algorithm.advantages(Episodes(rewards, labels_of(index), turns, seen), recipe)
    return in_rows(made, mask)


def by_checklist(
    episodes: Sequence[str], response_mask: Tensor, index: np.ndarray, how: Assignment
) -> Tensor:
    """The advantages [rows, tokens] of packed episodes (`grpo.packed`), as trainer=local has
    them. `response_mask` [rows, tokens] is 1 at the sampled tokens, `index` [rows] the group."""
    found = [unpacked(text) for text in episodes]
    labels = labels_of(index).numpy()
    groups = [np.flatnonzero(labels == n).tolist() for n in range(int(labels.max()) + 1)]
    made = grpo.by_checklist([r for r, _ in found], [each for _, each in found], groups, how)
    return in_rows(made, response_mask)


def labels_of(index: np.ndarray) -> Tensor:
    """The number of each row's group."""
    return torch.from_numpy(np.unique(index.astype(str), return_inverse=True)[1])


def in_rows(made: Advantages, response_mask: Tensor) -> Tensor:
    """Advantages of trajectories or tokens, at the tokens' places [rows, tokens]."""
    if made.tokens is None:
        return made.values.to(response_mask.device)[:, None] * response_mask
    out = torch.zeros_like(response_mask, dtype=torch.float32)
    for row, tokens in enumerate(made.tokens):
        places = response_mask[row].bool().nonzero()[:, 0]
        if len(tokens) and len(places):  # not of a row in no baseline, nor of one that pads
            out[row, places] = tokens.float().to(out.device)
    return out


def of_episodes(
    spec: JobSpec, episodes: Sequence[str], rewards: Tensor, mask: Tensor, index: np.ndarray
) -> Tensor:
    """The advantages [episodes, tokens] as the job has them: by checklists, with observations, or
    of the rewards alone."""
    if spec.assignment is not None:
        how = assignment_of(spec.assignment, spec.trainer.normalize_std)
        return by_checklist(episodes, mask, index, how)
    if spec.trainer.algorithm.observations:
        return by_observations(spec.trainer, episodes, rewards, mask, index)
    return advantages(spec.trainer, rewards[:, None], mask, index)[0]


class Sampler(ReplayBuffer):
    """Waits for an iteration's groups. A group with fewer than two episodes left has no learning
    signal and is dropped, as with trainer=local."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(poll_interval=_POLL, **arguments)

    def _select_prompt_uids(self, partition_id: str, *rest: Any) -> Any:
        if self.failure_keys[partition_id]:
            raise RuntimeError("no episodes could be run; see the error above")
        return super()._select_prompt_uids(partition_id, *rest)

    def _materialize_batch(self, partition_id: str, *rest: Any) -> Any:
        batch = super()._materialize_batch(partition_id, *rest)
        if partition_id == "val":
            return batch
        found = list(zip(batch.keys, batch.tags, strict=True))
        played = [key for key, tag in found if tag["min_global_steps"] != NOTHING]
        episodes = {key.rpartition("_")[0] for key in played}  # which may have several rows
        members = Counter(key.split("_")[0] for key in episodes)
        kept = {key for key in played if members[key.split("_")[0]] > 1}
        # If no other rows are left, these alone give a step with a zero gradient.
        kept = kept or {key for key, _ in found} - set(played)
        if gone := [key for key, _ in found if key not in kept]:
            tq.kv_clear(keys=gone, partition_id=partition_id)
        return tq.KVBatchMeta(
            partition_id=partition_id,
            keys=[key for key, _ in found if key in kept],
            tags=[tag for key, tag in found if key in kept],
        )


class StepTrainer(PPOTrainerSync):
    """verl's trainer, changed in the methods below."""

    _dealt = False  # whether an episode of the batch has several rows

    def _build_replay_buffer(self) -> Sampler:
        sampler = self.config.trainer.v1.sampler
        return Sampler(
            trainer_mode=self.trainer_mode,
            trainer_config=self.config.trainer.v1.get(self.trainer_mode, {}),
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
            refill_fn=self._add_prompts_to_generate,
        )

    def actors(self) -> list[Any]:
        """The actors that the job needs: they train, sample, or run environments."""
        servers = [s for replica in self.llm_server_manager.get_replicas() for s in replica.servers]
        return [
            *self.actor_rollout_wg.workers,
            *servers,
            *self.agent_loop_manager.agent_loop_workers,
        ]

    def on_train_begin(self) -> None:
        super().on_train_begin()
        threading.Thread(target=end_with, args=(self.actors(),), daemon=True).start()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.config.trainer.device == "cpu":
            from trace_bench.trainers.verl.cpu.server import CpuWorker

            for role in list(self.role_worker_mapping):
                self.role_worker_mapping[role] = ray.remote(CpuWorker)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """What the rows alone do not tell: the advantages that checklists give, or observations,
        and those of episodes of several rows, with the weights of their tokens."""
        batch = super()._compute_advantage(batch, metrics)
        spec = read_spec(Path(os.environ[JOB_VARIABLE]))
        several = self._several(batch)
        if spec.assignment is None and not spec.trainer.algorithm.observations and not several:
            return batch
        fields = ["uid", "response_mask", "rm_scores", "extra_fields", "rollout_is_weights"]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        nested, every = data["response_mask"], rows.members(batch.keys)
        mask = nested.to_padded_tensor(padding=0)
        first = [own[0] for own in every]  # each row has the reward and the credit of its episode
        credits = list(data["extra_fields"])
        episodes = [credits[row][CREDIT] for row in first]
        uid = np.array(list(data["uid"]), dtype=object)[first]
        rewards = data["rm_scores"].to_padded_tensor(padding=0).sum(-1)[first]
        made = of_episodes(spec, episodes, rewards, rows.joined(mask, every), uid)
        there = response_to_nested(rows.dealt(made, mask, every), nested)
        new = {"advantages": there, "returns": there}
        if several:
            usual = spec.groups * spec.trainer.group_size
            aggregate, _ = spec.trainer.algorithm.aggregation(spec.trainer)
            weights = rows.weights(mask, every, aggregate, usual)
            if "rollout_is_weights" in data:  # of truncated importance sampling
                weights = weights * data["rollout_is_weights"].to_padded_tensor(padding=0)
            new["rollout_is_weights"] = response_to_nested(weights, nested)
        fields_made = TensorDict(new, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields_made)

    def _several(self, batch: Any) -> bool:
        """Whether an episode of the batch has several rows."""
        return any(not key.endswith("_0") for key in batch.keys)

    def _balance_batch(self, batch: Any, *given: Any, **named: Any) -> Any:
        self._dealt = self._several(batch)
        return super()._balance_batch(batch, *given, **named)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """With several rows an episode there are as many optimizer steps as without: each has an
        equal part of the rows, whatever their number."""
        if not self._dealt:
            return int(super()._get_required_batch_multiple(dp_size))
        return self._minibatches * math.lcm(dp_size, self.config.actor_rollout_ref.rollout.n)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        usual = actor.ppo_mini_batch_size
        if self._dealt:
            actor.ppo_mini_batch_size = len(batch) // (self._minibatches * rollout.n)
        try:
            return super()._update_actor(batch, metrics)
        finally:
            actor.ppo_mini_batch_size = usual

    @property
    def _minibatches(self) -> int:
        """Optimizer steps of an epoch."""
        prompts = self.config.data.train_batch_size
        return int(prompts // self.config.actor_rollout_ref.actor.ppo_mini_batch_size)

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_old_log_prob(batch, metrics)
        if batch.tags[0]["min_global_steps"] == NOTHING:
            return batch  # placeholder rows: they were not sampled
        fields = ["response_mask", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        ).to_padded_tensor()
        mask = data["response_mask"].bool()
        found = mismatch(data["rollout_log_probs"][mask], data["old_log_probs"][mask])
        if found is not None:
            metrics.update(zip(MISMATCH, (found.mean, found.max, found.kl), strict=True))
        return batch


def alone_on_cluster() -> None:
    """Raises RuntimeError if another run uses this cluster: verl's queue has a fixed name, so a
    second run would use and end the first one's. Waits for the remains of a killed run to go."""
    end = time.monotonic() + _LEFTOVERS
    while time.monotonic() < end:
        try:
            ray.get_actor("TransferQueueController", namespace="transfer_queue")
        except ValueError:
            return
        time.sleep(_WATCH)
    raise RuntimeError("another run of verl is on this Ray cluster; one at a time")


def end_with(actors: Sequence[Any]) -> None:
    """Ends this process when one of the actors is gone. Otherwise the other actors would wait
    forever for its part of a collective operation, and the trainer for its episodes. A busy actor
    answers later; Ray reports a dead one at once."""
    waiting: dict[Any, Any] = {}
    while True:
        for actor in actors:
            if actor not in waiting.values():
                waiting[actor.__ray_ready__.remote()] = actor
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=_WATCH)
        for answer in done:
            del waiting[answer]
            try:
                ray.get(answer)
            except ray.exceptions.RayError as error:
                print(f"a process of the job is gone: {error}", flush=True)
                os._exit(1)
        time.sleep(_WATCH)


@ray.remote
class Runner:
    """verl's task runner with the trainer above."""

    def run(self, config: DictConfig) -> None:
        from verl.utils.logging_utils import configure_verl_logging

        configure_verl_logging()
        if config.trainer.device == "cpu":
            from trace_bench.trainers.verl.cpu.plugin import register_rollout

            register_rollout()
        recipe = read_spec(Path(os.environ[JOB_VARIABLE])).trainer
        register_adv_est(ESTIMATOR)(partial(advantages, recipe))
        config.transfer_queue.enable = True
        pprint(OmegaConf.to_container(config, resolve=True))
        OmegaConf.resolve(config)
        alone_on_cluster()
        tq.init(config.transfer_queue)
        trainer, code = StepTrainer(config=config), 1
        try:
            trainer.init()
            trainer.fit(
                AgentLoopManagerTQ.create(
                    config=config,
                    llm_client=trainer.get_llm_client(),
                    teacher_client=None,
                    reward_loop_worker_handles=trainer.get_reward_handles(),
                )
            )
            code = 0
        finally:
            if (tracking := getattr(trainer, "logger", None)) is not None:
                tracking.finish(exit_code=code)
            tq.close()
