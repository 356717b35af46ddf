"""How a job takes its advantages from checklists (`TrainingJob.assignment`), for every trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.checklists.rewards import Assignment
from trace_bench.core.checked import build
from trace_bench.core.errors import UserError
from trace_bench.trainers.settings import Recipe


def assignment_of(given: Mapping[str, Any], normalize_std: bool) -> Assignment:
    """A job's assignment from plain data. The trainer's setting decides about the deviation."""
    return build(Assignment, {**given, "deviation": normalize_std}, "method")


def check_assignment(given: Mapping[str, Any], recipe: Recipe) -> None:
    """Raises UserError for unknown fields, and for an assignment whose baselines no group of the
    recipe is large enough for: every advantage would be zero."""
    how = assignment_of(given, recipe.normalize_std)
    if how.level != "trajectory" and how.holders > recipe.group_size:
        raise UserError(
            f"method.holders={how.holders} asks for more rollouts in a baseline than a group has "
            f"(trainer.group_size={recipe.group_size}), so nothing would be learned. Lower "
            "`method.holders`, or raise `trainer.group_size`."
        )
