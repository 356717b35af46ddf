"""One run: base evaluation, the method within its budget, final evaluation, the closing table.

A run is stored in its folder, so the same settings resume an interrupted run and return the result
of a finished one. A run that fails before its first episode leaves no folder."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from trace_bench.core.beginning import base_agent
from trace_bench.core.errors import BudgetExceeded, UserError, outlasting
from trace_bench.core.protocols import Method, Suite, Tracker, Yardstick
from trace_bench.core.run_files import AGENT, CONFIG, FAULTS, LOWER, SUMMARY, UNTOLD, UPPER
from trace_bench.core.store import read_lines, write_json, write_text
from trace_bench.core.summary import Summary, TrainedApart, read_summary
from trace_bench.core.types import CHARGED, AgentSpec, Outcome, Task
from trace_bench.play.rollouts import Player
from trace_bench.play.steps import Faults
from trace_bench.play.suites import Suites, tasks_of
from trace_bench.runner import build, report
from trace_bench.runner.bench import Bench, build_bench
from trace_bench.runner.build import Log, Parts
from trace_bench.runner.evaluate import EvaluationPlan, Terms
from trace_bench.runner.evaluation import Evaluation
from trace_bench.runner.folder import Place, locate, only_writer
from trace_bench.runner.lab import RunLab
from trace_bench.runner.ledger import Ledger
from trace_bench.runner.progress import TIMING, Aside, Clock, Progress
from trace_bench.runner.summary import code_of, summarize
from trace_bench.settings.identity import parts_of
from trace_bench.settings.schema import Settings
from trace_bench.trackers.jsonl import Metrics, Silent


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

        with outlasting():
            text, missing = describe(settings, parts_of(settings))
        print(text, flush=True)
        return 1 if missing else 0
    done = carry_out(settings, verbose=True)
    if done.stored:
        print("this run is finished; its stored result:", file=sys.stderr)
    # As wide as the terminal, or as it gets in a file.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else report.WIDE
    print(report.closing(done.summary, columns))
    if not (done.folder / SUMMARY).is_file():
        raise UserError(f"{done.folder} holds no {SUMMARY} any more. Run the same command again.")
    print(f"run: {done.folder}", flush=True)
    if (why := _unmeasured(done)) is not None:
        print(f"error: {why}", file=sys.stderr)
        return 1
    return 0


def _unmeasured(done: Done) -> str | None:
    """Why a run measured nothing of an agent: all held-out episodes were lost. Else None."""
    if done.summary.complete:
        return None
    score = done.summary.score
    lines = read_lines(done.folder / "evaluation.jsonl", Outcome)
    first = next((line.error for line in lines if line.error), "no reason was given")
    what = f"none of the {score.failures} held-out episodes"
    if score.n:
        what = f"no held-out episode of {', '.join(done.summary.unscored)}"
    return f"{what} has a score. The first error: {first}"


@outlasting()
def carry_out(settings: Settings, *, verbose: bool = False) -> Done:
    """Starts, resumes or loads the run of these settings. `verbose`: progress on stderr. Raises as
    `run` does; after KeyboardInterrupt the same call resumes the run."""
    log: Log = build.log_line if verbose else lambda text: None
    parts = parts_of(settings)
    place = locate(settings, parts)
    if (done := _finished(parts, place)) is not None:
        return done
    with only_writer(place.folder), ExitStack() as stack:
        resumed = place.belongs()
        summary = read_summary(place.folder) if resumed else None
        if summary is not None and summary.lost:
            log(f"{summary.lost} held-out episodes were lost; they are run again")
        elif summary is not None:
            summary = _reported_again(settings, parts, place, summary, log)
            return Done(place.folder, summary, stored=True)
        bench = build_bench(settings, parts, place, stack, log, new=not resumed)
        tracker: Tracker = parts["tracker"].make(bench.context)  # refuses before anything is there
        metrics = Metrics(place.folder / "metrics.jsonl", tracker, log)
        stack.enter_context(closing(metrics))
        if not resumed:
            place.claim(settings)
        for line in bench.header():
            log(line)
        stream = sys.stderr if verbose else stack.enter_context(Path(os.devnull).open("w"))
        progress = Progress(settings.budget, stream=stream)
        summary = _execute(bench, metrics, stack, progress, resumed)
    return Done(place.folder, summary, stored=False)


def _finished(parts: Parts, place: Place) -> Done | None:
    """The run if it is finished and nothing is left to write: it needs no lock then, so that it can
    be looked at in a read-only folder. None if there is something to do, also for its tracker."""
    if parts["tracker"].declared.awaits_result() or not place.holds_run():
        return None
    if (place.folder / UNTOLD).exists():
        return None
    summary = read_summary(place.folder) if place.belongs() else None
    if summary is None or summary.lost:
        return None
    return Done(place.folder, summary, stored=True)


@dataclass(frozen=True)
class _InProgress:
    bench: Bench
    evaluation: Evaluation
    progress: Progress
    clock: Clock
    lab: RunLab  # the method's


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
    stack.callback(progress.close)
    bench.write_tags()
    clock = Clock(folder / TIMING)
    apart = settings.protocol == "held_out"
    every = tasks_of(bench.suite, settings.evaluation.split)  # also beyond evaluation.limit
    suites = Suites(bench.suite, {}, settings.rehearsal, every, reserved=apart)
    faults = Faults(folder / FAULTS)
    player = Player(bench.policy, suites, how.max_turns, how.max_tokens, faults)
    scoring = settings.evaluation
    evaluation = Evaluation(
        folder,
        player,
        Terms(settings.seed, how.eval_temperature, scoring.retries, settings.max_lost),
        EvaluationPlan(tuple(bench.held_out), scoring.trials),
        EvaluationPlan(tuple(bench.development)),
        scoring.routing,
        bench.points,
        progress,
        clock,
    )
    stack.enter_context(closing(evaluation))
    lab = RunLab(
        folder,
        settings.seed,
        _ledger(folder, settings),
        player,
        bench.trainer,
        metrics,
        progress,
        evaluation.checkpoint,
        bench.roles,
        build.generated_suites(settings, bench.context, bench.log),
        settings.max_lost,
    )
    stack.enter_context(closing(lab))
    if len(code_of(folder)) > 1:
        progress.log(f"other code of trace_bench has begun this run (`code` in {SUMMARY})")
    if resumed:
        there = lab.ledger.spent
        progress.log(f"resuming {folder}: {there} of {settings.budget} rollouts are there")
    base = base_agent(bench.acting_model, bench.beginning, folder)
    run = _InProgress(bench, evaluation, progress, clock, lab)
    agent = _phases(run, base)
    if lab.ledger.spent > settings.budget:
        raise UserError(
            f"the ledger has {lab.ledger.spent} rollouts with budget={settings.budget}, so the run "
            "has no result: the method changed what it may spend. Change `method`."
        )
    # Where nothing was trained, nothing would be by these.
    trained = {y.name: _yardstick(run, y, base) for y in bench.yardsticks if agent != base}
    clock.add("total", time.monotonic() - started)
    if not (folder / CONFIG).exists():
        raise UserError(
            f"{folder} was removed while the run wrote to it, so it has no result. Run the same "
            "command again."
        )
    summary = summarize(bench, evaluation, lab, agent, trained, clock.seconds)
    summary = _with_failure(summary, metrics)
    write_text(folder / UNTOLD, "")
    write_json(folder / SUMMARY, summary)
    report.tell(folder, summary, metrics)
    if summary != (told := _with_failure(summary, metrics)):
        write_json(folder / SUMMARY, told)
    return told


def _ledger(folder: Path, settings: Settings) -> Ledger:
    return Ledger(folder / "ledger.jsonl", settings.budget, CHARGED[settings.accounting])


def _with_failure(summary: Summary, metrics: Metrics) -> Summary:
    """The summary with how the tracker failed by now, if it has a place for that."""
    if summary.health is None:
        return summary
    return replace(summary, health=replace(summary.health, tracker=metrics.failure))


def _phases(run: _InProgress, base: AgentSpec) -> AgentSpec:
    """Runs the phases: base agent, scripted bounds, method, trained agent, adapters."""
    bench, evaluation, lab = run.bench, run.evaluation, run.lab
    evaluation.base(base)
    names = [*LOWER, *(UPPER if bench.suite.has(Suite.reference) else ())]
    evaluation.floors(build.scripted_policies(bench.context, names))
    with run.clock.phase("method"):
        run.progress.phase("method")
        lab.checkpoint(base)
        agent = _fitted(bench.method, bench.parts["method"].label, base, bench.train, lab)
        evaluation.checkpoint(lab.spent, agent, bench.settings.budget + 1)
        write_json(bench.place.folder / AGENT, agent)
    for purpose, seconds in lab.seconds.items():
        run.clock.add(f"method/{purpose} rollouts", seconds)
    evaluation.trained("final", "final evaluation", base, agent, keep=True)
    evaluation.adapters(base, agent)
    return agent


def _fitted(
    method: Method, label: str, base: AgentSpec, tasks: Sequence[Task], lab: RunLab
) -> AgentSpec:
    """The agent that a method returns. Raises UserError if it is none or the budget too small."""
    try:
        agent: object = method.fit(base, tasks, lab)
    except BudgetExceeded as error:
        raise UserError(f"method={label}: {error}") from error
    if not isinstance(agent, AgentSpec):
        raise UserError(
            f"method={label} returned {type(agent).__name__} instead of a trace_bench.AgentSpec: "
            "`fit` must return the trained agent (docs/methods.md). Change `method`."
        )
    _check_agent(agent, base, lab.folder, label)
    lab.player.suites.check_unchanged()
    return agent


def _check_agent(agent: AgentSpec, base: AgentSpec, folder: Path, label: str) -> None:
    """Raises UserError for another model than the base agent's, and for adapters from elsewhere."""
    inside, begun = folder.resolve(), {adapter.path for adapter in base.adapters}
    strange = [
        f"adapter {adapter.path}"
        for adapter in agent.adapters
        if adapter.path not in begun and not Path(adapter.path).resolve().is_relative_to(inside)
    ]
    if agent.model != base.model:
        strange.insert(0, f"model {agent.model}")
    if strange:
        raise UserError(
            f"method={label} returned an agent with the {strange[0]}; allowed: the base model, and "
            "adapters of the base agent or in the run folder. Change `method`."
        )


def _yardstick(run: _InProgress, yardstick: Yardstick, base: AgentSpec) -> TrainedApart:
    """Trains a yardstick apart: with a ledger, metrics and generated suites of its own."""
    bench, settings = run.bench, run.bench.settings
    folder = bench.place.folder / yardstick.name
    lab = replace(
        run.lab,
        folder=folder,
        ledger=_ledger(folder, settings),
        player=replace(run.lab.player, suites=replace(run.lab.player.suites, others={})),
        trainer=bench.parts["trainer"].make(bench.context),
        tracker=Metrics(folder / "metrics.jsonl", Silent(), bench.log),
        progress=Aside(run.progress),
        on_checkpoint=None,
    )
    with run.clock.phase(yardstick.title), closing(lab) as lab:
        run.progress.phase(yardstick.title, total=settings.budget)
        agent = _fitted(yardstick.method, yardstick.name, base, bench.train, lab)
        rollouts = lab.ledger.by_purpose()
    run.evaluation.trained(yardstick.name, f"evaluation of {yardstick.title}", base, agent)
    return TrainedApart(yardstick.title, rollouts)


def _reported_again(
    settings: Settings, parts: Parts, place: Place, summary: Summary, log: Log
) -> Summary:
    """Passes a stored result to a tracker that waits for it, or that a killed run has not told of
    it; the summary, with its failure."""
    if not parts["tracker"].declared.awaits_result() and not (place.folder / UNTOLD).exists():
        return summary
    tracker = parts["tracker"].make(build.run_context(settings, parts, **vars(place)))
    with closing(Metrics(place.folder / "metrics.jsonl", tracker, log)) as metrics:
        report.tell(place.folder, summary, metrics)
    return summary if metrics.failure is None else _with_failure(summary, metrics)
