"""Weights & Biases as a tracker: curves, the closing table and the agent, offline by default.

It only listens: metrics.jsonl is written all the same, nothing that a run computes depends on it,
and when W&B fails the run goes on and says so once. A repeated run continues the W&B run of the
same id, the run's fingerprint, and logs only what is new.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.errors import UserError
from trace_bench.core.store import fingerprint
from trace_bench.trackers.jsonl import JsonlTracker


class WandbTracker:
    """Implements `trackers.Tracker`. `mode`: offline or online, as W&B calls them. Under a W&B
    agent the id is the agent's. Raises UserError when the package is not installed."""

    def __init__(
        self,
        lines: JsonlTracker,
        project: str,
        mode: Literal["offline", "online"],
        folder: Path,
        config: Mapping[str, Any],
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "tracker=wandb needs the package wandb: pip install '.[wandb]', or set "
                "`tracker` to jsonl."
            ) from error
        self._wandb, self._lines, self._folder = wandb, lines, folder
        self._run: Any = None
        own = os.environ.get("WANDB_RUN_ID") or fingerprint(config)
        self._try(lambda: self._start(project, mode, own, config))

    def _start(
        self,
        project: str,
        mode: Literal["offline", "online"],
        own: str,
        config: Mapping[str, Any],
    ) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=project,
            mode=mode,
            id=own,
            resume="allow" if mode == "online" else None,  # offline files are joined by their id
            dir=str(self._folder),
            config=dict(config),
            settings=self._wandb.Settings(silent=True, console="off"),
        )

    def log(self, values: Mapping[str, Any]) -> bool:
        new = self._lines.log(values)
        if new and self._run is not None:
            known = {k: v for k, v in values.items() if v is not None}
            self._try(lambda: self._run.log(known))
        return new

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """The scores, the closing table and the agent as an artifact."""
        if self._run is not None:
            self._try(lambda: self._conclude(summary))

    def _conclude(self, summary: Mapping[str, Any]) -> None:
        for group in ("score", "base_score"):
            for name in ("success", "similarity"):
                self._run.summary[f"{group}.{name}"] = summary[group][name]
        columns: list[str | int] = ["name", "success", "low", "high", "similarity", "n", "failures"]
        rows = [[row[c] for c in columns] for row in summary["table"]]
        logged = {"table": self._wandb.Table(columns=columns, data=rows)}
        if summary["curve"]:
            columns = ["checkpoint", "rollouts", "success", "similarity"]
            rows = [[point[c] for c in columns] for point in summary["curve"]]
            logged["curve"] = self._wandb.Table(columns=columns, data=rows)
        self._run.log(logged)
        agent = self._wandb.Artifact(f"agent-{summary['fingerprint']}", type="agent")
        agent.add_file(str(self._folder / "agent.json"))
        self._run.log_artifact(agent)

    def close(self) -> None:
        self._lines.close()
        if self._run is not None:
            self._try(self._run.finish)

    def _try(self, action: Callable[[], object]) -> None:
        """W&B's troubles are not the run's: they are said once, and it is left alone from then."""
        try:
            action()
        except Exception as error:
            self._run = None
            print(
                f"W&B failed ({type(error).__name__}: {error}); the run goes on, and its metrics "
                "are in metrics.jsonl",
                file=sys.stderr,
            )
