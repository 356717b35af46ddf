"""A teacher's reading of verl's rows, for algorithms that have one: the model that is trained,
before the iteration's first step, with a lesson in the prompt (`trainers.course.taught`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from torch import Tensor
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested, response_to_nested

from trace_bench.core.types import Message, Trajectory
from trace_bench.policies.chat import Chat
from trace_bench.trainers.course import differ, taught
from trace_bench.trainers.grpo import earned
from trace_bench.trainers.tree import Tokens
from trace_bench.trainers.verl.spec import JobSpec

_PLACE = "teacher"  # the partition of verl's queue with the teacher's rows
_FIELDS = (
    "prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids",
    "multi_modal_inputs",
)  # fmt: skip


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
    wanted = [*_FIELDS, "old_log_probs"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
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
