"""Runs verl (`__main__.py`) as a process group of its own: restarts it from its last checkpoint
when it crashes or stalls, and gives up after a number of restarts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import OnEpisode, PlayElsewhere
from trace_bench.core.store import Lines
from trace_bench.core.types import Head, Stored
from trace_bench.trainers.verl.compose import environment
from trace_bench.trainers.verl.spec import Arrivals, JobSpec, OfStep, StepFiles

T = TypeVar("T")

COMMAND = (sys.executable, "-m", "trace_bench.trainers.verl")
REFUSED = 3  # the exit code for settings that cannot work; a line of what is printed says why
REFUSAL = "refused: "  # how that line begins

_POLL = 0.2  # seconds between checks for new files
_LATE = 60.0  # seconds after verl's end within which its files must have arrived
_GRACE = 20.0  # seconds between asking processes to end and killing them


class VerlFailed(UserError):
    """verl stopped too often; its log says why. The same command resumes where it stopped."""


@dataclass
class Process:
    """verl's process group for a job, which has this folder. `report` logs restarts. `attempt`
    numbers the starts in the folder, including those by earlier runs of the command."""

    folder: Path
    spec: JobSpec
    report: Callable[[str], None]
    attempt: int = 0
    restarted: int = 0
    resumed: int = 0  # iterations that were done when verl was last started
    _child: subprocess.Popen[bytes] | None = None
    _progress: float = field(default_factory=time.monotonic)

    @property
    def started(self) -> bool:
        """Whether verl was started, and not stopped since."""
        return self._child is not None

    def start(self) -> None:
        """Starts verl; its output goes to verl.log."""
        variables = environment(self.spec, self.folder, self.attempt)
        env = {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}
        self.steps.repair()
        self.resumed = self.steps.saved()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*COMMAND, str(self.folder), str(self.attempt)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.progress()

    @property
    def log(self) -> Path:
        return self.folder / "verl.log"

    @property
    def steps(self) -> StepFiles:
        return StepFiles(self.folder)

    def progress(self) -> None:
        """Reports progress: restarts the clock for `trainer.stall`."""
        self._progress = time.monotonic()

    def pause(self) -> None:
        """Waits a moment for verl, which the first wait starts. Raises as `watch` does."""
        if not self.started and self.steps.saved() < self.spec.iterations:
            self.start()
        self.watch()
        time.sleep(_POLL)

    def watch(self) -> None:
        """Restarts verl if it has crashed or stalled. UserError for settings that it refuses,
        VerlFailed if it was restarted too often or ended without all that is expected."""
        code = 0 if self._child is None else self._child.poll()
        silent, limits = time.monotonic() - self._progress, self.spec.trainer
        if code == 0 and silent > _LATE:
            raise VerlFailed(
                f"verl has ended, but something is missing in {self.folder}: episodes, or the last "
                f"checkpoint. The end of {self.log}:\n{self.tail(25)}"
            )
        if code == 0 or (code is None and silent <= limits.stall):
            return
        if code == REFUSED:
            raise UserError(refusal(self.tail(40)))
        why = f"no progress for {limits.stall:g} s" if code is None else f"exit code {code}"
        self.stop()
        if self.restarted >= limits.restarts:
            raise VerlFailed(
                f"verl stopped ({why}) and was started {self.restarted + 1} times. The end of "
                f"{self.log}:\n{self.tail(25)}\nThe same command goes on from the last checkpoint "
                f"in {self.folder / 'checkpoints'}; remove one that cannot be read."
            )
        self.attempt += 1
        self.restarted += 1
        self.report(f"verl stopped ({why}); started again from its last checkpoint, see {self.log}")
        self.start()

    def stop(self) -> None:
        """Ends the processes of this start, Ray's included."""
        child, self._child = self._child, None
        if child is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                break
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                continue
        child.wait()

    def tail(self, lines: int) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


@dataclass(frozen=True)
class Collector(PlayElsewhere):
    """Of one call, which has `count` episodes, of the job that `process` runs."""

    process: Process
    arrivals: Arrivals
    call: str
    count: int

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
        if self.process.started or self.process.steps.saved() > self.iteration:
            return
        if lost := set(recorded) - self.arrivals.indices(self.call):
            raise UserError(
                f"{self.arrivals.folder} lacks {len(lost)} of the {len(recorded)} episodes of "
                f"{self.call!r} that the ledger has, and no checkpoint has learned from them. "
                f"Restore {self.process.folder} from a copy, or change the setting `run_dir`."
            )

    def take_back(self, missing: Sequence[int]) -> None:
        self.process.stop()
        dropped = rewind(self.process.folder, self.process.spec, self.call, missing)
        self.arrivals.forget()
        self.process.resumed = self.process.steps.saved()
        text = f"{self.process.spec.name}: back to the start of iteration {self.iteration}"
        if dropped:
            text += (
                f"; {dropped} later episodes, which are in no ledger, are forgotten: they followed "
                "from what was left of these"
            )
        self.process.report(text)

    @property
    def iteration(self) -> int:
        return self.process.spec.when(self.call)[0]


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
    gone = frozenset(missing)

    def lost(line: Stored) -> bool:
        failed = line.trajectory.failure is not None
        return line.call == call and line.index in gone and failed

    _drop(folder.glob("metrics-*.jsonl"), OfStep, lambda line: line.step > iteration)
    episodes = sorted(folder.glob("episodes/*.jsonl"))
    _drop(episodes, Stored, lost)
    return _drop(episodes, Head, lambda line: spec.when(line.call) > (iteration, again))


def _drop(paths: Iterable[Path], kind: type[T], unwanted: Callable[[T], bool]) -> int:
    return sum(Lines(path, kind).drop(unwanted) for path in paths)


def check_settings(spec: JobSpec, folder: Path) -> None:
    """Lets verl check its settings, in a separate process. Raises UserError."""
    spec.write(folder)
    command = [*COMMAND, str(folder), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == REFUSED:
        raise UserError(refusal(done.stdout))
    if done.returncode:
        raise UserError(
            f"verl's settings could not be checked (exit code {done.returncode}): "
            f"{done.stderr[-800:]}"
        )


def refusal(text: str) -> str:
    """The last refusal in what the started process printed."""
    lines = [line for line in text.splitlines() if line.startswith(REFUSAL)]
    return lines[-1].removeprefix(REFUSAL) if lines else "verl refused its settings"
