"""Runs verl as a process group of its own: restarts it from its last checkpoint when it crashes or
stalls, and gives up after a number of restarts. The started process, the group's first:

    python -m trace_bench.trainers.verl.process FOLDER START
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.arrivals import StepFiles
from trace_bench.trainers.verl.compose import composed, environment, overrides
from trace_bench.trainers.verl.nodes import faults
from trace_bench.trainers.verl.spec import JobSpec, read_spec

COMMAND = (sys.executable, "-m", "trace_bench.trainers.verl.process")
REFUSED = 3  # the exit code for settings that cannot work; the last line printed says why

_PR_SET_PDEATHSIG = 1
_SHUTDOWN = 30.0  # seconds for an orderly end after the parent's

_POLL = 0.2  # seconds between checks for new files
_LATE = 60.0  # seconds after verl's end within which its files must have arrived
_GRACE = 20.0  # seconds between asking processes to end and killing them


class VerlFailed(UserError):
    """verl stopped too often; its log says why. The same command resumes where it stopped."""


@dataclass
class Process:
    """verl's process group. `report` logs restarts. `attempt` numbers the starts in this folder,
    including those by earlier runs of the command."""

    folder: Path
    settings: VerlSettings
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
        variables = environment(read_spec(self.folder), self.folder, self.attempt)
        env = {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}
        steps = StepFiles(self.folder)
        steps.repair()
        self.resumed = steps.saved()
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

    def progress(self) -> None:
        """Reports progress: restarts the clock for `trainer.stall`."""
        self._progress = time.monotonic()

    def pause(self) -> None:
        """Waits a moment for verl, which is started when something is first waited for. Raises as
        `watch` does."""
        if not self.started and StepFiles(self.folder).saved() < read_spec(self.folder).iterations:
            self.start()
        self.watch()
        time.sleep(_POLL)

    def watch(self) -> None:
        """Restarts verl if it has crashed or stalled. Raises UserError for settings that it
        refuses, and VerlFailed if it was restarted too often or ended without all that is
        expected."""
        code = 0 if self._child is None else self._child.poll()
        silent = time.monotonic() - self._progress
        if code == 0 and silent > _LATE:
            raise VerlFailed(
                f"verl has ended, but something is missing in {self.folder}: episodes, or the last "
                f"checkpoint. The end of {self.log}:\n{self.tail(25)}"
            )
        if code == 0 or (code is None and silent <= self.settings.stall):
            return
        if code == REFUSED:
            raise UserError(refusal(self.tail(40)))
        why = f"no progress for {self.settings.stall:g} s" if code is None else f"exit code {code}"
        self.stop()
        if self.restarted >= self.settings.restarts:
            raise VerlFailed(
                f"verl stopped ({why}) and was started {self.restarted + 1} times. The end of "
                f"{self.log}:\n{self.tail(25)}\nThe same command goes on from its last "
                f"checkpoint.{self.before()}"
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

    def before(self) -> str:
        """How to go on from an earlier checkpoint, as the end of a message; empty without one."""
        steps = StepFiles(self.folder)
        if not steps.saved():
            return ""
        place = steps.checkpoint(steps.saved())
        return (
            f" If that is what cannot be read, remove {place}: it then goes on from the one "
            "before, or from the start, with the episodes that are stored."
        )

    def tail(self, lines: int) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


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
    """The last refusal that `main` printed."""
    found = [line for line in text.splitlines() if line.startswith("refused: ")]
    return found[-1].removeprefix("refused: ") if found else "verl refused its settings"


def main(arguments: list[str]) -> int:
    """The started process: checks verl's settings and runs verl until the job is done; with --check
    for START it only checks. It ends with its parent, and Ray's processes with it."""
    folder = Path(arguments[0])
    _die_with_parent()
    spec = read_spec(folder)
    try:
        if spec.trainer.device == "cpu":
            from trace_bench.trainers.verl.cpu.plugin import register_rollout

            register_rollout()
        start = 0 if "--check" in arguments else int(arguments[1])
        config = composed(overrides(spec, folder, start))
    except UserError as error:
        print(f"refused: {error}", flush=True)
        return REFUSED
    if "--check" in arguments:
        return 0
    variables = environment(spec, folder, start)
    if spec.trainer.nnodes > 1 and (found := faults(spec, folder, variables)):
        print(f"refused: {'; '.join(found)}.", flush=True)
        return REFUSED
    from verl.trainer.main_ppo import run_ppo

    from trace_bench.trainers.verl.task import Runner

    run_ppo(config, task_runner_class=Runner)
    return 0


def _die_with_parent() -> None:
    """Ends this process with its parent, on Linux; elsewhere the processes of a killed run must be
    ended by hand."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # Ray then ends its own processes

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(_SHUTDOWN)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
