"""A finished run in words: the closing table, what was lost, and what its tracker is handed."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.lines import Outcome
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_lines, read_object, write_text
from trace_bench.core.types import charged
from trace_bench.llm.roles import cost_in_words
from trace_bench.results.captions import facts
from trace_bench.results.table import p_value
from trace_bench.trackers.jsonl import Metrics

WIDE = 104  # columns of the whole closing table with usual names
NARROW = 79


def table(rows: Sequence[Mapping[str, Any]], title: str, columns: int = WIDE) -> str:
    """The closing table as text; works from the rows as they stand in summary.json. Within 79
    characters if there are fewer `columns` than the whole table needs."""
    if columns < WIDE:
        return _narrow(rows, title)
    width = max([len(str(r["name"])) for r in rows] + [5])
    head = (
        f"{'agent':<{width}}  {'success':>7}  {'95% interval':<14}  {'similarity':>10}"
        f"  {'vs base':>7}  {'95% interval':<16}  p"
    )
    lines = [title, head, "-" * len(head)]
    for r in rows:
        line = (
            f"{r['name']:<{width}}  {r['success']:7.3f}  [{r['low']:.3f}, {r['high']:.3f}]"
            f"  {r['similarity']:10.3f}"
        )
        if (d := r["difference"]) is not None:
            ends = f"[{d['low']:+.3f}, {d['high']:+.3f}]"
            line += f"  {d['value']:+7.3f}  {ends:<16}  {p_value(d['p_value'])}"
        lines.append(line + (f"  ({r['failures']} lost)" if r["failures"] else ""))
    return "\n".join(lines)


def _narrow(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """The table without similarities, figures without the leading zero."""
    head = f"{'agent':<24}  {'success and 95%':<17}  {'vs base and 95%':<20}  p"
    lines = [*textwrap.wrap(title, NARROW), head, "-" * NARROW]
    for r in rows:
        name = r["name"] if len(r["name"]) <= 24 else f"{r['name'][:23]}\u2026"
        ends = f"[{_short(r['low'])}, {_short(r['high'])}]"
        line = f"{name:<24}  {_short(r['success']):>4} {ends}"
        if (d := r["difference"]) is not None:
            ends = f"[{_short(d['low'], '+')}, {_short(d['high'], '+')}]"
            line = f"{line:<43}  {_short(d['value'], '+')} {ends}  {p_value(d['p_value'])}"
        lines.append(line + (f"  ({r['failures']} lost)" if r["failures"] else ""))
    return "\n".join([*lines, "similarities: a wider terminal, or summary.json"])


def _short(share: float, sign: str = "") -> str:
    """A share in [-1, 1] with three decimals and no zero before the point: +.264."""
    return f"{share:{sign}.3f}".replace("0.", ".", 1)


def closing(summary: Mapping[str, Any], columns: int = WIDE) -> str:
    """The closing output of a finished run from its summary alone. `columns`: of the terminal."""
    named = "/".join(name for name in (summary["env"], summary["suite"]) if name)
    suite = summary.get("suite_name") or named
    n = summary["score"]["n"]
    title = (
        f"{summary['method']} on {suite}, split {summary['split']} ({n} tasks, protocol "
        f"{summary['protocol']}), seed {summary['seed']}, {_spent(summary)} of "
        f"{summary['budget']} rollouts"
    )
    if (borrowed := summary.get("borrowed")) is not None:
        title += f", training tasks of {borrowed['training']['suite']}"
    for mark in summary.get("marks", ()):
        title += f" ({mark})"
    if summary["accounting"] == "paper":
        title += " (accounting=paper: analysis and calibration are not counted)"
    lines = ["", table(summary["table"], title, columns), ""]
    if (beginning := summary.get("beginning")) is not None:
        lines.append(_beginning(beginning, _spent(summary)))
    if (without := summary.get("without_known_bad")) is not None:
        lines.append(_without(summary["method"], summary["learns"], without))
    for world, figures in summary.get("worlds", {}).items():
        shown = _agents(summary["method"], summary["learns"], figures)
        lines.append(f"{world}: {shown} ({figures['score']['n']} tasks)")
    if about := facts(summary.get("suite_data", {}), summary.get("models", {})):
        lines.append(f"suite: {about}")
    if borrowed is not None:
        own = facts(borrowed["training"]["data"], summary.get("models", {}))
        lines.append(f"training suite: {own or borrowed['training']['suite']}")
    if summary["capabilities"] or ("marks" in summary and summary["capabilities"] is not None):
        lines.append(f"capabilities: {', '.join(summary['capabilities']) or 'none selected'}")
    for group, origin in summary.get("origins", {}).items():
        version = f" {origin['version']}" if origin["version"] else ""
        lines.append(
            f"{group}: {origin['module']}:{origin['attribute']}{version}, source {origin['sha256']}"
        )
    if summary["adapters"]:
        lines.append(f"adapters: {', '.join(summary['adapters'])}")
    if (routing := summary["routing"]) is not None:
        lines.append(f"router: {_routing(routing)}")
    if (routing := summary.get("routing_dev")) is not None:
        lines.append(f"router on {summary['dev_split']}: {_routing(routing)}")
    for name, yardstick in _yardsticks(summary).items():
        spent = sum(yardstick["rollouts"].values())
        lines.append(
            f"{yardstick['title']}: a yardstick, trained apart with {spent} rollouts of its own "
            f"({name}/ledger.jsonl)"
        )
    if summary["curve"]:
        points = ", ".join(map(curve_point, summary["curve"]))
        lines.append(f"curve on {summary['dev_split']}: {points}")
        if summary["curve_caveat"]:
            lines.append(f"  not what runs with these budgets give: {summary['curve_caveat']}")
    lines += _costs(summary.get("llm") or {})
    if "health" in summary:
        lines += health_lines(summary["health"])
    lines.append(
        "files: ledger.jsonl (every rollout), trajectories.jsonl (read them with python -m "
        "trace_bench.show), evaluation.jsonl, metrics.jsonl, agent.json, summary.json; in a "
        "browser: python -m trace_bench.report"
    )
    return "\n".join(lines)


def _beginning(beginning: Mapping[str, Any], own: int) -> str:
    """What the agent cost that the run began with, and all of it together, as one line."""
    before = beginning["rollouts"]
    if before is None:
        return "began with an agent of unknown cost, so its rollouts compare with no other run's"
    known = f", {before} + {own} = {before + own} rollouts in all"
    taught = beginning["demonstrations"]
    shown = f", {taught} demonstrations" if taught else ""
    made = " > ".join(str(run["method"]) for run in beginning["runs"]) or "the bare model"
    marks = "".join(f"; {mark}" for run in beginning["runs"] for mark in run.get("marks", ()))
    return f"began with the agent of {made} ({before} rollouts{shown}{marks}){known}"


def _without(method: str, learns: bool, figures: Mapping[str, Any]) -> str:
    """Base and method without the tasks whose scoring is known to be wrong, as one line."""
    count = len(figures["tasks"])
    tasks = "task whose scoring is" if count == 1 else "tasks whose scoring is"
    shown = _agents(method, learns, figures)
    return f"without the {count} {tasks} known to be wrong: {shown}"


def _agents(method: str, learns: bool, figures: Mapping[str, Any]) -> str:
    agents = {"base": figures["base_score"], **({method: figures["score"]} if learns else {})}
    return ", ".join(
        f"{name} {'no score' if s['success'] is None else format(s['success'], '.3f')}"
        for name, s in agents.items()
    )


def _yardsticks(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The yardsticks by name; run folders from before methods named theirs have one of TRACE's."""
    if "yardsticks" in summary:
        return dict(summary["yardsticks"])
    joint = summary.get("joint_rollouts")
    return {"joint": {"title": "one joint adapter", "rollouts": joint}} if joint else {}


def _costs(llm: Mapping[str, Any]) -> list[str]:
    """Requests to models, one line per role, with their share of a checklist item."""
    lines = []
    items, shares = sum(llm.get("items", {}).values()), llm.get("per_item", {})
    for role, cost in llm.get("usage", {}).items():
        if not cost["requests"]:
            continue
        text = (
            f"{role}: {cost['requests']} requests, {cost['prompt_tokens']} prompt and "
            f"{cost['completion_tokens']} completion tokens"
        )
        for name in ("retries", "failures", "rewritten"):
            text += f", {cost[name]} {name}" if cost.get(name) else ""
        text += f"; {cost_in_words(shares[role], items)}" if role in shares else ""
        lines.append(text)
    return lines


def beside(name: str, summary: Mapping[str, Any]) -> str:
    """Another finished run as one line below a table of the same held-out tasks."""
    figures, change = summary["score"], summary["difference"]
    if figures["n"] == 0:
        return f"{name}: no held-out episode has a score"
    low, high = figures["interval"]
    text = f"{name}: success {figures['success']:.3f} [{low:.3f}, {high:.3f}]"
    if change is not None:
        text += f", vs base {change['value']:+.3f} (p {p_value(change['p_value'])})"
    text += f", {_spent(summary)} of {summary['budget']} rollouts of its own"
    if (beginning := summary.get("beginning")) is not None and beginning["rollouts"] is not None:
        text += f" after {beginning['rollouts']} of what it began with"
    return text


def _spent(summary: Mapping[str, Any]) -> int:
    return charged(summary["rollouts"], summary["accounting"])


def _routing(routing: Mapping[str, Any]) -> str:
    text = f"as good as the oracle on {routing['agreement']:.0%} of the tasks"
    if routing["agreement_decisive"] is not None:
        text += (
            f", on {routing['agreement_decisive']:.0%} of the {routing['decisive']} where the "
            "choice matters"
        )
    return text


def curve_point(point: Mapping[str, Any]) -> str:
    success = point["success"]
    return f"{point['checkpoint']}: {'no score' if success is None else f'{success:.3f}'}"


def health_lines(health: Mapping[str, Any]) -> list[str]:
    out = [_lost_and_cut(name, health[name]) for name in ("method", "evaluation")]
    if health["groups"] is not None:
        out[0] += f"; {health['constant']} of {health['groups']} groups without an advantage"
    if health["steps"] is not None:
        out[0] += f"; {health['steps']} optimizer steps"
    if alarms := health.get("alarms"):
        out[0] += (
            f"; sampler and trainer too far apart in {alarms} iterations (by up to "
            f"{health['apart']:.3g} in log-probability on average, trainer.mismatch)"
        )
    found = [f"health, {text}" for text in out]
    if (trials := health["equal_trials"]) is not None:
        found.append(
            f"the {trials} trials of every task were equal, so they say no more than one "
            "(evaluation.trials, policy.eval_temperature)"
        )
    if (failure := health.get("tracker")) is not None:
        found.append(f"the tracker failed ({failure}); the metrics are in metrics.jsonl")
    return found


def _lost_and_cut(name: str, found: Mapping[str, Any]) -> str:
    parts = []
    if gone := found["lost"]:
        kinds = ", ".join(f"{count} {boundary}" for boundary, count in gone.items())
        parts.append(f"{sum(gone.values())} lost ({kinds})")
    if found["context"]:
        parts.append(f"{found['context']} cut off by the context")
    if found["turn_limit"]:
        parts.append(f"{found['turn_limit']} by the limit of turns")
    if found["malformed"]:
        parts.append(f"{found['malformed']} of {found['turns']} turns with an unreadable tool call")
    what = f"{name}: {found['episodes']} episodes"
    return f"{what}, {', '.join(parts) or 'none lost or cut off'}"


MOST_BYTES = 60_000_000  # of the report, beyond which conversations of training are left out

FIRST = ("final", "base")


def hand_over(folder: Path, metrics: Metrics) -> None:
    """Of a run whose summary is written. A failure is the tracker's, and ends nothing."""
    with tempfile.TemporaryDirectory() as place:
        page = Path(place, "report.html")

        def make() -> tuple[list[dict[str, Any]], Path]:
            from trace_bench.report.page import build
            from trace_bench.report.runs import find

            write_text(page, build(find([folder]), MOST_BYTES).html)
            return held_out(folder), page

        metrics.report(make)


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
