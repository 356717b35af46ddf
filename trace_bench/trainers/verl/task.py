"""verl's task runner with this project's trainer, in a process of its own on the Ray cluster."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from pprint import pprint

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from trace_bench.trainers.verl.advantages import advantages
from trace_bench.trainers.verl.spec import ESTIMATOR, JOB_VARIABLE, read_spec
from trace_bench.trainers.verl.steps import StepTrainer

_LEFTOVERS = 60.0  # seconds until Ray has removed what a killed run left behind
_WATCH = 3.0  # seconds between looks for it


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
