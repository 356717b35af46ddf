"""Runs from Python: `trace_bench.run`, `load` and `compare`.

    import trace_bench
    result = trace_bench.run(method="grpo", env="toolsandbox", budget=320, seed=1)
    print(result.table)

Errors in the arguments or on the machine raise `trace_bench.UserError` with the message that the
command line would print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trace_bench.core.beginning import read_agent
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.summary import AgentScore, PairedDifference, Summary, read_summary
from trace_bench.core.types import AgentSpec, Outcome, Stored, Trajectory
from trace_bench.results.folder import read_run
from trace_bench.results.groups import check_same_settings
from trace_bench.runner import report
from trace_bench.runner.evaluation import difference
from trace_bench.runner.pipeline import carry_out
from trace_bench.settings.compose import compose_plain, word
from trace_bench.settings.models import settled
from trace_bench.settings.schema import PARTS, Settings


@dataclass(frozen=True)
class Result:
    """A finished run. `summary`: what its summary.json holds, by the same names."""

    folder: Path
    summary: Summary

    @property
    def score(self) -> AgentScore:
        """The trained agent on the held-out tasks."""
        return self.summary.score

    @property
    def table(self) -> str:
        """The closing table as the command line prints it."""
        return report.closing(self.summary).strip()

    @cached_property
    def agent(self) -> AgentSpec:
        """The trained agent: model, prompt, adapters and router."""
        return read_agent(self.folder / "agent.json")

    def trajectories(self, *, evaluation: bool = False) -> list[Trajectory]:
        """The method's rollouts in the order in which they ended, or with `evaluation` the base and
        the trained agent on the held-out tasks."""
        name = "evaluation_trajectories.jsonl" if evaluation else "trajectories.jsonl"
        return [line.trajectory for line in read_lines(self.folder / name, Stored)]

    def __repr__(self) -> str:
        success = self.score.success
        figure = "no score" if success is None else f"success {success:.3f}"
        return f"Result({self.summary.titled}, {figure}, {str(self.folder)!r})"


def run(
    *overrides: str,
    config_dir: str | Path | None = None,
    verbose: bool = False,
    **settings: Any,
) -> Result:
    """Runs a method, resumes an interrupted run, or returns the stored result of a finished one.

    overrides: settings as on the command line ("trainer.group_size=4"). settings: the same as
    keywords (`budget=320`; two underscores for a dot: `trainer__group_size=4`). The groups `env`,
    `method`, `trainer`, `policy`, `tracker` and `model` take a name or the part itself: an object,
    a class or a function that makes one. config_dir: a folder with settings files of your own.
    verbose: print progress to stderr.

    Raises UserError for wrong settings and for anything missing on this machine, and
    KeyboardInterrupt when interrupted; the same call then resumes the run."""
    chosen = _settings(overrides, settings, None if config_dir is None else Path(config_dir))
    if chosen.dry_run:
        raise UserError(
            "dry_run=true prints what a run would do and has no result; allowed in Python: false. "
            "Leave `dry_run` out, or use the command line: python -m trace_bench ... dry_run=true."
        )
    done = carry_out(chosen, verbose=verbose)
    return Result(done.folder, done.summary)


def load(folder: str | Path) -> Result:
    """A finished run from its folder. Raises UserError for a folder that is no finished run."""
    place = Path(folder)
    if not place.is_dir():
        raise UserError(f"{place} is not a folder. Give the folder of a run.")
    summary = read_summary(place)
    if summary is None:
        raise UserError(
            f"{place} is not a finished run (no complete summary.json). Run it again to finish it."
        )
    return Result(place, summary)


def compare(a: Result | str | Path, b: Result | str | Path) -> PairedDifference:
    """Success of run `a` minus that of run `b` on the same held-out tasks, paired by task, with a
    95 % interval over tasks and the p-value of a sign-flip test over tasks; other seeds are not
    accounted for. Raises UserError when the runs differ in more than method, budget and seed, or a
    folder has been edited."""
    one, two = (r if isinstance(r, Result) else load(r) for r in (a, b))
    check_same_settings([read_run(one.folder), read_run(two.folder)])
    treated, control = (
        [o for o in read_lines(r.folder / "evaluation.jsonl", Outcome) if o.agent == "final"]
        for r in (one, two)
    )
    if (change := difference(treated, control)) is None:
        raise UserError("no held-out task has a score in both runs, so they cannot be compared.")
    return change


def _settings(
    overrides: Sequence[str], keywords: Mapping[str, Any], config_dir: Path | None
) -> Settings:
    """Checked settings from keywords; an object given as a part becomes the group's factory."""
    objects = {k: v for k, v in keywords.items() if k in PARTS and not isinstance(v, str)}
    plain = {k.replace("__", "."): v for k, v in keywords.items() if k not in objects}
    named = [f"{group}=custom" for group in objects]
    words = [f"{key}={word(value)}" for key, value in plain.items()]
    (data,) = compose_plain([[*named, *words, *overrides]], config_dir)
    for group, part in objects.items():
        data[group] = {**data[group], "factory": part}
    return settled(data)
