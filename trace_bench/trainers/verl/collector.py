"""The episodes of an iteration's call, collected as verl's workers write them. Where too many were
lost, the job is taken back to the start of the iteration and they are run again, as if nothing had
been learned from the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import OnEpisode, TakesBack
from trace_bench.core.store import Lines
from trace_bench.core.types import Stored
from trace_bench.trainers.verl.arrivals import Arrivals, OfStep, StepFiles
from trace_bench.trainers.verl.process import Process
from trace_bench.trainers.verl.spec import JobSpec

T = TypeVar("T")


@dataclass(frozen=True)
class Collector(TakesBack):
    """Of one call of the job in `folder`, which has `count` episodes."""

    spec: JobSpec
    folder: Path
    call: str
    count: int
    arrivals: Arrivals
    process: Process

    def __call__(self, which: Sequence[int], ended: OnEpisode) -> None:
        left = set(which)
        self.check_kept(set(range(self.count)) - left)
        self.process.progress()  # the time until now was spent here, for instance on an evaluation
        while left:
            for index, trajectory in self.arrivals.take(self.call, left):
                left.discard(index)
                self.process.progress()
                ended(index, trajectory)
            if left:
                self.process.pause()

    def check_kept(self, recorded: Collection[int]) -> None:
        """Before verl is started, raises UserError if it has to learn from `recorded` episodes that
        are not here: it would play others, which no ledger counts."""
        if self.process.started or StepFiles(self.folder).saved() > self.iteration:
            return
        if lost := set(recorded) - self.arrivals.known(self.call):
            raise UserError(
                f"{self.arrivals.folder} lacks {len(lost)} of the {len(recorded)} episodes of "
                f"{self.call!r} that the ledger has, and no checkpoint has learned from them. "
                f"Restore {self.folder} from a copy, or change the setting `run_dir`."
            )

    def take_back(self, missing: Sequence[int]) -> None:
        self.process.stop()
        dropped = rewind(self.folder, self.spec, self.call, missing)
        self.arrivals.forget()
        self.process.resumed = StepFiles(self.folder).saved()
        text = f"{self.spec.name}: back to the start of iteration {self.iteration}"
        if dropped:
            text += (
                f"; {dropped} later episodes, which are in no ledger, are forgotten: they followed "
                "from what was left of these"
            )
        self.process.report(text)

    @property
    def iteration(self) -> int:
        return self.spec.when(self.call)[0]


def rewind(folder: Path, spec: JobSpec, call: str, missing: Collection[int]) -> int:
    """Forgets what the job's folder has of the iteration of a `call` and of later ones:
    checkpoints, adapters, metrics, episodes; of the call itself only failed episodes at the indices
    `missing`. Returns how many later episodes were forgotten. Nothing of verl may be running; cut
    off at any moment, the same call completes it. verl goes on by itself while the run's process
    notices the loss, so it may have trained on the iteration and run later ones."""
    iteration, again = spec.when(call)
    StepFiles(folder).back_to(iteration)
    for version in folder.parent.glob("[0-9]*"):
        if int(version.name) > iteration:
            shutil.rmtree(version)
    shown = {spec.validation(step) for step in range(iteration + 1, spec.iterations + 1)}
    gone = frozenset(missing)

    def lost(line: Stored) -> bool:
        failed = line.trajectory.failure is not None
        return line.call == call and line.index in gone and failed

    _drop(folder.glob("metrics-*.jsonl"), OfStep, lambda line: line.step > iteration)
    _drop(folder.glob("validation/*.jsonl"), Stored, lambda line: line.call in shown)
    episodes = sorted(folder.glob("episodes/*.jsonl"))
    _drop(episodes, Stored, lost)
    return _drop(episodes, Stored, lambda line: spec.when(line.call) > (iteration, again))


def _drop(paths: Iterable[Path], kind: type[T], unwanted: Callable[[T], bool]) -> int:
    """Removes the unwanted lines of these files; returns how many."""
    count = 0
    for path in paths:
        with Lines(path, kind) as lines:
            found = sum(map(unwanted, lines.existing))
            if found:
                lines.drop(unwanted)
            count += found
    return count
