"""One run: base evaluation, the method within its budget, final evaluation, the closing table.

A run is stored in its folder, so the same settings resume an interrupted run and return the result
of a finished one. A run that fails before its first episode leaves no folder."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from trace_bench.core.beginning import base_agent
from trace_bench.core.errors import BudgetExceeded, UserError, outlasting
from trace_bench.core.protocols import Method, Suite, Tracker, Yardstick
from trace_bench.core.run_files import AGENT, FAULTS, LOWER, SUMMARY, UPPER
from trace_bench.core.store import read_lines, write_json
from trace_bench.core.summary import Summary, TrainedApart, read_summary
from trace_bench.core.types import CHARGED, AgentSpec, Outcome, Task, to_json
from trace_bench.play.rollouts import Player
from trace_bench.play.steps import Faults
from trace_bench.play.suites import Suites, tasks_of
from trace_bench.runner import build, report
from trace_bench.runner.bench import Bench, build_bench
from trace_bench.runner.build import Log
from trace_bench.runner.evaluation import Evaluation
from trace_bench.runner.lab import RunLab
from trace_bench.runner.ledger import Ledger
from trace_bench.runner.report import TIMING, Clock, Progress
from trace_bench.runner.summary import code_of, summarize
from trace_bench.runner.trackers import Metrics, Silent
from trace_bench.settings.identity import locate, only_writer, parts_of
from trace_bench.settings.registry import find
from trace_bench.settings.schema import PartSettings, Settings


@dataclass(frozen=True)
class Done:
    """A finished run. `stored`: whether it was already finished before."""

    folder: Path
    summary: Summary
    stored: bool


def run(settings: Settings) -> int:
    """Runs or resumes; prints the closing table and `run: <folder>`. Returns 1 if no held-out
    episode of an agent has a score (such a run is not finished) or a dry run finds something
    missing, else 0. Raises UserError for a folder of other settings, a budget that is too small,
    ..."""
    if settings.dry_run:
        from trace_bench.runner.forecast import describe

        text, missing = describe(settings, parts_of(settings))
        print(text, flush=True)
        return 1 if missing else 0
    done = carry_out(settings, verbose=True)
    if done.stored:
        print("this run is finished; its stored result:", file=sys.stderr)
    print(f"{report.closing(done.summary)}\nrun: {done.folder}", flush=True)
    if not done.summary.complete:
        lines = read_lines(done.folder / "evaluation.jsonl", Outcome)
        first = next((line.error for line in lines if line.error), "no reason was given")
        whose = ", ".join(done.summary.unscored)
        print(
            f"error: no held-out episode of {whose} has a score. The first error: {first}",
            file=sys.stderr,
        )
        return 1
    return 0


@outlasting()
def carry_out(settings: Settings, *, verbose: bool = False) -> Done:
    """Starts, resumes or loads the run of these settings. `verbose`: progress on stderr. Raises as
    `run` does; after KeyboardInterrupt the same call resumes the run."""
    log: Log = build.log_line if verbose else lambda text: None
    parts = parts_of(settings)
    place = locate(settings, parts)
    # A finished run needs no lock, so it can be looked at in a read-only folder.
    summary = read_summary(place.folder) if place.holds_run() and place.belongs() else None
    if summary is not None and not summary.lost:
        return Done(place.folder, summary, stored=True)
    with only_writer(place.folder), ExitStack() as stack:
        resumed = place.belongs()
        bench = build_bench(settings, parts, place, stack, log, new=not resumed)
        tracker: Tracker = parts["tracker"].make(bench.context)  # refuses before anything is there
        metrics = Metrics(place.folder / "metrics.jsonl", tracker, log)
        stack.enter_context(closing(metrics))
        if not resumed:
            place.claim(settings)
        for line in bench.header():
            log(line)
        stream = sys.stderr if verbose else stack.enter_context(Path(os.devnull).open("w"))
        summary = _execute(bench, metrics, stack, Progress(settings.budget, stream=stream), resumed)
    return Done(place.folder, summary, stored=False)


def _execute(
    bench: Bench, metrics: Metrics, stack: ExitStack, progress: Progress, resumed: bool
) -> Summary:
    """Runs everything that is not on disk yet and writes the summary."""
    started = time.monotonic()
    folder, settings, how = bench.place.folder, bench.settings, bench.settings.policy
    # A run makes millions of small values, hardly any in reference cycles, and each collection of
    # the old generation visits the model and all libraries. Python's are 700, 10, 10.
    stack.callback(gc.set_threshold, *gc.get_threshold())
    gc.set_threshold(20_000, 10, 50)
    bench.write_tags()
    clock = Clock(folder / TIMING)
    apart = settings.protocol == "held_out"
    every = tasks_of(bench.suite, settings.evaluation.split)  # also beyond evaluation.limit
    suites = Suites(bench.suite, {}, settings.rehearsal, every, reserved=apart)
    faults = Faults(folder / FAULTS)
    player = Player(bench.policy, suites, how.max_turns, how.max_tokens, faults)
    evaluation = Evaluation(
        folder, player, settings, bench.held_out, bench.development, bench.points, progress, clock
    )
    stack.enter_context(closing(evaluation))
    make_suite = build.generated_suites(settings, bench.context, bench.log)
    lab = RunLab(
        folder, settings.seed, _ledger(folder, settings), player, bench.trainer, metrics, progress,
        evaluation.checkpoint, bench.roles, make_suite, settings.max_lost,
    )  # fmt: skip
    stack.enter_context(closing(lab))
    if len(code_of(folder)) > 1:
        progress.log(f"other code of trace_bench has begun this run (`code` in {SUMMARY})")
    if resumed:
        there = lab.ledger.spent
        progress.log(f"resuming {folder}: {there} of {settings.budget} rollouts are there")
    base = base_agent(bench.acting_model, bench.beginning, folder)
    agent = _phases(bench, evaluation, lab, base)
    if lab.ledger.spent > settings.budget:
        raise UserError(
            f"the ledger has {lab.ledger.spent} rollouts with budget={settings.budget}, so the run "
            "has no result: the method changed what it may spend. Change `method`."
        )
    # Where nothing was trained, nothing would be by these.
    due = bench.yardsticks if agent != base else ()
    trained = {y.name: _yardstick(bench, evaluation, lab, y, base) for y in due}
    clock.add("total", time.monotonic() - started)
    summary = summarize(bench, evaluation, lab, agent, trained, clock.seconds)
    metrics.conclude(to_json(summary))
    metrics.close()
    summary = replace(summary, health=replace(summary.health, tracker=metrics.failure))
    write_json(folder / SUMMARY, summary)
    return summary


def _ledger(folder: Path, settings: Settings) -> Ledger:
    return Ledger(folder / "ledger.jsonl", settings.budget, CHARGED[settings.accounting])


def _phases(bench: Bench, evaluation: Evaluation, lab: RunLab, base: AgentSpec) -> AgentSpec:
    """Runs the phases: base agent, scripted bounds, method, trained agent, adapters."""
    clock = evaluation.clock
    evaluation.base(base)
    names = [*LOWER, *(UPPER if bench.suite.has(Suite.reference) else ())]
    scripted = {name: find("policy", PartSettings(name)).make(bench.context) for name in names}
    evaluation.floors(scripted)
    with clock.phase("method"):
        lab.progress.phase("method")
        lab.checkpoint(base)
        agent = _fitted(bench.method, bench.parts["method"].label, base, bench.train, lab)
        evaluation.checkpoint(lab.spent, agent, bench.settings.budget + 1)
        write_json(bench.place.folder / AGENT, agent)
    for purpose, seconds in lab.seconds.items():
        clock.add(f"method/{purpose} rollouts", seconds)
    evaluation.trained("final", "final evaluation", base, agent, keep=True)
    evaluation.adapters(base, agent)
    return agent


def _fitted(
    method: Method, label: str, base: AgentSpec, tasks: Sequence[Task], lab: RunLab
) -> AgentSpec:
    """The agent that a method returns. Raises UserError if it is none, has a model or adapters from
    elsewhere, or if the budget is too small."""
    try:
        agent: object = method.fit(base, tasks, lab)
    except BudgetExceeded as error:
        raise UserError(f"method={label}: {error}") from error
    if not isinstance(agent, AgentSpec):
        raise UserError(
            f"method={label} returned {type(agent).__name__} instead of a trace_bench.AgentSpec: "
            "`fit` must return the trained agent (docs/methods.md). Change `method`."
        )
    begun, inside = {adapter.path for adapter in base.adapters}, lab.folder.resolve()
    strange = [f"model {agent.model}"] if agent.model != base.model else []
    for path in (adapter.path for adapter in agent.adapters if adapter.path not in begun):
        if not Path(path).resolve().is_relative_to(inside):
            strange.append(f"adapter {path}")
    if strange:
        raise UserError(
            f"method={label} returned an agent with the {strange[0]}; allowed: the base model, and "
            "adapters of the base agent or in the run folder. Change `method`."
        )
    lab.player.suites.check_unchanged()
    return agent


def _yardstick(
    bench: Bench, evaluation: Evaluation, lab: RunLab, yardstick: Yardstick, base: AgentSpec
) -> TrainedApart:
    """Trains a yardstick apart: with a ledger, metrics and generated suites of its own."""
    folder, progress = bench.place.folder / yardstick.name, replace(lab.progress)
    lab = replace(
        lab,
        folder=folder,
        ledger=_ledger(folder, bench.settings),
        player=replace(lab.player, suites=replace(lab.player.suites, others={})),
        trainer=bench.parts["trainer"].make(bench.context),
        tracker=Metrics(folder / "metrics.jsonl", Silent(), bench.log),
        progress=progress,
        on_checkpoint=None,
    )
    with evaluation.clock.phase(yardstick.title), closing(lab):
        progress.phase(yardstick.title)
        agent = _fitted(yardstick.method, yardstick.name, base, bench.train, lab)
        rollouts = lab.ledger.by_purpose()
    evaluation.trained(yardstick.name, f"evaluation of {yardstick.title}", base, agent)
    return TrainedApart(yardstick.title, rollouts)
