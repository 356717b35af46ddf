"""The saved state from which a killed training job is resumed: one file, replaced atomically."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trace_bench.core.errors import UserError
from trace_bench.trainers.adapters import restart, write_bytes
from trace_bench.trainers.model import Learner
from trace_bench.trainers.settings import TrainerSettings

FILE = "state.pt"


@dataclass
class State:
    """The state after `iteration` iterations. `records`: their metrics. `perfect`: how many of the
    latest iterations in a row had full reward in every group. `weights` and `optimizer` are set
    only when read from disk."""

    identity: str
    iteration: int = 0
    perfect: int = 0
    finished: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    weights: list[torch.Tensor] | None = None
    optimizer: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: Path, identity: str) -> State:
        """The state in the folder, or a new one. Raises UserError for another job's state."""
        path = folder / FILE
        if not path.exists():
            return cls(identity)
        found = cls(**torch.load(path, map_location="cpu", weights_only=True))
        if found.identity != identity:
            raise UserError(
                f"{path} belongs to a training job with other settings, tasks or seed. Change the "
                "setting `run_dir`, or remove the folder."
            )
        return found

    def save(self, folder: Path, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the file. A finished job keeps only its metrics; its adapter is stored apart."""
        data = {**vars(self), "weights": None, "optimizer": None}
        if not self.finished:
            data["weights"] = [p.detach().cpu() for p in learner.parameters]
            data["optimizer"] = optimizer.state_dict()
        buffer = io.BytesIO()
        torch.save(data, buffer)
        write_bytes(folder / FILE, buffer.getvalue())


def restore(
    state: State, learner: Learner, settings: TrainerSettings, seed: int
) -> torch.optim.Optimizer:
    """Loads the state into adapter and optimizer, or initializes them if it is new."""
    optimizer = torch.optim.AdamW(
        learner.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    if state.weights is None or state.optimizer is None:
        restart(learner.layers, seed)
        return optimizer
    with torch.no_grad():
        for parameter, stored in zip(learner.parameters, state.weights, strict=True):
            parameter.copy_(stored)
    optimizer.load_state_dict(state.optimizer)
    return optimizer
