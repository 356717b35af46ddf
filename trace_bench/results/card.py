"""A run folder as a publication bundle in the sense of Rollout Cards (arXiv 2605.12131): the
rollout record, the views that figures are made from, the reporting rules, and a manifest of drops.

    card.json     what the run was, every file with its hash, every view under every rule
    drops.jsonl   one line an episode that the infrastructure lost: where, whose, why
    record/       the run folder's own files, as they are
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core import store
from trace_bench.core.errors import UserError
from trace_bench.core.types import Entry, Outcome, to_json
from trace_bench.results.records import DAMAGE
from trace_bench.results.rules import DEFAULT, RULES, counted, drops
from trace_bench.results.runs import finished, read_run
from trace_bench.results.statistics import mean, task_means

FORMAT = 1
STANDARD = "Rollout Cards, arXiv 2605.12131"
# The record: every rollout, every attempt at a held-out task, and what the method concluded.
FILES = (
    "config.yaml", "summary.json", "ledger.jsonl", "trajectories.jsonl", "evaluation.jsonl",
    "evaluation_trajectories.jsonl", "curve.jsonl", "metrics.jsonl", "capabilities.json",
    "agent.json", "tasks.json",
)  # fmt: skip
SUMMARY_KEYS = (
    "method", "env", "suite", "split", "train_split", "protocol", "accounting", "budget", "seed",
    "rollouts", "adapters", "versions", "git", "fingerprint",
)  # fmt: skip


def export(folder: Path, out: Path) -> list[Path]:
    """Writes the bundle of a finished run. Raises UserError as `bundle` does."""
    with bundle(folder, out) as (building, kept):
        (building / "record").mkdir()
        _fill(building, folder, kept)
    return sorted(p for p in out.rglob("*") if p.is_file())


@contextmanager
def bundle(folder: Path, out: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder to write a finished run in, which gets the name `out` when all is in it, and the
    names of the run's files. UserError for a run that is unfinished, edited or damaged."""
    try:
        kept = _checked(folder)
        with store.whole(out) as building:
            building.mkdir()
            yield building, kept
    except DAMAGE as error:
        raise UserError(
            f"{store.shown(folder)}: damaged ({type(error).__name__}: {str(error)[:200]})"
        ) from error


def _checked(folder: Path) -> list[str]:
    """The names of the run's files, which are those that its summary was made from."""
    read_run(folder)  # finished, unedited, and within its budget
    kept = [name for name in FILES if (folder / name).exists()]
    for name in kept:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder}: {name} is a link to a place outside of the folder")
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is no plain file")
    for name, digest in finished(folder).hashes.items():
        if (store.file_hash(folder / name) if name in kept else None) != digest:
            shown = store.shown(Path(name))
            raise UserError(f"{folder}: {shown} is not the file that the summary was made from")
    return kept


def _fill(building: Path, folder: Path, kept: list[str]) -> None:
    for name in kept:
        shutil.copyfile(folder / name, building / "record" / name)
    lines = store.read_lines(folder / "evaluation.jsonl", Outcome)
    store.write_text(
        building / "drops.jsonl",
        "".join(json.dumps(d, sort_keys=True) + "\n" for d in _dropped(folder, lines)),
    )
    store.write_json(building / "card.json", _card(building, kept, lines))


def _card(building: Path, kept: list[str], lines: list[Outcome]) -> dict[str, Any]:
    summary = to_json(finished(building / "record"))
    agents = dict.fromkeys(line.agent for line in lines)
    hashes = {f"record/{name}": store.file_hash(building / "record" / name) for name in kept}
    return {
        "format": FORMAT,
        "standard": STANDARD,
        "run": {key: summary[key] for key in SUMMARY_KEYS},
        "record": {name: {"sha256": digest} for name, digest in hashes.items()},
        "drops_manifest": {"drops.jsonl": {"sha256": store.file_hash(building / "drops.jsonl")}},
        "reporting_rules": {"default": DEFAULT, "rules": RULES},
        "views": [
            _view(agent, [line for line in lines if line.agent == agent]) for agent in agents
        ],
    }


def _view(agent: str, lines: list[Outcome]) -> dict[str, Any]:
    """One agent's held-out success: which lines, and what each rule makes of them."""
    return {
        "name": f"held-out success of {agent}",
        "file": "record/evaluation.jsonl",
        "where": {"agent": agent},
        "aggregate": "mean over trials, then over tasks",
        "by_rule": {
            rule: {**_scores(counted(lines, rule)), "drops": drops(lines, rule)} for rule in RULES
        },
    }


def _scores(lines: list[Outcome]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for what in ("success", "similarity"):
        scored = [(o.task, getattr(o, what)) for o in lines if not o.lost]
        out[what] = mean([*task_means(scored).values()]) if scored else None
    return out


def _dropped(folder: Path, lines: list[Outcome]) -> Iterator[dict[str, Any]]:
    """Every episode or attempt without a score."""
    for line in lines:
        if line.error:
            keys = ("agent", "task", "trial", "attempt", "error")
            yield {"file": "record/evaluation.jsonl", **{k: getattr(line, k) for k in keys}}
    for entry in store.read_lines(folder / "ledger.jsonl", Entry):
        if entry.error:
            keys = ("call", "index", "purpose", "task", "error")
            yield {"file": "record/ledger.jsonl", **{k: getattr(entry, k) for k in keys}}
