"""A finished run in words: the closing table, what was lost, and what its tracker is handed."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.run_files import PER_ITEM, TASKS, UNTOLD
from trace_bench.core.store import read_lines, read_object, write_text
from trace_bench.core.summary import (
    AgentRow,
    Began,
    Compared,
    Costs,
    EpisodeCounts,
    Health,
    Summary,
    facts,
)
from trace_bench.core.types import Outcome, to_json
from trace_bench.llm.roles import cost_in_words
from trace_bench.results.statistics import many, p_value
from trace_bench.trackers.jsonl import Metrics

WIDE = 104  # columns of the whole closing table with usual names
NARROW = 79
ORIGIN = ("module", "attribute", "version", "sha256")


def table(rows: Sequence[AgentRow], title: str, columns: int = WIDE) -> str:
    """The closing table as text; works from the rows as they stand in summary.json. Within 79
    characters if there are fewer `columns` than the whole table needs."""
    if columns < WIDE:
        return _narrow(rows, title)
    width = max([len(str(r.name)) for r in rows] + [5])
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


def _narrow(rows: Sequence[AgentRow], title: str) -> str:
    """The table without similarities, figures without the leading zero."""
    head = f"{'agent':<24}  {'success and 95%':<17}  {'vs base and 95%':<20}  p"
    lines = [*textwrap.wrap(title, NARROW), head, "-" * NARROW]
    for r in rows:
        name = r.name if len(r.name) <= 24 else f"{r.name[:23]}\u2026"
        ends = f"[{_short(r.low)}, {_short(r.high)}]"
        line = f"{name:<24}  {_short(r.success):>4} {ends}"
        if (d := r.difference) is not None:
            ends = f"[{_short(d.low, '+')}, {_short(d.high, '+')}]"
            line = f"{line:<43}  {_short(d.value, '+')} {ends}  {p_value(d.p_value)}"
        lines.append(line + (f"  ({r.failures} lost)" if r.failures else ""))
    return "\n".join([*lines, "similarities: a wider terminal, or summary.json"])


def _short(share: float, sign: str = "") -> str:
    """A share in [-1, 1] with three decimals and no zero before the point: +.264."""
    return f"{share:{sign}.3f}".replace("0.", ".", 1)


def closing(summary: Summary, columns: int = WIDE) -> str:
    """The closing output of a finished run from its summary alone. `columns`: of the terminal."""
    title = (
        f"{summary.titled} on {summary.suite_name or summary.world}, split {summary.split} "
        f"({summary.score.n} tasks, protocol "
        f"{summary.protocol}), seed {summary.seed}, {summary.spent} of "
        f"{summary.budget} rollouts"
    )
    if summary.unspent:
        title += f" ({summary.unspent} unspent: {summary.why_unspent})"
    if (borrowed := summary.borrowed) is not None:
        title += f", training tasks of {borrowed.training.suite}"
    for mark in summary.marks:
        title += f" ({mark})"
    if summary.accounting == "paper":
        title += " (accounting=paper: analysis and calibration are not counted)"
    lines = ["", table(summary.table, title, columns), ""]
    if (beginning := summary.beginning) is not None:
        lines.append(_beginning(beginning, summary.spent))
    if (without := summary.without_known_bad) is not None:
        bad = many(len(without.tasks or ()), "task")
        agents = _agents(summary, without)
        lines.append(f"without the {bad} whose scoring is known to be wrong: {agents}")
    for world, figures in summary.worlds.items():
        lines.append(f"{world}: {_agents(summary, figures)} ({figures.score.n} tasks)")
    if about := facts(summary.suite_data, summary.models):
        lines.append(f"suite: {about}")
    if borrowed is not None:
        about = facts(borrowed.training.data, summary.models)
        lines.append(f"training suite: {about or borrowed.training.suite}")
    if summary.capabilities is not None:
        lines.append(f"capabilities: {', '.join(summary.capabilities) or 'none selected'}")
    for group, origin in summary.origins.items():
        module, attribute, version, sha256 = map(origin.get, ORIGIN)
        installed = f" {version}" if version else ""
        lines.append(f"{group}: {module}:{attribute}{installed}, source {sha256}")
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
    if summary.llm is not None:
        lines += _costs(summary.llm)
    if summary.health is not None:
        lines += health_lines(summary.health)
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


def _costs(llm: Costs) -> list[str]:
    """Requests to models, one line per role, with their share of a checklist item."""
    lines = []
    items, shares = sum(llm.items.values()), llm.per_item
    for role, cost in llm.usage.items():
        requests, prompt, completion = (cost.get(name, 0) for name in PER_ITEM)
        if not requests:
            continue
        text = f"{role}: {requests} requests, {prompt} prompt and {completion} completion tokens"
        for name in ("retries", "failures", "rewritten"):
            text += f", {cost[name]} {name}" if cost.get(name) else ""
        text += f"; {cost_in_words(shares[role], items)}" if role in shares else ""
        lines.append(text)
    return lines


def _figure(success: float | None) -> str:
    return "no score" if success is None else f"{success:.3f}"


def health_lines(health: Health) -> list[str]:
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


MOST_BYTES = 60_000_000  # of the report, beyond which conversations of training are left out

FIRST = ("final", "base")


def tell(folder: Path, summary: Summary, metrics: Metrics) -> None:
    """Tells the tracker of a summary that is written, and closes it, where it may fail too. A
    failure is the tracker's, and ends nothing."""
    metrics.conclude(to_json(summary))
    if summary.complete:
        _hand_over(folder, metrics)
    metrics.close()
    (folder / UNTOLD).unlink(missing_ok=True)


def _hand_over(folder: Path, metrics: Metrics) -> None:
    with tempfile.TemporaryDirectory() as place:
        page = Path(place, "report.html")

        def make() -> tuple[list[dict[str, Any]], Path]:
            from trace_bench.report.page import build
            from trace_bench.report.runs import find

            write_text(page, build(*find([folder]), MOST_BYTES)[0])
            return held_out(folder), page

        metrics.hand_over(make)


def held_out(folder: Path) -> list[dict[str, Any]]:
    """Every attempt at a held-out task, as `_row` has it; the final and the base agent first."""
    tags = read_object(folder / TASKS) if (folder / TASKS).exists() else {}
    rows = [_row(line, tags) for line in read_lines(folder / "evaluation.jsonl", Outcome)]
    return sorted(rows, key=lambda row: (row["agent"] not in FIRST, row["agent"] != FIRST[0]))


def _row(line: Outcome, tags: Mapping[str, list[str]]) -> dict[str, Any]:
    score = line.score
    return {
        "agent": line.agent,
        "task": line.task,
        "needs": " ".join(tags.get(line.task, ())),
        "trial": line.trial,
        "attempt": line.attempt,
        "success": None if score is None else score.success,
        "similarity": None if score is None else score.similarity,
        "adapter": line.adapter,
        "stop": line.stop.value,
        "tokens": line.tokens,
        "error": line.error,
    }
