"""verl's rows in its queue: those that its trainer takes in an iteration and, for algorithms that
have a teacher, its reading of them. That is the model that is trained, before the iteration's first
step, with a lesson in the prompt (`trainers.course.taught`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested, response_to_nested

from trace_bench.core.types import Message, Trajectory
from trace_bench.policies.chat import Chat
from trace_bench.trainers.course import differ, taught
from trace_bench.trainers.grpo import earned
from trace_bench.trainers.tree import Tokens
from trace_bench.trainers.verl.spec import NOTHING, JobSpec

LOST = "no episodes could be run; see the error above"

_POLL = 0.05  # seconds; verl's own 2 s are as long as a small model's step
_PLACE = "teacher"  # the partition of verl's queue with the teacher's rows
_FIELDS = (
    "prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids",
    "multi_modal_inputs",
)  # fmt: skip


class Sampler(ReplayBuffer):
    """Has an iteration's groups played, and waits for them. A group with fewer than two episodes
    left has no learning signal and is dropped, as with trainer=local."""

    def __init__(self, iteration: Callable[[], int], **arguments: Any) -> None:
        super().__init__(poll_interval=_POLL, **arguments)
        self.iteration = iteration  # plays one, and says how many groups there are to sample
        self.unwanted = set[str]()  # groups in whose place others were played

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        if partition_id == "train":
            batch_size = self.iteration()
        return super().sample(global_steps, partition_id, batch_size)

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
        if partition_id == "val":
            return batch
        keys = list(batch.keys)
        tags = dict(zip(keys, batch.tags, strict=True))
        played = [key for key in keys if tags[key]["min_global_steps"] != NOTHING]
        episodes = {key.rpartition("_")[0] for key in played}  # which may have several rows
        members = Counter(map(group_of, episodes))
        kept = {
            key
            for key in played
            if members[group_of(key)] > 1 and group_of(key) not in self.unwanted
        }
        # If nothing is left, one of the other groups gives a step with a zero gradient.
        others = [key for key in keys if key not in set(played)] or played
        kept = kept or {key for key in others if group_of(key) == group_of(others[0])}
        if gone := [key for key in keys if key not in kept]:
            tq.kv_clear(keys=gone, partition_id=partition_id)
        keys = [key for key in keys if key in kept]
        return tq.KVBatchMeta(
            partition_id=partition_id, keys=keys, tags=[tags[key] for key in keys]
        )


def taken(batch: Any, *fields: str) -> Any:
    """These fields of a batch's rows."""
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


def put(batch: Any, **fields: Tensor) -> Any:
    """Gives the batch's rows these fields."""
    made = TensorDict(fields, batch_size=len(batch))
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=made)


def group_of(key: str) -> str:
    """The name of the group of one of verl's rows or episodes."""
    return key.split("_")[0]


def member_of(key: str) -> int:
    """The place in its group of one of verl's rows."""
    return int(key.split("_")[1])


def lessons(
    groups: Mapping[str, Sequence[Trajectory]],
    spec: JobSpec,
    chat: Chat,
    references: Mapping[str, Sequence[Message]],
) -> dict[str, Tokens]:
    """By the key of verl's row what the teacher reads instead; none of a group without a learning
    signal. `groups`: the episodes of each group by its name."""
    found: dict[str, Tokens] = {}
    for name, group in groups.items():
        rewards = earned(group, spec, spec.trainer)
        if not differ(rewards):
            continue
        read = taught(group, rewards, references.__getitem__, spec.trainer, chat, spec.context)
        for member, sequences in enumerate(read):
            found |= {f"{name}_{member}_{n}": tokens for n, tokens in enumerate(sequences)}
    return found


def read(batch: Any, told: Mapping[str, Tokens], actor: Any) -> Tensor:
    """The teacher's log-probabilities of the batch's tokens, nested as their mask; the policy's own
    where there is no lesson, from which nothing follows. Each row is read once more, so that the
    processes have the same work as before."""
    data = taken(batch, *_FIELDS, "old_log_probs")
    rows, keys = [], [f"{key}_taught" for key in batch.keys]
    for n, key in enumerate(batch.keys):
        row = {field: data[n][field] for field in _FIELDS}
        if (tokens := told.get(key)) is not None:
            row["prompts"] = torch.from_numpy(tokens.ids[: int(tokens.sampled[0])]).long()
            row["input_ids"] = torch.cat([row["prompts"], row["responses"]])
            row["position_ids"] = torch.arange(len(row["input_ids"]))
        rows.append(row)
    fields = list_of_dict_to_tensordict(rows)
    tq.kv_batch_put(keys=keys, partition_id=_PLACE, fields=fields, tags=list(batch.tags))
    meta = tq.KVBatchMeta(partition_id=_PLACE, keys=keys, tags=list(batch.tags))
    meta.extra_info.update(temperature=1.0, calculate_entropy=False, compute_loss=False)
    actor.compute_log_prob(meta)
    out = tq.kv_batch_get(
        keys=keys, partition_id=_PLACE, select_fields=["log_probs", "response_mask"]
    )
    tq.kv_clear(keys=keys, partition_id=_PLACE)
    there = torch.tensor([[key in told] for key in batch.keys])
    taught = response_from_nested(out["log_probs"], out["response_mask"]).to_padded_tensor(0.0)
    own = data["old_log_probs"].to_padded_tensor(0.0)
    return response_to_nested(torch.where(there, taught, own), data["response_mask"])
