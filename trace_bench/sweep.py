"""`python -m trace_bench.sweep FILE`: runs a W&B sweep file locally.

Runs the file's grid without a W&B account, `--jobs` runs at once. Finished runs are recognized by
their fingerprint and skipped; failed runs are skipped too, unless `--retry` is set. `--fork`: each
run is a fork of one process that has imported the package, which saves the seconds of a start and
changes no result. `--list` prints the command lines, `--plan` what such a grid can show and costs,
by earlier runs of the same world in a folder or a file of records.
Finished and failed runs are logged in <runs root>/sweeps/<name>.jsonl.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from trace_bench.core.command import command, whole_number
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.store import Lines, read_bytes
from trace_bench.core.summary import Summary, read_summary
from trace_bench.core.types import grouped
from trace_bench.results.captions import by_total
from trace_bench.results.places import find
from trace_bench.results.plan import smallest_of, varied
from trace_bench.runner.folder import locate
from trace_bench.runner.progress import duration
from trace_bench.settings.compose import compose_all, launch, word
from trace_bench.settings.identity import parts_of

_PR_SET_PDEATHSIG = 1
KEYS = (
    "program", "command", "method", "metric", "parameters",
    "name", "description", "project", "entity",
)  # fmt: skip


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: its overrides and its folder."""

    overrides: tuple[str, ...]
    folder: Path
    config_dir: Path | None = None
    threads: int = 1

    @property
    def words(self) -> list[str]:
        place = [] if self.config_dir is None else ["--config-dir", str(self.config_dir)]
        return [*place, *self.overrides]

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
    import yaml

    try:
        data = yaml.safe_load(read_bytes(path, "Change FILE.").decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"the sweep file {path} cannot be read: {why}. Change FILE.") from error
    if not isinstance(data, Mapping):
        raise UserError(f"the sweep file {path} must be a mapping with the key `parameters`.")
    for key in data:
        if key not in KEYS:
            raise unknown("key", str(key), KEYS, f"{path}: {key}")
    if data.get("method") != "grid":
        raise UserError(
            f"{path}: method={data.get('method')!r}; this command runs grids only, other searches "
            "need `wandb agent`. Change `method` to grid."
        )
    parameters = data.get("parameters")
    if not isinstance(parameters, Mapping) or not parameters:
        raise UserError(f"{path}: `parameters` must name at least one setting.")
    choices = (
        [f"{name}={_text(value)}" for value in _values(path, name, choice)]
        for name, choice in parameters.items()
    )
    return list(itertools.product(*choices))


def _values(path: Path, name: str, choice: Any) -> Sequence[Any]:
    match choice:
        case {"value": value} if len(choice) == 1:
            return [value]
        case {"values": [_, *_] as values} if len(choice) == 1:
            return values
    raise UserError(
        f"{path}: parameters.{name} is {choice!r}; allowed: `value: x` or `values: [x, ...]`."
    )


def _text(value: Any) -> str:
    """As `${args_no_hyphens}` writes it, but in lower case where Hydra wants that."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def members(
    path: Path, extra: Sequence[str] = (), config_dir: Path | None = None
) -> list[SweepRun]:
    """All runs of a sweep, checked before anything starts. `extra`: settings for all of them."""
    overrides = [(*run, *extra) for run in read_sweep(path)]
    settings = compose_all(overrides, config_dir)
    return [
        SweepRun(o, locate(s, parts_of(s)).folder, config_dir, s.policy.threads)
        for o, s in zip(overrides, settings, strict=True)
    ]


@command("interrupted; the same command goes on with what is left")
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("sweep", __doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default 1)")
    parser.add_argument("--fork", action="store_true", help="runs are forks of one process")
    parser.add_argument("--retry", action="store_true", help="also run what failed before")
    parser.add_argument("--list", action="store_true", help="print the command lines and stop")
    parser.add_argument("--plan", type=Path, metavar="PLACE", help="earlier runs of this world")
    parser.add_argument("--runs-root", default="runs", help="where run folders lie (default runs)")
    parser.add_argument("--config-dir", type=Path, help="a folder with settings files of your own")
    options = parser.parse_args(arguments)
    whole_number("--jobs", options.jobs)
    extra = () if options.runs_root == "runs" else (f"runs_root={word(options.runs_root)}",)
    runs = members(options.file, extra, options.config_dir)
    for same in grouped(runs, lambda m: m.folder).values():
        if len(same) > 1:
            one, two = same[0].name, same[1].name
            why = "Leave one out, or vary a setting by which runs differ."
            raise UserError(f"{options.file} names one run twice: {one}, and {two}. {why}")
    if options.list:
        print("\n".join(f"python -m trace_bench {shlex.join(m.words)}" for m in runs))
        return 0
    if options.plan is not None:
        arms = Counter(tuple(o for o in m.overrides if not o.startswith("seed=")) for m in runs)
        earlier = varied(by_total(find([options.plan]).runs))
        print(smallest_of(earlier, len(arms), min(arms.values())))
        return 0
    record = Path(options.runs_root) / "sweeps" / f"{options.file.stem}.jsonl"
    if options.fork:
        _import_all(runs)
    return sweep(record, runs, options.jobs, options.retry, _as_fork if options.fork else _afresh)


def sweep(
    path: Path, runs: Sequence[SweepRun], jobs: int, retry: bool, become: Callable[[SweepRun], int]
) -> int:
    """Runs all unfinished members and logs those that end in `path`. `become`: what a new process
    does to be that run. Returns 1 if a run failed or has no score, also before, else 0."""
    record = Lines(path, LogLine)
    codes = {line.folder: line.code for line in record.existing}  # the last try counts
    finished = [m for m in runs if m.summary is not None]
    skipped = [m for m in runs if m.summary is None and codes.get(str(m.folder)) and not retry]
    left = [m for m in runs if m not in finished and m not in skipped]
    print(f"{len(runs)} runs: {len(finished)} finished, {len(left)} to run", flush=True)
    unscored = [m for m in finished if m.summary and m.summary.score.n == 0]
    for member in unscored:
        print(f"no held-out episode has a score: {member.name} ({member.folder})", flush=True)
    for member in skipped:
        print(f"failed before, skipped (--retry runs it again): {member.name}", flush=True)
    bad, started = len(skipped) + len(unscored), time.monotonic()
    waiting = iter(left)
    running: dict[int, tuple[SweepRun, IO[str]]] = {}
    with closing(record), _waited_for():
        for done in range(1, len(left) + 1):
            for member in itertools.islice(waiting, jobs - len(running)):
                errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed when the run has ended)
                running[_started(member, errors, become)] = member, errors
            pid, status = os.wait()
            member, errors = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            with errors:
                errors.seek(0)
                lines = errors.read().strip().splitlines()
            error = lines[-1] if code and lines else ""
            record.append(LogLine(str(member.folder), code, member.overrides, error))
            bad += code != 0
            pace = (time.monotonic() - started) / done
            ahead = duration(pace * (len(left) - done))
            said = f"[{done}/{len(left)}] {member.name}: {_outcome(member, code, error)}"
            print(f"{said}; {ahead} left", flush=True)
    print(f"{len(runs) - bad} of {len(runs)} runs finished" + (f", {bad} failed" if bad else ""))
    return 1 if bad else 0


@contextmanager
def _waited_for() -> Iterator[None]:
    """Waits for the runs under way where something ends the sweep, as Ctrl-C does."""
    try:
        yield
    except BaseException:
        with suppress(ChildProcessError):
            while True:
                os.wait()
        raise


def _started(member: SweepRun, errors: IO[str], become: Callable[[SweepRun], int]) -> int:
    """The process of a run that has begun, its stderr in a file. On Linux it ends with this
    process, or the same command would find its folder locked by an orphaned run."""
    sys.stdout.flush()
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # or it would end half a fork
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return pid
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it ended before it was asked for
                os._exit(code)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors.fileno(), 2)
        code = become(member)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _afresh(member: SweepRun) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", "trace_bench", *member.words])


def _as_fork(member: SweepRun) -> int:
    from trace_bench.runner.pipeline import run

    return command()(partial(launch, run))(member.words)


IMPORTED = (
    "runner.pipeline", "policies.local", "policies.engine.hf", "policies.engine.scheduler",
    "trainers.local", "trainers.model", "results.statistics", "envs.toolsandbox.env",
)  # fmt: skip
"""What the process has imported that runs are forks of; a run imports what else it needs."""


def _import_all(runs: Sequence[SweepRun]) -> None:
    """Raises UserError for runs with other numbers of threads, which are read at import."""
    threads = sorted({m.threads for m in runs})
    if len(threads) > 1:
        raise UserError(
            f"--fork takes runs of one number of threads; policy.threads is {threads} here. Leave "
            "--fork out, or make a sweep file of each."
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(threads[0]))
    for name in IMPORTED:
        importlib.import_module(f"trace_bench.{name}")


def _outcome(member: SweepRun, code: int, error: str) -> str:
    summary = member.summary
    if code != 0 or summary is None:
        return f"failed with exit code {code}: {error}"
    success = summary.score.success
    return "no episode has a score" if success is None else f"success {success:.3f}"


if __name__ == "__main__":
    sys.exit(main())
