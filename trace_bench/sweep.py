"""`python -m trace_bench.sweep FILE`: runs a W&B sweep file locally.

Runs the file's grid without a W&B account, `--jobs` runs at once. Finished runs are recognized by
their fingerprint and skipped; failed runs are skipped too, unless `--retry` is set. Finished and
failed runs are logged in <runs root>/sweeps/<name>.jsonl.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from trace_bench.core.command import command, whole_number
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import Lines
from trace_bench.core.summary import Summary, read_settings, read_summary
from trace_bench.core.types import grouped
from trace_bench.settings.compose import compose_all, word
from trace_bench.settings.identity import locate, parts_of

_PR_SET_PDEATHSIG = 1
MOST = 10_000  # runs of a file


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: its overrides and its folder."""

    overrides: tuple[str, ...]
    folder: Path

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
    data = read_settings(path)
    parameters = data.get("parameters")
    if data.get("method") != "grid" or not isinstance(parameters, dict) or not parameters:
        raise UserError(
            f"the sweep file {path} needs `method: grid` and `parameters`, which name at least one "
            "setting. Change the file; other searches than a grid need `wandb agent`."
        )
    choices = [
        [f"{name}={_text(value)}" for value in _values(path, name, choice)]
        for name, choice in parameters.items()
    ]
    if (count := math.prod(map(len, choices))) > MOST:
        raise UserError(f"{path} names {count} runs; allowed: {MOST}. Leave values out of it.")
    return list(itertools.product(*choices))


def _values(path: Path, name: str, choice: object) -> Sequence[Any]:
    match choice:
        case {"value": value, **more} if not more:
            return [value]
        case {"values": [_, *_] as values, **more} if not more:
            return values
    raise UserError(
        f"parameters.{name} of {path} is {choice!r}; allowed: `value: x` or `values: [x, ...]`."
    )


def _text(value: Any) -> str:
    """As `${args_no_hyphens}` writes it, but in lower case where Hydra wants that."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def members(path: Path, extra: Sequence[str] = ()) -> list[SweepRun]:
    """All runs of a sweep, checked before anything starts. `extra`: settings for all of them."""
    overrides = [(*run, *extra) for run in read_sweep(path)]
    runs = [
        SweepRun(o, locate(s, parts_of(s)).folder)
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
    """Runs all unfinished members and logs those that end in `path`. Returns 1 if a run failed,
    also before, else 0."""
    record = Lines(path, LogLine)
    codes = {line.folder: line.code for line in record}  # the last try counts
    unfinished = [m for m in runs if m.summary is None]
    skipped = [m for m in unfinished if codes.get(str(m.folder)) and not retry]
    left = [m for m in unfinished if m not in skipped]
    print(
        f"{len(runs)} runs: {len(runs) - len(unfinished)} finished, {len(left)} to run", flush=True
    )
    for member in skipped:
        print(f"failed before, skipped (--retry runs it again): {member.name}", flush=True)
    bad, began = len(skipped), time.monotonic()
    with closing(record):
        for done, (member, code, error) in enumerate(_ended(left, jobs), start=1):
            record.append(LogLine(str(member.folder), code, member.overrides, error))
            if code == 0 and (summary := member.summary) is not None:
                outcome = f"success {summary.score.success:.3f}"
            else:
                outcome = f"failed with exit code {code}: {error or 'no result'}"
                bad += 1
            ahead = timedelta(seconds=round((time.monotonic() - began) / done * (len(left) - done)))
            said = f"[{done}/{len(left)}] {member.name}: {outcome}; {ahead} left"
            print(said, flush=True)
    print(f"{len(runs) - bad} of {len(runs)} runs finished" + (f", {bad} failed" if bad else ""))
    return 1 if bad else 0


def _ended(runs: Sequence[SweepRun], jobs: int) -> Iterator[tuple[SweepRun, int, str]]:
    """Each run as it ends, its exit code and, where that is not 0, the last line of its stderr.
    What ends the sweep, as Ctrl-C does, waits for the runs under way."""
    waiting, running = iter(runs), dict[SweepRun, tuple[subprocess.Popen[bytes], IO[bytes]]]()
    try:
        while True:
            for member in itertools.islice(waiting, jobs - len(running)):
                said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed below)
                words = [sys.executable, "-m", "trace_bench", *member.overrides]
                out: Any = {"stdout": subprocess.DEVNULL, "stderr": said}
                process = subprocess.Popen(words, **out, preexec_fn=_end_with_sweep)
                running[member] = process, said
            if not running:
                return
            time.sleep(0.1)
            for member, (process, said) in [*running.items()]:
                if (code := process.poll()) is not None:
                    del running[member]
                    with said:
                        said.seek(0)
                        lines = said.read().decode(errors="replace").strip().splitlines()
                    yield member, code, lines[-1] if code and lines else ""
    finally:
        for process, _ in running.values():
            process.wait()


def _end_with_sweep() -> None:
    """Called in a run's process: on Linux it is killed with the sweep, or the same command would
    find its folder locked by an orphaned run."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
