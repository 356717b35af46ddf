"""Takes a job back to the start of one of its iterations, of which too many episodes were lost:
they are run again, as if nothing had been learned from the rest.

verl goes on by itself while the run's process notices the loss, so it may have trained on the
iteration, saved that, and ran episodes of later iterations with the result.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from trace_bench.core.run_files import EPISODE
from trace_bench.core.store import Lines, Needs
from trace_bench.trainers.verl.arrivals import OF_STEP, Steps
from trace_bench.trainers.verl.spec import JobSpec


def rewind(folder: Path, spec: JobSpec, iteration: int, missing: Collection[int]) -> int:
    """Forgets what the job's folder has of the `iteration` and of later ones: checkpoints,
    adapters, metrics, episodes. Of the iteration itself only the failed episodes at the indices
    `missing` are forgotten. Returns how many episodes of later iterations were. Nothing of verl may
    be running; cut off at any moment, the same call completes it."""
    Steps(folder).back_to(iteration)
    for version in folder.parent.glob("[0-9]*"):
        if int(version.name) > iteration:
            shutil.rmtree(version)
    here = spec.call(iteration)
    later = {spec.call(i) for i in range(iteration + 1, spec.iterations)}
    shown = {spec.validation(step) for step in range(iteration + 1, spec.iterations + 1)}
    gone = frozenset(missing)

    def lost(line: dict[str, Any]) -> bool:
        failed = line["trajectory"].get("failure") is not None
        return line["call"] == here and line["index"] in gone and failed

    _drop(folder.glob("metrics-*.jsonl"), OF_STEP, lambda line: line["step"] > iteration)
    _drop(folder.glob("validation/*.jsonl"), EPISODE, lambda line: line["call"] in shown)
    episodes = sorted(folder.glob("episodes/*.jsonl"))
    _drop(episodes, EPISODE, lost)
    return _drop(episodes, EPISODE, lambda line: line["call"] in later)


def _drop(paths: Iterable[Path], needs: Needs, unwanted: Callable[[dict[str, Any]], bool]) -> int:
    """Removes the unwanted lines of these files; returns how many."""
    count = 0
    for path in paths:
        with Lines(path, needs) as lines:
            found = sum(map(unwanted, lines.existing))
            if found:
                lines.drop(unwanted)
            count += found
    return count
