"""A run in words. While it goes on: phase, rollouts spent of the budget, reward, time left, and the
time of phases; a line is printed from time to time, to stderr: stdout carries only the results.
Finished: the closing table, its costs and what was lost."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_if_there, write_json
from trace_bench.core.summary import AgentRow, Began, Compared, EpisodeCounts, Summary, facts
from trace_bench.results.statistics import p_value

RECENT = 64  # episodes in the running reward
ENOUGH = 8  # episodes that have a pace


@dataclass(eq=False)
class Progress:
    """Counts episodes and shows the progress. Never influences results."""

    budget: int
    _: KW_ONLY
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    every: float = 10.0

    def __post_init__(self) -> None:
        self.spent = 0
        self._rewards: deque[float] = deque(maxlen=RECENT)
        self._begin("starting", 0)

    def phase(self, name: str, total: int = 0) -> None:
        """Starts a phase; `total`: its number of episodes, 0 if it spends the budget."""
        self._begin(name, total)
        self._show(force=True)

    def _begin(self, name: str, total: int) -> None:
        self._phase, self._total, self._step = name, total, ""
        self._start = self._last = self.clock()
        self._first = self._done = 0 if total else self.spent
        self._rewards.clear()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """Sets the current step of the phase; with a `total`, so much of it is `done`."""
        self._step = f"{name}, {done}/{total} steps" if total else name
        self._show()

    def episode(self, reward: float | None, *, charged: bool) -> None:
        """Counts a finished episode; `reward` is None if the infrastructure failed."""
        self.spent += charged
        self._done += bool(self._total or charged)
        if reward is not None:
            self._rewards.append(reward)
        self._show()

    def log(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def line(self) -> str:
        """The current state as one line."""
        parts = [f"{self._phase}: {self._step}" if self._step else self._phase]
        if self._total:
            parts.append(f"{self._done}/{self._total} episodes")
        parts.append(f"rollouts {self.spent}/{self.budget}")
        if self._rewards:
            parts.append(f"reward {sum(self._rewards) / len(self._rewards):.2f}")
        done, left = self._done - self._first, (self._total or self.budget) - self._done
        if done >= ENOUGH and left > 0:
            seconds = round((self.clock() - self._start) / done * left)
            parts.append(f"{timedelta(seconds=seconds)} left")
        return " | ".join(parts)

    def _show(self, force: bool = False) -> None:
        now = self.clock()
        if force or now - self._last >= self.every:
            self._last = now
            self.log(self.line())


TIMING = "timing.json"


@dataclass
class Clock:
    """Wall seconds by phase over all attempts at a run; kept in the run folder."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = read_if_there(self.path)
        if not all(isinstance(s, int | float) for s in self.seconds.values()):
            raise UserError(f"{self.path} holds no seconds. {REPAIRS[TIMING]}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        write_json(self.path, self.seconds)


def table(rows: Sequence[AgentRow], title: str) -> str:
    """The closing table as text; works from the rows as they stand in summary.json."""
    width = max([len(r.name) for r in rows] + [5])
    head = (
        f"{'agent':<{width}}  {'success':>7}  {'95% interval':<14}  {'similarity':>10}"
        f"  {'vs base':>7}  {'95% interval':<16}  p"
    )
    lines = [title, head, "-" * len(head)]
    for r in rows:
        line = (
            f"{r.name:<{width}}  {r.success:7.3f}  [{r.low:.3f}, {r.high:.3f}]"
            f"  {r.similarity:10.3f}"
        )
        if (d := r.difference) is not None:
            ends = f"[{d.low:+.3f}, {d.high:+.3f}]"
            line += f"  {d.value:+7.3f}  {ends:<16}  {p_value(d.p_value)}"
        lines.append(line + (f"  ({r.failures} lost)" if r.failures else ""))
    return "\n".join(lines)


def closing(summary: Summary) -> str:
    """The closing output of a finished run from its summary alone."""
    title = (
        f"{summary.titled} on {summary.suite_name or summary.world}, split {summary.split} "
        f"({summary.score.n} tasks, protocol {summary.protocol}), seed {summary.seed}, "
        f"{summary.spent} of {summary.budget} rollouts"
    )
    if summary.unspent:
        title += f" ({summary.unspent} unspent: {summary.why_unspent})"
    if (borrowed := summary.borrowed) is not None:
        title += f", training tasks of {borrowed.training.suite}"
    for mark in summary.marks:
        title += f" ({mark})"
    if summary.accounting == "paper":
        title += " (accounting=paper: analysis and calibration are not counted)"
    lines = ["", table(summary.table, title), ""]
    if (beginning := summary.beginning) is not None:
        lines.append(_beginning(beginning, summary.spent))
    for world, figures in summary.worlds.items():
        lines.append(f"{world}: {_agents(summary, figures)} ({figures.score.n} tasks)")
    if about := facts(summary.suite_data, summary.models):
        lines.append(f"suite: {about}")
    if borrowed is not None:
        about = facts(borrowed.training.data, summary.models)
        lines.append(f"training suite: {about or borrowed.training.suite}")
    if summary.capabilities is not None:
        lines.append(f"capabilities: {', '.join(summary.capabilities) or 'none selected'}")
    if summary.adapters:
        lines.append(f"adapters: {', '.join(summary.adapters)}")
    if (routing := summary.routing) is not None:
        text = f"router: as good as the oracle on {routing.agreement:.0%} of the tasks"
        if (share := routing.agreement_decisive) is not None:
            text += f", on {share:.0%} of the {routing.decisive} where the choice matters"
        lines.append(text)
    for name, yardstick in summary.yardsticks.items():
        spent = sum(yardstick.rollouts.values())
        lines.append(
            f"{yardstick.title}: a yardstick, trained apart with {spent} rollouts of its own "
            f"({name}/ledger.jsonl)"
        )
    if summary.curve:
        points = ", ".join(f"{p.checkpoint}: {_figure(p.success)}" for p in summary.curve)
        lines.append(f"curve on {summary.dev_split}: {points}")
        if summary.curve_caveat:
            lines.append(f"  not what runs with these budgets give: {summary.curve_caveat}")
    lines += [*_usage(summary.usage), *_health(summary)]
    lines.append(
        "files: ledger.jsonl (every rollout), trajectories.jsonl (read them with python -m "
        "trace_bench.show), evaluation.jsonl, metrics.jsonl, agent.json, summary.json; in a "
        "browser: python -m trace_bench.report"
    )
    return "\n".join(lines)


def _beginning(beginning: Began, spent: int) -> str:
    """What the agent cost that the run began with, and all of it together, as one line."""
    before = beginning.rollouts
    if before is None:
        return "began with an agent of unknown cost, so its rollouts compare with no other run's"
    total = f", {before} + {spent} = {before + spent} rollouts in all"
    taught = beginning.demonstrations
    lessons = f", {taught} demonstrations" if taught else ""
    methods = " > ".join(run.method for run in beginning.runs) or "the bare model"
    marks = "".join(f"; {mark}" for run in beginning.runs for mark in run.marks)
    return f"began with the agent of {methods} ({before} rollouts{lessons}{marks}){total}"


def _agents(run: Summary, figures: Compared) -> str:
    agents = {"base": figures.base_score, **({run.titled: figures.score} if run.learns else {})}
    return ", ".join(f"{name} {_figure(s.success)}" for name, s in agents.items())


def _usage(usage: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Requests to models, one line per role."""
    for role, cost in usage.items():
        if requests := cost.get("requests"):
            prompt, completion = (
                cost.get(f"{kind}_tokens", 0) for kind in ("prompt", "completion")
            )
            more = (f", {cost[n]} {n}" for n in ("retries", "failures", "rewritten") if cost.get(n))
            yield (
                f"{role}: {requests} requests, {prompt} prompt and {completion} completion tokens"
                + "".join(more)
            )


def _figure(success: float | None) -> str:
    return "no score" if success is None else f"{success:.3f}"


def _health(summary: Summary) -> list[str]:
    health = summary.health
    out = [_lost_and_cut("method", health.method), _lost_and_cut("evaluation", health.evaluation)]
    if health.groups is not None:
        out[0] += f"; {health.constant} of {health.groups} groups without an advantage"
    if health.steps is not None:
        out[0] += f"; {health.steps} optimizer steps"
    if alarms := health.alarms:
        out[0] += (
            f"; sampler and trainer too far apart in {alarms} iterations (by up to "
            f"{health.apart:.3g} in log-probability on average, trainer.mismatch)"
        )
    lines = [f"health, {text}" for text in out]
    if (failure := health.tracker) is not None:
        lines.append(f"the tracker failed ({failure}); the metrics are in metrics.jsonl")
    return lines


def _lost_and_cut(name: str, counts: EpisodeCounts) -> str:
    parts = []
    if gone := counts.lost:
        kinds = ", ".join(f"{count} {boundary}" for boundary, count in sorted(gone.items()))
        parts.append(f"{sum(gone.values())} lost ({kinds})")
    if counts.context:
        parts.append(f"{counts.context} cut off by the context")
    if counts.turn_limit:
        parts.append(f"{counts.turn_limit} by the limit of turns")
    if counts.malformed:
        parts.append(f"{counts.malformed} of {counts.turns} turns with an unreadable tool call")
    what = f"{name}: {counts.episodes} episodes"
    return f"{what}, {', '.join(parts) or 'none lost or cut off'}"
