"""The factory of `trainer=verl`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trace_bench.core.protocols import RunContext
from trace_bench.trainers.settings import VerlSettings

if TYPE_CHECKING:
    from trace_bench.trainers.verl.trainer import VerlTrainer


def verl_trainer(settings: VerlSettings, run: RunContext) -> VerlTrainer:
    """Builds the trainer. Does not import or start verl."""
    from trace_bench.trainers.verl.trainer import VerlTrainer

    return VerlTrainer(settings, run)
