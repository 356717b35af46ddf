"""`python -m trace_bench.sweep FILE`: runs a W&B sweep file locally.

Runs the file's grid without a W&B account, `--jobs` runs at once. Finished runs are recognized by
their fingerprint and skipped; failed runs are skipped too, unless `--retry` is set. Each run is a
fork of one process that has imported the package, which saves the seconds of a start and changes no
result. Finished and failed runs are logged in <runs root>/sweeps/<name>.jsonl.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, Literal

from trace_bench.core.command import command, whole_number
from trace_bench.core.command import parser as parser_of
from trace_bench.core.decode import Unreadable, convert
from trace_bench.core.errors import UserError
from trace_bench.core.store import Lines
from trace_bench.core.summary import Summary, read_settings, read_summary
from trace_bench.core.types import grouped
from trace_bench.runner.folder import locate
from trace_bench.runner.progress import duration
from trace_bench.settings.compose import compose_all, launch, word
from trace_bench.settings.identity import parts_of

_PR_SET_PDEATHSIG = 1
MOST = 10_000  # runs of a file


@dataclass(frozen=True)
class SweepFile:
    """What a sweep file may hold. This command runs grids only; other searches need `wandb agent`,
    which the other keys are for."""

    method: Literal["grid"]
    parameters: Mapping[str, Mapping[str, Any]]
    program: Any = None
    command: Any = None
    metric: Any = None
    name: Any = None
    description: Any = None
    project: Any = None
    entity: Any = None


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: its overrides and its folder."""

    overrides: tuple[str, ...]
    folder: Path
    threads: int = 1

    @property
    def name(self) -> str:
        return " ".join(self.overrides)

    @property
    def summary(self) -> Summary | None:
        """The run's summary; None if there is none or it cannot be read (running says why)."""
        try:
            return read_summary(self.folder)
        except UserError:
            return None


@dataclass(frozen=True)
class LogLine:
    """A line of a sweep's log: how a run ended."""

    folder: str
    code: int
    overrides: tuple[str, ...] = ()
    error: str = ""


def read_sweep(path: Path) -> list[tuple[str, ...]]:
    """The overrides of every run of a sweep file, in the grid's order. Raises UserError."""
    try:
        file = convert(read_settings(path), SweepFile)
        choices = [
            [f"{name}={_text(value)}" for value in _values(name, choice)]
            for name, choice in file.parameters.items()
        ]
        if not choices:
            raise Unreadable("`parameters` must name at least one setting")
    except Unreadable as error:
        raise UserError(f"the sweep file {path} cannot be used: {error}.") from error
    if (count := math.prod(map(len, choices))) > MOST:
        raise UserError(f"{path} names {count} runs; allowed: {MOST}. Leave values out of it.")
    return list(itertools.product(*choices))


def _values(name: str, choice: Mapping[str, Any]) -> Sequence[Any]:
    match choice:
        case {"value": value} if len(choice) == 1:
            return [value]
        case {"values": [_, *_] as values} if len(choice) == 1:
            return values
    raise Unreadable(f"parameters.{name} is {choice!r}; allowed: `value: x` or `values: [x, ...]`")


def _text(value: Any) -> str:
    """As `${args_no_hyphens}` writes it, but in lower case where Hydra wants that."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def members(path: Path, extra: Sequence[str] = ()) -> list[SweepRun]:
    """All runs of a sweep, checked before anything starts. `extra`: settings for all of them."""
    overrides = [(*run, *extra) for run in read_sweep(path)]
    runs = [
        SweepRun(o, locate(s, parts_of(s)).folder, s.policy.threads)
        for o, s in zip(overrides, compose_all(overrides), strict=True)
    ]
    for same in grouped(runs, lambda m: m.folder).values():
        if len(same) > 1:
            raise UserError(
                f"{path} names one run twice: {same[0].name}, and {same[1].name}. Leave one out, "
                "or vary a setting by which runs differ."
            )
    return runs


@command("interrupted; the same command goes on with what is left")
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("sweep", __doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default 1)")
    parser.add_argument("--retry", action="store_true", help="also run what failed before")
    parser.add_argument("--runs-root", default="runs", help="where run folders lie (default runs)")
    options = parser.parse_args(arguments)
    whole_number("--jobs", options.jobs)
    extra = () if options.runs_root == "runs" else (f"runs_root={word(options.runs_root)}",)
    runs = members(options.file, extra)
    record = Path(options.runs_root) / "sweeps" / f"{options.file.stem}.jsonl"
    return sweep(record, runs, options.jobs, options.retry)


def sweep(path: Path, runs: Sequence[SweepRun], jobs: int, retry: bool) -> int:
    """Runs all unfinished members and logs those that end in `path`. Returns 1 if a run failed or
    has no score, also before, else 0."""
    record = Lines(path, LogLine)
    codes = {line.folder: line.code for line in record}  # the last try counts
    finished = [m for m in runs if m.summary is not None]
    skipped = [m for m in runs if m.summary is None and codes.get(str(m.folder)) and not retry]
    left = [m for m in runs if m not in finished and m not in skipped]
    print(f"{len(runs)} runs: {len(finished)} finished, {len(left)} to run", flush=True)
    unscored = [m for m in finished if m.summary and m.summary.score.n == 0]
    for member in unscored:
        print(f"no held-out episode has a score: {member.name} ({member.folder})", flush=True)
    for member in skipped:
        print(f"failed before, skipped (--retry runs it again): {member.name}", flush=True)
    bad, began = len(skipped) + len(unscored), time.monotonic()
    with closing(record):
        for done, (member, code, error) in enumerate(_ended(left, jobs), start=1):
            record.append(LogLine(str(member.folder), code, member.overrides, error))
            bad += code != 0
            ahead = duration((time.monotonic() - began) / done * (len(left) - done))
            said = f"[{done}/{len(left)}] {member.name}: {_outcome(member, code, error)}"
            print(f"{said}; {ahead} left", flush=True)
    print(f"{len(runs) - bad} of {len(runs)} runs finished" + (f", {bad} failed" if bad else ""))
    return 1 if bad else 0


def _outcome(member: SweepRun, code: int, error: str) -> str:
    summary = member.summary
    if code != 0 or summary is None:
        return f"failed with exit code {code}: {error}"
    success = summary.score.success
    return "no episode has a score" if success is None else f"success {success:.3f}"


# -- processes -------------------------------------------------------------------------------------

IMPORTED = (
    "runner.pipeline", "policies.local", "policies.engine.hf", "policies.engine.scheduler",
    "trainers.local", "trainers.model", "results.statistics", "envs.toolsandbox.env",
)  # fmt: skip
"""What the process has imported that runs are forks of; a run imports what else it needs."""


def _ended(runs: Sequence[SweepRun], jobs: int) -> Iterator[tuple[SweepRun, int, str]]:
    """Each run as it ends, with its exit code and, where that is not 0, the last line that it said
    on stderr. What ends the sweep, as Ctrl-C does, waits for the runs under way."""
    if runs:
        _import_all(runs)
    fork, waiting = multiprocessing.get_context("fork"), iter(runs)
    running: dict[Any, tuple[SweepRun, Any, Any]] = {}  # by what is ready when a run has ended
    for _ in runs:
        for member in itertools.islice(waiting, jobs - len(running)):
            said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed below)
            process = fork.Process(target=_run, args=(member, said))
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # lost if it comes in a fork
            process.start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            running[process.sentinel] = member, process, said
        member, process, said = running.pop(wait([*running])[0])
        process.join()
        with said:
            said.seek(0)
            lines = said.read().strip().splitlines()
        yield member, process.exitcode, lines[-1] if process.exitcode and lines else ""


def _run(member: SweepRun, said: IO[str]) -> None:
    """What a process does to be that run, its stderr in a file. On Linux it ends with the sweep, or
    the same command would find its folder locked by an orphaned run."""
    from trace_bench.runner.pipeline import run

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # as it was before the fork
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(said.fileno(), 2)
    sys.stderr = said
    sys.exit(command()(partial(launch, run))(member.overrides))


def _import_all(runs: Sequence[SweepRun]) -> None:
    """Raises UserError for runs with other numbers of threads, which are read at import."""
    threads = sorted({m.threads for m in runs})
    if len(threads) > 1:
        raise UserError(
            f"the runs of a sweep have one number of threads; policy.threads is {threads} here. "
            "Make a sweep file of each."
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(threads[0]))
    for name in IMPORTED:
        importlib.import_module(f"trace_bench.{name}")


if __name__ == "__main__":
    sys.exit(main())
