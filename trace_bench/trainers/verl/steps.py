"""verl's synchronous trainer, extended: it follows the job's course of tasks, has the advantages of
trainer=local, logs the difference between sampler and trainer, polls for an iteration's episodes
more often, and stops when they can no longer arrive."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from pprint import pprint
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_to_nested

from trace_bench.core.decode import decode
from trace_bench.core.types import Task, Trajectory
from trace_bench.trainers.grpo import mismatch
from trace_bench.trainers.job import credit, differ, earned, in_groups
from trace_bench.trainers.verl.rows import dealt, members, weights
from trace_bench.trainers.verl.sampler import Sampler
from trace_bench.trainers.verl.spec import (
    CALL,
    FIRST,
    JOB_VARIABLE,
    MISMATCH,
    NOTHING,
    RATE,
    Arrivals,
    JobSpec,
)

_POLL = 0.05  # seconds between looks for files that are there
_LATE = 60.0  # seconds until what another machine wrote can be read here
_WATCH = 3.0  # seconds between checks that all actors are alive, and looks for what a run left
_READY = 120.0  # seconds until all machines are there, and what a killed run left is not


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
            iteration=self.iteration,
        )

    def _init_dataloader(self) -> None:
        """Its rows are the tasks, which the course puts in order: there is no epoch to end."""
        super()._init_dataloader()
        prompts = [self.train_dataset[n] for n in range(len(self.train_dataset))]
        tasks = [decode(prompt["extra_info"]["task"].encode(), Task) for prompt in prompts]
        self.prompts = {task.id: prompt for task, prompt in zip(tasks, prompts, strict=True)}
        folder = Path(os.environ[JOB_VARIABLE])
        self.spec, self.arrivals = JobSpec.read(folder), Arrivals(folder / "episodes")
        self.course = self.spec.course(tasks)
        self.steps_per_epoch = self.total_training_steps + 1
        self.played = dict[str, Sequence[Trajectory]]()  # the groups of this iteration

    def prepare_step(self) -> dict[str, Any]:
        """Nothing: the groups are asked for where they are waited for."""
        return {}

    def iteration(self) -> int:
        """Has the groups of this iteration played; returns how many there are."""
        groups = 0

        def play(call: str, tasks: Sequence[Task]) -> list[float]:
            nonlocal groups
            names = self.submit(call, tasks)
            groups += len(tasks)
            self.replay_buffer.wait(groups)
            episodes, size = self.episodes(call, tasks), self.spec.trainer.group_size
            self.played |= zip(names, in_groups(episodes, size), strict=True)
            rewards = earned(episodes, self.spec)
            if self.spec.trainer.resample:
                each = zip(names, in_groups(rewards, size), strict=True)
                self.replay_buffer.unwanted |= {n for n, group in each if not differ(group)}
            return rewards

        self.played.clear()
        self.replay_buffer.unwanted.clear()
        self.course.iteration(self.spec.call(self.global_steps - 1), play)
        if not self.course.iterations_left():
            self.end()
        return groups

    def submit(self, call: str, tasks: Sequence[Task]) -> list[str]:
        """Asks for a group of each task; returns the groups' names."""
        size, prompts = self.spec.trainer.group_size, list[dict[str, Any]]()
        for place, task in enumerate(tasks):
            prompt, episodes = self.prompts[task.id], {CALL: call, FIRST: place * size}
            prompts.append(prompt | {"extra_info": prompt["extra_info"] | episodes})
        data = collate_fn(prompts)
        data["uid"] = np.array([str(uuid4()) for _ in tasks], dtype=object)
        batch = tu.get_tensordict(data)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        self._submit_batch_to_rollout(batch)
        return list(data["uid"])

    def episodes(self, call: str, tasks: Sequence[Task]) -> list[Trajectory]:
        """Those of a call's groups, which are on disk before verl has their rows."""
        count = len(tasks) * self.spec.trainer.group_size
        there, end = dict[int, Trajectory](), time.monotonic() + _LATE
        while len(there) < count:
            there |= self.arrivals.take(call, set(range(count)) - there.keys())
            if time.monotonic() > end:
                raise RuntimeError(f"{self.arrivals.folder} has {len(there)} of {count} of {call}")
            time.sleep(_POLL)
        return [there[n] for n in range(count)]

    def end(self) -> None:
        """This iteration is the last one: it is saved."""
        self.total_training_steps = self.global_steps
        self.config.trainer.save_freq = 1

    def actors(self) -> list[Any]:
        """The actors that the job needs: they train, sample, or run environments."""
        servers = [s for replica in self.llm_server_manager.get_replicas() for s in replica.servers]
        environments = self.agent_loop_manager.agent_loop_workers
        return [*self.actor_rollout_wg.workers, *servers, *environments]

    def on_train_begin(self) -> None:
        """Takes the course to where the last checkpoint is."""
        super().on_train_begin()

        def play(call: str, tasks: Sequence[Task]) -> list[float]:
            if not self.spec.trainer.resample:  # the course does not depend on them
                return [math.nan] * (len(tasks) * self.spec.trainer.group_size)
            return earned(self.episodes(call, tasks), self.spec)

        for iteration in range(self.global_steps - 1):
            self.course.iteration(self.spec.call(iteration), play)
        if not self.course.iterations_left():
            self.total_training_steps = self.global_steps - 1
        threading.Thread(target=end_with, args=(self.actors(),), daemon=True).start()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.config.trainer.device == "cpu":
            from trace_bench.trainers.verl.cpu.server import CpuWorker

            for role in list(self.role_worker_mapping):
                self.role_worker_mapping[role] = ray.remote(CpuWorker)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The advantages of trainer=local in the place of verl's, and where episodes have several
        rows the weights of their tokens."""
        batch, spec = super()._compute_advantage(batch, metrics), self.spec
        every, several = members(batch.keys), self._several(batch)
        data = _taken(batch, "response_mask", "rollout_is_weights")
        nested = data["response_mask"]
        mask = nested.to_padded_tensor(padding=0)
        values = response_to_nested(dealt(self.advantages(), mask, every), nested)
        new = {"advantages": values, "returns": values}
        if several:
            usual = spec.groups * spec.trainer.group_size
            factors = weights(mask, every, spec.trainer.algorithm.aggregation()[0], usual)
            if "rollout_is_weights" in data:  # of truncated importance sampling
                factors = factors * data["rollout_is_weights"].to_padded_tensor(padding=0)
            new["rollout_is_weights"] = response_to_nested(factors, nested)
        fields = TensorDict(new, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def advantages(self) -> dict[str, Tensor]:
        """Those of the sampled tokens of this iteration's trained episodes, by name."""
        names = [f"{name}_{n}" for name, group in self.played.items() for n in range(len(group))]
        episodes = [episode for group in self.played.values() for episode in group]
        found = credit(episodes, earned(episodes, self.spec), self.spec, self.spec.trainer)
        lengths = [sum(len(turn.token_ids) for turn in e.turns) for e in episodes]
        return {
            name: found.spread([n], torch.tensor([lengths[n]]))
            for n, name in enumerate(names)
            if found.trained[n] and lengths[n]
        }

    def _several(self, batch: Any) -> bool:
        """Whether an episode of the batch has several rows."""
        return any(not key.endswith("_0") for key in batch.keys)

    def _balance_batch(self, batch: Any, *arguments: Any, **named: Any) -> Any:
        self._dealt = self._several(batch)
        return super()._balance_batch(batch, *arguments, **named)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """With several rows an episode there are as many optimizer steps as without: each has an
        equal part of the rows, whatever their number."""
        if not self._dealt:
            return int(super()._get_required_batch_multiple(dp_size))
        return self._minibatches * math.lcm(dp_size, self.config.actor_rollout_ref.rollout.n)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        usual = actor.ppo_mini_batch_size
        batch.extra_info[RATE] = self.course.rate()
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
        data = _taken(batch, "response_mask", "rollout_log_probs", "old_log_probs")
        padded = data.to_padded_tensor()
        sampler, old = padded["rollout_log_probs"], padded["old_log_probs"]
        sampled = padded["response_mask"].bool()
        apart = mismatch(sampler[sampled], old[sampled])
        if apart is not None:
            metrics.update(zip(MISMATCH, (apart.mean, apart.max, apart.kl), strict=True))
        return batch


def _taken(batch: Any, *fields: str) -> Any:
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


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
            from trace_bench.trainers.verl.cpu import register_rollout

            register_rollout()
        config.transfer_queue.enable = True
        pprint(OmegaConf.to_container(config, resolve=True))
        OmegaConf.resolve(config)
        wait_for_cluster(config.trainer.nnodes)
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


def wait_for_cluster(machines: int) -> None:
    """Until all machines have joined, which a batch job starts one by one, and the remains of a
    killed run are gone. Raises RuntimeError if that is too late: verl's queue has a fixed name, so
    a second run on the cluster would use and end the first one's."""
    end = time.monotonic() + _READY
    while why := _unready(machines):
        if time.monotonic() > end:
            raise RuntimeError(why)
        time.sleep(_WATCH)


def _unready(machines: int) -> str:
    if (joined := sum(node["Alive"] for node in ray.nodes())) < machines:
        return (
            f"{joined} of trainer.nnodes={machines} machines have joined the Ray cluster: start "
            "the others, or lower trainer.nnodes"
        )
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:
        return ""
    return "another run of verl is on this Ray cluster; one at a time"
