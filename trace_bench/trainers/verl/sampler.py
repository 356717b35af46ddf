"""verl's replay buffer: which of the rows in its queue its trainer takes in an iteration."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from trace_bench.trainers.verl.spec import NOTHING

LOST = "no episodes could be run; see the error above"

_POLL = 0.05  # seconds; verl's own 2 s are as long as a small model's step


class Sampler(ReplayBuffer):
    """Has an iteration's groups played, and waits for them. A group with fewer than two episodes
    left has no learning signal and is dropped, as with trainer=local."""

    def __init__(self, iteration: Callable[[], int], **arguments: Any) -> None:
        super().__init__(poll_interval=_POLL, **arguments)
        self.iteration = iteration  # plays one, and says how many groups there are to sample
        self.unwanted = set[str]()  # groups in whose place others were played

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        return super().sample(global_steps, partition_id, self.iteration())

    def wait(self, groups: int) -> None:
        """Until so many of training's groups have been played."""
        while True:
            self._sync_metadata_from_transfer_queue()
            if self.failure_keys["train"]:
                raise RuntimeError(LOST)
            if len(self.finished_keys["train"]) >= groups:
                return
            time.sleep(_POLL)

    def _select_prompt_uids(self, partition_id: str, *rest: Any) -> Any:
        if self.failure_keys[partition_id]:
            raise RuntimeError(LOST)
        return super()._select_prompt_uids(partition_id, *rest)

    def _materialize_batch(self, partition_id: str, *rest: Any) -> Any:
        batch = super()._materialize_batch(partition_id, *rest)
        keys = list(batch.keys)
        tags = dict(zip(keys, batch.tags, strict=True))
        played = [key for key in keys if tags[key]["min_global_steps"] != NOTHING]
        episodes = {key.rpartition("_")[0] for key in played}  # which may have several rows
        members = Counter(map(_group, episodes))
        kept = {
            key for key in played if members[_group(key)] > 1 and _group(key) not in self.unwanted
        }
        # If nothing is left, one of the other groups gives a step with a zero gradient.
        others = [key for key in keys if key not in set(played)] or played
        kept = kept or {key for key in others if _group(key) == _group(others[0])}
        if gone := [key for key in keys if key not in kept]:
            tq.kv_clear(keys=gone, partition_id=partition_id)
        keys = [key for key in keys if key in kept]
        return tq.KVBatchMeta(
            partition_id=partition_id, keys=keys, tags=[tags[key] for key in keys]
        )


def _group(key: str) -> str:
    """The name of the group of one of verl's rows or episodes."""
    return key.split("_")[0]
