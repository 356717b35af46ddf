"""A run folder as a publication bundle in the sense of Rollout Cards (arXiv 2605.12131): the
rollout record, the views that figures are made from, the reporting rules, and a manifest of drops.

    card.json     what the run was, every file with its hash, every view under every rule
    drops.jsonl   one line an episode that the infrastructure lost: where, whose, why
    record/       the run folder's own files, as they are
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.store import file_hash, read_lines, write_json, write_text
from trace_bench.core.types import Entry, Outcome, grouped, to_json
from trace_bench.results.formats.episodes import FinishedRun
from trace_bench.results.records import DEFAULT, RULES
from trace_bench.results.runs import counted, drops
from trace_bench.results.statistics import mean, task_means

FORMAT = 1
STANDARD = "Rollout Cards, arXiv 2605.12131"
SUMMARY_KEYS = (
    "method", "env", "suite", "split", "train_split", "protocol", "accounting", "budget", "seed",
    "rollouts", "adapters", "versions", "git", "fingerprint",
)  # fmt: skip


def write(source: FinishedRun, out: Path) -> None:
    (out / "record").mkdir()
    for name in source.files:
        shutil.copyfile(source.folder / name, out / "record" / name)
    hashes = {f"record/{name}": file_hash(out / "record" / name) for name in source.files}
    lines, summary = source.outcomes(), to_json(source.summary)
    dropped = (json.dumps(d, sort_keys=True) + "\n" for d in _dropped(source.folder, lines))
    write_text(out / "drops.jsonl", "".join(dropped))
    card = {
        "format": FORMAT,
        "standard": STANDARD,
        "run": {key: summary[key] for key in SUMMARY_KEYS},
        "record": {name: {"sha256": digest} for name, digest in hashes.items()},
        "drops_manifest": {"drops.jsonl": {"sha256": file_hash(out / "drops.jsonl")}},
        "reporting_rules": {"default": DEFAULT, "rules": RULES},
        "views": [_view(agent, own) for agent, own in grouped(lines, lambda o: o.agent).items()],
    }
    write_json(out / "card.json", card)


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


def _dropped(folder: Path, lines: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Every episode or attempt without a score."""
    entries = read_lines(folder / "ledger.jsonl", Entry)
    own: Mapping[str, tuple[Sequence[Outcome | Entry], Sequence[str]]] = {
        "evaluation.jsonl": (lines, ("agent", "task", "trial", "attempt", "error")),
        "ledger.jsonl": (entries, ("call", "index", "purpose", "task", "error")),
    }
    for name, (some, keys) in own.items():
        for line in some:
            if line.error:
                yield {"file": f"record/{name}", **{k: getattr(line, k) for k in keys}}
