"""The saved state from which a killed training goes on: one file, replaced atomically."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_bytes
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import read_weights
from trace_bench.trainers.adapters import begin_with, restart
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.model import Learner

FILE = "state.pt"
_AGAIN = "the training is repeated from the stored rollouts"


@dataclass
class State:
    """The state after the iterations with these `records`. `data`: the hash of what a fine-tuning
    learns from, "" in other trainings. `weights`, `optimizer`: if read from disk."""

    identity: str
    finished: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    data: str = ""
    weights: list[torch.Tensor] | None = None
    optimizer: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: Path, identity: str, log: Callable[[str], None]) -> State:
        """The state in the folder, or a new one. Where the state or its adapter is damaged, the
        training is repeated, which is logged: its rollouts are stored, so none is spent and the
        result is the same. Raises UserError for another job's state."""
        path = folder / FILE
        if not path.exists():
            return cls(identity)
        try:
            state = cls(**torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch documents no errors for a damaged file
            log(f"{path} cannot be read ({type(error).__name__}): {_AGAIN}")
            return cls(identity)
        if state.identity != identity:
            raise UserError(
                f"{path} belongs to a training job with other settings, tasks or seed. Change the "
                "setting `run_dir`, or remove the folder."
            )
        adapter = folder / f"{len(state.records):04d}"
        if state.finished or adapter.exists():
            try:
                read_weights(AdapterRef(adapter.name, str(adapter)))
            except UserError as error:
                log(f"{error.__cause__ or error}, in {adapter}: {_AGAIN}")
                return cls(identity)
        return state

    def save(self, folder: Path, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the file. A finished job keeps only its metrics; its adapter is stored apart."""
        fields = {**vars(self), "weights": None, "optimizer": None}
        if not self.finished:
            fields["weights"] = [p.detach().cpu() for p in learner.parameters]
            fields["optimizer"] = optimizer.state_dict()
        buffer = io.BytesIO()
        torch.save(fields, buffer)
        write_bytes(folder / FILE, buffer.getvalue())


def restore(
    state: State, learner: Learner, settings: Recipe, seed: int, start: AdapterRef | None = None
) -> torch.optim.Optimizer:
    """Loads the state into adapter and optimizer, or begins them: as `start`, if there is one."""
    optimizer = torch.optim.AdamW(learner.parameters, lr=settings.learning_rate, weight_decay=0.0)
    if state.weights is None or state.optimizer is None:
        restart(learner.layers, seed)
        if start is not None:
            begin_with(learner.layers, start, settings)
        return optimizer
    with torch.no_grad():
        for parameter, stored in zip(learner.parameters, state.weights, strict=True):
            parameter.copy_(stored)
    optimizer.load_state_dict(state.optimizer)
    return optimizer
