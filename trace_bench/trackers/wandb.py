"""Weights & Biases as a tracker, offline by default: curves, the closing table and the agent.

A repeated run continues the W&B run of the same id, the run's fingerprint, and logs only what is
new. Under a W&B agent the id is the agent's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, Tracker


class WandbTracker(Tracker):
    """Weights & Biases besides metrics.jsonl, with the closing table and the agent at the end;
    needs pip install '.[wandb]'. Offline it needs no key.

    `project`: the project's name there. `mode`: offline or online.

    Raises UserError if the package is not installed."""

    def __init__(
        self,
        run: RunContext,
        project: str = "trace_bench",
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "tracker=wandb needs the package wandb: pip install '.[wandb]', or set "
                "`tracker` to jsonl."
            ) from error
        self._wandb, self._context = wandb, run
        self._project, self._mode = project, mode

    @cached_property
    def _run(self) -> Any:
        """The W&B run, created at the first log."""
        self._context.folder.mkdir(parents=True, exist_ok=True)
        return self._wandb.init(
            project=self._project,
            mode=self._mode,
            id=os.environ.get("WANDB_RUN_ID") or self._context.fingerprint,
            # Offline files are joined by their id.
            resume="allow" if self._mode == "online" else None,
            dir=str(self._context.folder),
            config=dict(self._context.identity),
            settings=self._wandb.Settings(silent=True, console="off"),
        )

    def log(self, values: Mapping[str, Any]) -> None:
        self._run.log({k: v for k, v in values.items() if v is not None})

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """The scores, the closing table and the agent as an artifact."""
        run = self._run
        for group in ("score", "base_score"):
            for name in ("success", "similarity"):
                run.summary[f"{group}.{name}"] = summary[group][name]
        columns: dict[str, list[str | int]] = {
            "table": ["name", "success", "low", "high", "similarity", "n", "failures"],
            "curve": ["checkpoint", "rollouts", "success", "similarity"],
        }
        for key, names in columns.items():
            if rows := [[row[n] for n in names] for row in summary[key]]:
                run.log({key: self._wandb.Table(columns=names, data=rows)})
        artifact = self._wandb.Artifact(f"agent-{self._context.fingerprint}", type="agent")
        artifact.add_file(str(self._context.folder / "agent.json"))
        run.log_artifact(artifact)

    def close(self) -> None:
        if "_run" in vars(self):
            self._run.finish()
