"""Reads a run from its folder, after checking it: the run is finished, its files have the hashes
in its summary, and its ledger spends what the summary states."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_bench.core import store
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import ELSEWHERE, FLOORS, SUMMARY, TASKS
from trace_bench.core.summary import Borrowed, Summary, read_settings, read_summary
from trace_bench.core.types import (
    Entry,
    Head,
    Outcome,
    Purpose,
    Score,
    Stored,
    charged,
    flat,
    grouped,
    to_json,
)
from trace_bench.results.run import Run, counted, drops, run_of
from trace_bench.results.statistics import mean, task_means

# Settings in which runs of one table may differ without harm to the comparison.
FREE = (
    *ELSEWHERE, "method", "budget", "seed", "checkpoints", "evaluation.yardsticks",
    "beginning",  # its cost is counted (`captions.by_total`)
)  # fmt: skip
CHECKED = ("ledger.jsonl", "evaluation.jsonl", "metrics.jsonl", "capabilities.json", TASKS)
AS_THEY_ARE = (
    "method", "budget", "seed", "rollouts", "wall_s", "versions", "git", "fingerprint",
    "marks", "adapters", "beginning", "parameters", "machine", "routing",
)  # fmt: skip
"""What a record has from the summary unchanged."""


def read_run(folder: Path) -> Run:
    """The run of a folder. Raises UserError, and others for damaged files (`DAMAGE`)."""
    summary = finished(folder)
    config = _config(folder, summary)
    for name in CHECKED:
        check_hash(folder, name, summary)
    ledger = _Totals.of(folder / "ledger.jsonl")
    _check_ledger(folder, ledger.rollouts, summary)
    settings, source = _sources(dict(flat(config, FREE)), summary.borrowed)
    lines = grouped(store.read_lines(folder / "evaluation.jsonl", Outcome), lambda o: o.agent)
    if config["protocol"] == "held_out":
        _check_tasks(folder, ledger.tasks, {o.task for some in lines.values() for o in some})
    final, base = (lines.get(agent, []) for agent in ("final", "base"))
    outcomes = counted(final)
    tasks = sorted({o.task for o in outcomes})
    told = to_json(summary)
    bounds = {name: counted(lines.get(name, [])) for name in FLOORS}
    data = {
        **{name: told[name] for name in AS_THEY_ARE},
        "settings": settings,
        "source": source,
        "method_settings": _options(config["method"]),
        "tasks": hashlib.sha256("\n".join(tasks).encode()).hexdigest()[:16],
        "success": _per_task(outcomes, tasks),
        "base": _per_task(counted(base), tasks),
        "similarity": _mean(outcomes, "similarity") or 0.0,
        "tokens": ledger.tokens,
        "passes": _passes(outcomes, tasks) if config["evaluation"]["trials"] > 1 else (),
        "drops": to_json(drops(final, ledger.lost)),
        "capabilities": summary.capabilities or (),
        "votes": _votes(folder),
        "floors": {n: v for n, o in bounds.items() if (v := _mean(o, "success")) is not None},
        "about": summary.suite_data,
        "needs": _needs(folder, tasks),
        "suite": summary.suite_name,
        "worlds": _worlds(summary, tasks),
    }
    return replace(run_of(data), folder=folder)


def _options(method: Mapping[str, Any]) -> dict[str, Any]:
    """The method's settings, choices with theirs: {"route": "soft", "route.others": 0.35}."""
    options: dict[str, Any] = {}
    for key, value in method.items():
        if isinstance(value, Mapping) and "name" in value:
            options |= {key if k == "name" else f"{key}.{k}": v for k, v in value.items()}
        elif key != "name":
            options[key] = value
    return options


def _needs(folder: Path, tasks: Sequence[str]) -> tuple[int, ...]:
    """How many capabilities each task needs; () where that is not known of all."""
    tags = store.read_if_there(folder / TASKS)
    lists = [tag for task in tasks if isinstance(tag := tags.get(task), list)]
    return tuple(map(len, lists)) if len(lists) == len(tasks) else ()


def _worlds(summary: Summary, tasks: Sequence[str]) -> tuple[str, ...]:
    """Each task's world; () where there is one."""
    world_of = {task: name for name, world in summary.worlds.items() for task in world.tasks or ()}
    return tuple(world_of[task] for task in tasks) if world_of else ()


def _sources(
    settings: dict[str, Any], borrowed: Borrowed | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, source) of a record: where the held-out tasks are borrowed from another suite,
    its settings take the place of the run's own, which are then about training alone."""
    if borrowed is None:
        return settings, {}
    apart = borrowed.training_settings
    source = {
        f"training.{key}": value
        for key, value in settings.items()
        if key in apart or key.startswith(tuple(f"{group}." for group in apart))
    }
    left = {k: v for k, v in settings.items() if f"training.{k}" not in source}
    lender = dict(flat({"env": borrowed.env}, FREE))
    training = borrowed.training
    source |= {"training.suite": training.suite}
    source |= {f"training.{name}": value for name, value in training.data.items()}
    return {**left, **lender, "evaluation.split": borrowed.split}, source


def finished(folder: Path) -> Summary:
    """The summary of a run that tables may take. Raises UserError."""
    summary = read_summary(folder)
    if summary is None:
        without = "" if (folder / SUMMARY).exists() else f" (no {SUMMARY})"
        raise UserError(f"{folder}: not finished{without}")
    if summary.rehearsal:
        raise UserError(f"{folder}: a rehearsal, whose scores are drawn by lot, is no result")
    return summary


def _config(folder: Path, summary: Summary) -> Mapping[str, Any]:
    """The settings, which must be those that the run's fingerprint was made of."""
    config = read_settings(folder / "config.yaml")
    identity = {key: value for key, value in config.items() if key not in ELSEWHERE}
    if store.fingerprint(identity) != summary.fingerprint:
        raise UserError(f"{folder}: config.yaml is not the one that the run was made with")
    return config


def check_hash(folder: Path, name: str, summary: Summary) -> None:
    if store.file_hash(folder / name) != summary.hashes.get(name):
        raise UserError(f"{folder}: {name} is not the file that the summary was made from")


@dataclass(frozen=True)
class _Totals:
    """What the lines of a ledger come to, of which none stays in memory."""

    rollouts: Counter[str]
    """By purpose, without evaluation's."""
    lost: Counter[str]
    """The method's own rollouts that the infrastructure lost, by boundary."""
    tasks: frozenset[str]
    tokens: int

    @classmethod
    def of(cls, path: Path) -> _Totals:
        rollouts, lost, tasks, tokens = Counter[str](), Counter[str](), set[str](), 0
        for entry in store.each_line(path, Entry):
            rollouts[entry.purpose.value] += entry.purpose is not Purpose.EVALUATION
            if entry.error:
                lost[entry.error.partition(":")[0]] += 1
            tasks.add(entry.task)
            tokens += entry.tokens
        return cls(+rollouts, lost, frozenset(tasks), tokens)


def _check_ledger(folder: Path, rollouts: Mapping[str, int], summary: Summary) -> None:
    counts = dict(rollouts)
    if counts != (stated := summary.own_rollouts):
        raise UserError(f"{folder}: the ledger holds {counts}, the summary says {stated}")
    if (spent := charged(counts, summary.accounting)) > summary.budget:
        raise UserError(
            f"{folder}: {spent} rollouts in the ledger, more than the budget of {summary.budget}"
        )


def _check_tasks(folder: Path, played: frozenset[str], held_out: set[str]) -> None:
    """Raises UserError where the method has played a task that it is measured on."""
    if seen := played & held_out:
        raise UserError(
            f"{folder}: the ledger has rollouts of {len(seen)} held-out tasks, such as {min(seen)}"
        )


def _per_task(outcomes: Iterable[Outcome], tasks: Sequence[str]) -> tuple[float | None, ...]:
    scored = task_means((o.task, o.success) for o in outcomes if not o.lost)
    return tuple(map(scored.get, tasks))


def _passes(outcomes: Iterable[Outcome], tasks: Sequence[str]) -> list[tuple[int, int]]:
    scored = grouped((o for o in outcomes if not o.lost), lambda o: o.task)
    of_task = [scored.get(task, []) for task in tasks]
    return [(sum(o.success == 1 for o in some), len(some)) for some in of_task]


def _mean(outcomes: Sequence[Outcome], what: str) -> float | None:
    """None where every one was lost."""
    scores = [getattr(o, what) for o in outcomes if not o.lost]
    return mean(scores) if scores else None


def _votes(folder: Path) -> dict[str, list[int]]:
    """Per capability: labelling runs that found it lacking by the thresholds, and all of them."""
    candidates = store.read_if_there(folder / "capabilities.json").get("candidates", ())
    return {c["name"]: [c["votes"], len(c["runs"])] for c in candidates}


@dataclass(frozen=True, slots=True)
class Gist:
    """What of a trajectory a list of episodes has; the rest is not built."""

    task: str
    score: Score | None = None


@dataclass(frozen=True, slots=True)
class Listed(Head):
    trajectory: Gist


@dataclass(frozen=True, slots=True)
class Episode:
    """A stored episode, whose conversation stays in its file until it is read: a long run's would
    not all fit into memory. `start`: the offset of its line, the `number`-th from 1."""

    line: Listed
    path: Path
    number: int
    start: int

    @property
    def task(self) -> str:
        return self.line.trajectory.task

    @property
    def score(self) -> Score | None:
        return self.line.trajectory.score

    def read(self) -> Stored:
        """Raises UserError for a line that is damaged or gone."""
        for _, _, text in store.whole_lines(self.path, self.number - 1, self.start):
            return store.parse_line(text, self.path, self.number, Stored)
        raise store.damaged(self.path, self.number, "it is gone")


def episodes_in(path: Path) -> Iterator[Episode]:
    """The episodes of a file of them. Raises UserError for a line that is none."""
    for number, start, text in store.whole_lines(path):
        yield Episode(store.parse_line(text, path, number, Listed), path, number, start)


def same_agents(folder: Path) -> dict[str, str]:
    """{agent: the one before it in evaluation.jsonl that has the same version, as the final one is
    the base agent when nothing was trained}; {} without one. Outcomes of such agents are copied,
    their conversations are kept once."""
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for line in store.read_lines(folder / "evaluation.jsonl", Outcome):
        earlier = first.setdefault(line.version, line.agent)
        if earlier != line.agent:
            same[line.agent] = earlier
    return same
