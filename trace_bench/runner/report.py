"""A run's figures: rows with intervals and paired differences, and the table printed at the end."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.types import charged
from trace_bench.llm import costs
from trace_bench.results import facts
from trace_bench.results.statistics import paired_difference, share_interval, task_means
from trace_bench.runner import health
from trace_bench.runner.outcomes import Outcome

WIDE = 104  # columns of the whole closing table with usual names
NARROW = 79


@dataclass(frozen=True)
class Row:
    """One agent's figures on the held-out tasks; `difference`: to the base agent, paired."""

    name: str
    success: float
    low: float
    high: float
    similarity: float
    n: int  # tasks
    failures: int  # episodes that the infrastructure lost; in no other number
    difference: Mapping[str, Any] | None = None


def score(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """{success, similarity, n, interval, failures}: means over tasks, interval of the success.

    All figures are None if every episode was lost.
    """
    scored = [o for o in outcomes if o.score is not None]
    failures = len(outcomes) - len(scored)
    if not scored:
        empty = {"success": None, "similarity": None, "n": 0, "interval": None}
        return {**empty, "failures": failures}
    success = task_means((o.task, o.success) for o in scored)
    similarity = task_means((o.task, o.similarity) for o in scored)
    interval = share_interval(list(success.values()))
    return {
        "success": interval.value,
        "similarity": sum(similarity.values()) / len(similarity),
        "n": len(success),
        "interval": [interval.low, interval.high],
        "failures": failures,
    }


def row(name: str, outcomes: Sequence[Outcome], base: Sequence[Outcome] | None) -> Row | None:
    """The table row of an agent; None if none of its episodes has a score."""
    figures = score(outcomes)
    if figures["n"] == 0:
        return None
    low, high = figures["interval"]
    return Row(
        name=name,
        success=figures["success"],
        low=low,
        high=high,
        similarity=figures["similarity"],
        n=figures["n"],
        failures=figures["failures"],
        difference=None if base is None else difference(outcomes, base),
    )


def difference(treated: Sequence[Outcome], control: Sequence[Outcome]) -> dict[str, Any] | None:
    """Paired difference in success, over the tasks for which both have a score."""
    one = task_means((o.task, o.success) for o in treated if o.score is not None)
    two = task_means((o.task, o.success) for o in control if o.score is not None)
    both = [task for task in two if task in one]
    if not both:
        return None
    result = paired_difference({t: one[t] for t in both}, {t: two[t] for t in both})
    return dataclasses.asdict(result)


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


def p_value(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def closing(summary: Mapping[str, Any], columns: int = WIDE) -> str:
    """The closing output of a finished run, without the last line, from its summary alone.
    `columns`: the width of the terminal."""
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
    if about := facts.line(summary.get("suite_data", {}), summary.get("models", {})):
        lines.append(f"suite: {about}")
    if borrowed is not None:
        own = facts.line(borrowed["training"]["data"], summary.get("models", {}))
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
        lines += health.lines(summary["health"])
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
    agents = {"base": figures["base_score"], **({method: figures["score"]} if learns else {})}
    shown = [
        f"{name} {'no score' if s['success'] is None else format(s['success'], '.3f')}"
        for name, s in agents.items()
    ]
    count = len(figures["tasks"])
    tasks = "task whose scoring is" if count == 1 else "tasks whose scoring is"
    return f"without the {count} {tasks} known to be wrong: {', '.join(shown)}"


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
        text += f"; {costs.in_words(shares[role], items)}" if role in shares else ""
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
    """A point of the training curve: rollouts and success."""
    success = point["success"]
    return f"{point['checkpoint']}: {'no score' if success is None else f'{success:.3f}'}"
