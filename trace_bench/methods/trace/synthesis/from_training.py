"""Training tasks as the environments of a capability (`method.synthesis=select`): those whose
failures lack it. For suites that can make no tasks of their own.

No calibration is run: the analysis has run these very tasks with the base agent, and its
numbers are what is written down of them. Nothing is dropped for them, since a task that is taken
here has failed at least once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.types import Task
from trace_bench.methods.trace.analysis.phase import Analysis
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.methods.trace.synthesis.calibrate import of_groups

MARK = "environments selected from training tasks"


def select(analysis: Analysis, names: Sequence[str]) -> dict[str, tuple[Task, ...]]:
    """The tasks of each capability, in the order of the analysis. A task that lacks several
    capabilities belongs to each of them. A capability that no failure lacks by the majority of the
    labelling runs is left out."""
    tasks: dict[str, tuple[Task, ...]] = {}
    for name in names:
        lacking = {e.task.id: e.task for e in analysis.lacking(name)}
        if lacking:
            tasks[name] = tuple(lacking.values())
    return tasks


def as_json(
    analysis: Analysis, tasks: Mapping[str, Sequence[Task]], settings: SynthesisSettings
) -> list[dict[str, Any]]:
    """What the analysis measured on the tasks of each capability, JSON-safe."""
    return [
        {
            "name": name,
            "outcome": MARK,
            "tasks": [task.id for task in of],
            **vars(of_groups([analysis.episodes_of(task) for task in of], settings)),
        }
        for name, of in tasks.items()
    ]
