"""A job's folder: checks that no other job owns it, writes the files for verl's processes, and
makes adapters of verl's checkpoints, in the training's precision (verl's own merger writes bf16).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TrainingJob
from trace_bench.core.store import read_bytes, write_text
from trace_bench.core.types import Task, to_json
from trace_bench.trainers.adapters import Pair, begin_with, fresh, write_adapter
from trace_bench.trainers.job import identity_of, other_job, start_of
from trace_bench.trainers.verl.spec import JobSpec

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_NAME = re.compile(r"^(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight$")


def claim(folder: Path, job: TrainingJob, spec: JobSpec) -> None:
    """Claims the folder of an adapter's versions. Raises UserError if it is another job's."""
    digest, path = identity_of(job, spec.trainer), folder / "job"
    if path.exists() and read_bytes(path) != digest.encode():
        raise other_job(path)
    write_text(path, digest)


def prepare(folder: Path, job: TrainingJob, spec: JobSpec) -> None:
    """Writes all files that verl's processes read, at every start: they depend on the job alone."""
    spec.write(folder)
    settings, model = spec.trainer, spec.agent.model
    table(folder / "tasks.parquet", job.tasks)
    loop = "trace_bench.trainers.verl.episodes.EpisodeLoop"
    write_text(folder / "agent_loop.yaml", f"- name: trace_bench\n  _target_: {loop}\n")
    layers = fresh(model, settings.target_modules, settings.rank, job.seed)
    if (start := start_of(job.agent)) is not None:
        begin_with(layers, start, settings)
    write_adapter(folder / "start", layers, vars(settings), model)


def table(path: Path, tasks: Sequence[Task]) -> None:
    """Writes the parquet file from which verl reads its tasks, atomically. verl requires a prompt
    and a ground truth in every row, but ours are never used."""
    import pyarrow
    from pyarrow import parquet

    rows: list[dict[str, Any]] = [
        {
            "data_source": "trace_bench",
            "prompt": [{"role": "user", "content": task.id}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": n, "task": json.dumps(to_json(task))},
            "agent_name": "trace_bench",
        }
        for n, task in enumerate(tasks)
    ]
    temporary = path.with_name(f".{path.name}.tmp")
    parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
    temporary.replace(path)


def export(checkpoint: Path, target: Path, lora: Mapping[str, Any], model: str) -> None:
    """Writes the adapter of `<checkpoint>/actor` to the folder `target`. `lora`: rank, alpha and
    target_modules. Raises UserError when a rank's file is missing."""
    matrices: dict[str, dict[str, Tensor]] = {}
    for name, tensor in whole(checkpoint / "actor").items():
        if (match := _NAME.match(name)) is not None:
            matrices.setdefault(match[1], {})[match[2]] = tensor
    layers = {name: Pair(parts["A"], parts["B"]) for name, parts in matrices.items()}
    if not layers:
        raise UserError(f"{checkpoint} holds no adapter. Remove it, and run the command again.")
    write_adapter(target, layers, lora, model)


def whole(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, joined from the ranks' shards."""
    shards = {int(m[2]): p for p in folder.glob("*.pt") if (m := _SHARD.fullmatch(p.name))}
    sizes = {int(m[1]) for p in shards.values() if (m := _SHARD.fullmatch(p.name))}
    if not shards or sizes != {len(shards)}:
        raise UserError(
            f"{folder} has the shards of ranks {sorted(shards)}, of {sorted(sizes)} ranks in all. "
            "Checkpoints must be on storage that all machines share: change the setting `run_dir`."
        )
    states = [_loaded(shards[rank]) for rank in sorted(shards)]
    return {name: _joined([state[name] for state in states]) for name in states[0]}


def _loaded(shard: Path) -> Mapping[str, Any]:
    """A rank's part of a checkpoint. Raises UserError if it cannot be read."""
    try:
        # These files are this run's own; torch cannot read sharded tensors without pickle.
        return torch.load(shard, map_location="cpu", weights_only=False)
    except Exception as error:  # torch documents no errors for a damaged file
        raise UserError(
            f"{shard} cannot be read ({type(error).__name__}: {error}). Remove the folder "
            f"{shard.parent.parent} and run the same command again: the training goes on from the "
            "checkpoint before, with the episodes that are stored."
        ) from error


def _joined(parts: list[Any]) -> Tensor:
    first = parts[0]
    if not hasattr(first, "placements"):
        return first.detach()
    local = [part._local_tensor.detach() for part in parts]
    (placement,) = first.placements
    return torch.cat(local, dim=placement.dim) if placement.is_shard() else local[0]
