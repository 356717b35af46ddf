"""Weights & Biases as a tracker, offline by default: curves, the closing table, the agent, the
held-out episodes as a table and the report.

A repeated run continues the W&B run of the same id, the run's fingerprint, and logs only what is
new. Under a W&B agent the id is the agent's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, Tracker


class WandbTracker(Tracker):
    """Weights & Biases besides metrics.jsonl, with held-out episodes and report at the end; needs
    pip install '.[wandb]'. Offline it needs no key.

    `project`: the project's name there. `mode`: offline or online.

    Raises UserError if the package is not installed, or if there is no key for `online`."""

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
        if mode == "online" and not _has_key(wandb):
            raise UserError(
                "tracker.mode=online needs a key of W&B, and there is none: set the environment "
                "variable WANDB_API_KEY, run `wandb login`, or set `tracker.mode` to offline."
            )
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

    @classmethod
    def awaits_result(cls) -> bool:
        """A W&B agent waits for the score of each run that it starts."""
        return "WANDB_RUN_ID" in os.environ

    def log(self, values: Mapping[str, Any]) -> None:
        self._run.log({k: v for k, v in values.items() if v is not None})

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """The scores, the closing table and the agent as an artifact."""
        run = self._run
        for group in ("score", "base_score"):
            for name in ("success", "similarity"):
                run.summary[f"{group}.{name}"] = summary[group][name]
        names = ["name", "success", "low", "high", "similarity", "n", "failures"]
        logged = {"table": self._table(names, summary["table"])}
        if curve := summary["curve"]:
            names = ["checkpoint", "rollouts", "success", "similarity"]
            logged["curve"] = self._table(names, curve)
        run.log(logged)
        self._add("agent", self._context.folder / "agent.json")

    def report(self, episodes: Sequence[Mapping[str, Any]], page: Path) -> None:
        """The table `episodes` and the artifact `report-...`. What exceeds
        the rows of a W&B table is left out, and counted in the summary."""
        most = self._wandb.Table.MAX_ROWS
        self._run.log({"episodes": self._table(list(episodes[0]), episodes[:most])})
        self._run.summary["episodes_left_out"] = max(0, len(episodes) - most)
        self._add("report", page)

    def _table(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Any:
        columns: list[str | int] = [*names]
        return self._wandb.Table(columns=columns, data=[[row[n] for n in names] for row in rows])

    def _add(self, kind: str, file: Path) -> None:
        artifact = self._wandb.Artifact(f"{kind}-{self._context.fingerprint}", type=kind)
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        if "_run" in vars(self):
            self._run.finish()


def _has_key(wandb: Any) -> bool:
    """Whether W&B finds a key or token. A server that does not answer is no reason to refuse: the
    run goes on without it, and says so."""
    try:
        return bool(wandb.login(prompt=False))
    except wandb.errors.Error:
        return True
