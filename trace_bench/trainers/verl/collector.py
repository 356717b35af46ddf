"""An iteration's episodes, collected as verl's workers write them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import OnEpisode
from trace_bench.trainers.verl.arrivals import Arrivals, Steps
from trace_bench.trainers.verl.process import Process
from trace_bench.trainers.verl.rewind import rewind
from trace_bench.trainers.verl.spec import JobSpec


@dataclass(frozen=True)
class Collector:
    """Implements `protocols.PlayElsewhere` and `TakesBack` for one iteration of the job in
    `folder`."""

    spec: JobSpec
    folder: Path
    iteration: int
    arrivals: Arrivals
    process: Process

    def __call__(self, which: Sequence[int], ended: OnEpisode) -> None:
        left, call = set(which), self.spec.call(self.iteration)
        self.check_kept(set(range(self.spec.groups * self.spec.group_size)) - left)
        self.process.progress()  # the time until now was spent here, for instance on an evaluation
        while left:
            for index, trajectory in self.arrivals.take(call, left):
                left.discard(index)
                self.process.progress()
                ended(index, trajectory)
            if left:
                self.process.pause()

    def check_kept(self, recorded: Collection[int]) -> None:
        """Before verl is started, raises UserError if it has to learn from episodes that the run
        has `recorded`, and does not have them: it would play others, which no ledger counts."""
        call = self.spec.call(self.iteration)
        if self.process.started or Steps(self.folder).saved() > self.iteration:
            return
        if lost := set(recorded) - self.arrivals.known(call):
            raise UserError(
                f"{self.arrivals.folder} lacks {len(lost)} of the {len(recorded)} episodes of "
                f"{call!r} that the ledger has, and no checkpoint has learned from them. Restore "
                f"{self.folder} from a copy, or change the setting `run_dir`."
            )

    def take_back(self, missing: Sequence[int]) -> None:
        """Takes verl back to before the iteration."""
        self.process.stop()
        dropped = rewind(self.folder, self.spec, self.iteration, missing)
        self.arrivals.forget()
        self.process.resumed = Steps(self.folder).saved()
        text = f"{self.spec.name}: back to the start of iteration {self.iteration}"
        if dropped:
            text += (
                f"; {dropped} episodes of later iterations, which are in no ledger, are forgotten: "
                "their agent had learned from what was left of this one"
            )
        self.process.report(text)
