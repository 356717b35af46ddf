"""Converts verl's checkpoints to adapters in PEFT's format, in the precision of the training
(verl's own merger writes bf16)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trace_bench.core.errors import UserError
from trace_bench.trainers.adapters import Pair, write_adapter

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_NAME = re.compile(r"^(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight$")


def export(checkpoint: Path, target: Path, lora: Mapping[str, Any], model: str) -> None:
    """Writes the adapter of `<checkpoint>/actor` to the folder `target`. `lora`: rank, alpha and
    target_modules. Raises UserError when a rank's file is missing."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in whole(checkpoint / "actor").items():
        if (match := _NAME.match(name)) is not None:
            found.setdefault(match[1], {})[match[2]] = tensor
    layers = {name: Pair(parts["A"], parts["B"]) for name, parts in found.items()}
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
    with _no_mesh_warnings():
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


@contextmanager
def _no_mesh_warnings() -> Iterator[None]:
    """Silences torch's warning about missing process groups, which are not needed here."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _joined(parts: list[Any]) -> Tensor:
    first = parts[0]
    if not hasattr(first, "placements"):
        return first.detach()
    local = [part._local_tensor.detach() for part in parts]
    (placement,) = first.placements
    return torch.cat(local, dim=placement.dim) if placement.is_shard() else local[0]
