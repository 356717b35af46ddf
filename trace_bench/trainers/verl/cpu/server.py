"""verl's rollout server on a CPU: this project's own engine (policies/engine), from tokens to
tokens, with the adapter in full precision; and its training worker."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from trace_bench.policies.engine.lora import adapter_of
from trace_bench.policies.engine.scheduler import Order, Sampled, Scheduler
from trace_bench.policies.loading import load_model
from trace_bench.policies.local import backend_of
from trace_bench.trainers.verl.cpu import register_rollout
from trace_bench.trainers.verl.spec import JOB_VARIABLE, JobSpec
from trace_bench.trainers.verl.tokens import resolve

_SLOTS = 128  # concurrent sequences; further ones wait


class CpuReplica(RolloutReplica):
    """One server beside each group of training processes."""

    def rollout_worker_use_gpu(self) -> bool:
        return False

    async def launch_servers(self) -> None:
        name = f"trace_bench_server_{self.replica_rank}"
        server = ray.remote(CpuServer).options(name=name, max_concurrency=self.max_concurrency)
        handle = server.remote(self.model_config.path)
        await handle.ready.remote()
        self.servers, self._server_handle, self._server_address = [handle], handle, name


class CpuRollout(BaseRollout):
    """The training process's side: sends its server the adapter after every iteration."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        width = self.config.tensor_model_parallel_size
        rank = int(os.environ["RANK"])
        self.replica_rank, self.is_leader_rank = rank // width, rank % width == 0
        self.sleep_level = 1

    async def resume(self, tags: list[str]) -> None:
        """No effect: nothing was released."""

    async def release(self) -> None:
        """No effect: there is no GPU memory to free."""

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        *,
        peft_config: Any = None,
        base_sync_done: bool = True,
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        if peft_config is None or not base_sync_done:
            raise RuntimeError("only adapters are accepted; the base model does not change")
        adapter = {name: tensor.detach().cpu() for name, tensor in weights}
        if self.is_leader_rank:
            server = ray.get_actor(f"trace_bench_server_{self.replica_rank}")
            scale = peft_config["lora_alpha"] / peft_config["r"]
            await server.take.remote(adapter, scale, int(global_steps or 0))


class CpuServer:
    """A Ray actor. Requests arrive on its event loop; one thread runs the engine over all of them.
    A new adapter takes effect between requests."""

    def __init__(self, model_path: str) -> None:
        torch.set_num_threads(1)
        self._spec = spec = JobSpec.read(Path(os.environ[JOB_VARIABLE]))
        model, tokenizer = load_model(model_path)
        self._backend = backend_of(model, _SLOTS, spec.context)
        self._engine = Scheduler(self._backend, _SLOTS, spec.context, tokenizer.eos_token_id)
        self._version = 0
        self._name: str | None = None
        self._numbers = itertools.count(1)
        self._asked: queue.SimpleQueue[tuple[Order, asyncio.Future[Sampled]]] = queue.SimpleQueue()
        self._live: dict[int, asyncio.Future[Sampled]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    async def ready(self) -> bool:
        return True

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Samples a turn. `sampling_params`: temperature, max_tokens, and the seed of the episode's
        random stream, in which the prompt's length is the position where this turn begins."""
        answer: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        order = Order(
            next(self._numbers),
            list(prompt_ids),
            seed=int(sampling_params.get("seed", 0)),
            temperature=float(sampling_params["temperature"]),
            max_tokens=int(sampling_params.get("max_tokens", self._spec.max_tokens)),
        )
        self._asked.put((order, answer))
        sampled = await answer
        return TokenOutput(
            token_ids=list(sampled.ids),
            log_probs=list(sampled.logprobs),
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self._version},
        )

    async def take(self, weights: dict[str, torch.Tensor], scale: float, version: int) -> None:
        """Replaces the adapter. No request may be in flight."""
        with self._lock:
            if self._live:
                raise RuntimeError("an adapter arrived while turns were being sampled")
            name = f"version {version}"
            if self._name is not None and self._name != name:
                self._backend.remove(self._name)
            if self._name != name:
                self._backend.add(adapter_of(name, weights, scale, self._backend.shapes))
            self._name, self._version = name, version

    async def sleep(self, *_: Any, **__: Any) -> None:
        """No effect: verl uses this to free a GPU's memory."""

    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = sleep
    abort_all_requests = resume_generation = start_profile = stop_profile = sleep

    def _work(self) -> None:
        """The engine's thread. A failure ends this process, and verl is restarted from its last
        checkpoint; otherwise requests would run into their deadlines one by one."""
        try:
            self._serve()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _serve(self) -> None:
        while True:
            waiting = [self._asked.get()] if not self._live else []
            with self._lock:
                while not self._asked.empty():
                    waiting.append(self._asked.get())
                for order, answer in waiting:
                    try:
                        self._engine.submit(replace(order, adapter=self._name))
                        self._live[order.episode] = answer
                    except ValueError as error:
                        resolve(answer, error)
                if self._live:
                    for sampled in self._engine.step():
                        self._engine.release(sampled.episode)
                        resolve(self._live.pop(sampled.episode), sampled)


class CpuWorker(ActorRolloutRefWorker):
    """verl asks torch for the process group "cpu:gloo,cpu:gloo", which torch refuses; if a group
    exists already, verl uses that one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")  # rank and address are in the environment
        register_rollout()
        super().__init__(*args, **kwargs)
