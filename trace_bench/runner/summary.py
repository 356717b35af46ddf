"""What a finished run says about itself: summary.json."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from trace_bench.core.store import file_hash, read_json
from trace_bench.core.types import AgentSpec, to_json
from trace_bench.runner import report
from trace_bench.runner.build import curve_caveat
from trace_bench.runner.evaluate import Outcome, Routing
from trace_bench.settings.schema import Settings

VERSIONS = (
    "inspect-evals",
    "inspect-ai",
    "trace-bench",
    "torch",
    "transformers",
    "peft",
    "numpy",
    "scipy",
    "hydra-core",
)
FLOORS = ("idle", "random", "reference")
ROW_NAMES = {"idle": "idle floor", "random": "random floor", "reference": "reference ceiling"}
HASHED = (
    "ledger.jsonl", "evaluation.jsonl", "curve.jsonl", "metrics.jsonl", "capabilities.json",
    "trajectories.jsonl", "evaluation_trajectories.jsonl",
)  # fmt: skip


def summarize(
    settings: Settings,
    folder: Path,
    *,
    agent: AgentSpec,
    outcomes: Mapping[str, Sequence[Outcome]],
    routed: Routing | None,
    validated: Routing | None,
    rollouts: Mapping[str, int],
    joint: Mapping[str, int] | None,
    curve: Sequence[Mapping[str, Any]],
    seconds: Mapping[str, float],
    mark: str,
    about: Mapping[str, Any],
    llm: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that the closing table and later comparisons need.

    `rollouts` counts episodes by purpose, `joint` those of the yardstick, `seconds` wall time by
    phase; `mark` is the fingerprint, `about` what the suite says of itself, `llm` what models were
    asked and how many tool calls could not be read.
    """
    final, base = outcomes["final"], outcomes["base"]
    return {
        "complete": True,
        "method": settings.method["name"],
        "env": settings.env.name,
        "suite": settings.env.suite,
        "suite_data": dict(about),
        "augmentation": settings.env.augmentation,
        "split": settings.evaluation.split,
        "train_split": settings.env.train_split,
        "dev_split": settings.env.dev_split,
        "protocol": settings.protocol,
        "accounting": settings.accounting,
        "policy": settings.policy.name,
        "model": settings.model.name,
        "experiment": settings.experiment,
        "seed": settings.seed,
        "budget": settings.budget,
        "rollouts": dict(rollouts),
        "joint_rollouts": None if joint is None else dict(joint),
        "score": report.score(final),
        "base_score": report.score(base),
        "difference": report.difference(final, base),
        "table": [to_json(row) for row in _rows(settings, outcomes, routed)],
        "routing": None if routed is None else _routing_figures(routed),
        "routing_dev": None if validated is None else _routing_figures(validated),
        "llm": dict(llm),
        "curve": list(curve),
        "curve_caveat": curve_caveat(settings),
        "capabilities": _capabilities(folder),
        "adapters": [adapter.name for adapter in agent.adapters],
        "wall_s": {name: round(seconds, 2) for name, seconds in seconds.items()},
        "versions": versions(),
        "git": git_state(),
        "fingerprint": mark,
        "hashes": {name: file_hash(folder / name) for name in HASHED},
    }


def _rows(
    settings: Settings, outcomes: Mapping[str, Sequence[Outcome]], routed: Routing | None
) -> list[report.Row]:
    """The closing table: base and method first, then what bounds them."""
    base = outcomes["base"]
    rows = [report.row("base", base, None)]
    if settings.method["name"] != "base":
        rows.append(report.row(settings.method["name"], outcomes["final"], base))
    if routed is not None:
        rows.append(report.row("oracle route", routed.oracle, base))
        rows.append(report.row(f"only {routed.single}", routed.single_outcomes, base))
    if "joint" in outcomes:
        rows.append(report.row("one joint adapter", outcomes["joint"], base))
    there = [name for name in FLOORS if name in outcomes]
    rows += [report.row(ROW_NAMES[name], outcomes[name], base) for name in there]
    return [row for row in rows if row is not None]


def _routing_figures(routed: Routing) -> dict[str, Any]:
    return {
        "agreement": routed.agreement,
        "decisive": routed.decisive,
        "agreement_decisive": routed.agreement_decisive,
        "single": routed.single,
        "oracle_score": report.score(routed.oracle),
        "single_score": report.score(routed.single_outcomes),
    }


def _capabilities(folder: Path) -> list[str]:
    """Names of the capabilities that the method selected, in its order; [] without an analysis."""
    path = folder / "capabilities.json"
    if not path.exists():
        return []
    return [c["name"] for c in read_json(path).get("candidates", ()) if c["selected"]]


def versions() -> dict[str, str | None]:
    """Versions of what computes the results; None for a package that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the checkout that the code comes from, and whether code or settings were changed
    since; None outside a checkout."""
    home = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(home), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", "__main__.py"):
            return None
        changed = git("status", "--porcelain", "--", ".", "../conf", "../pyproject.toml")
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None
