"""Trackers: what receives a run's metrics. They are written to metrics.jsonl in the run folder and
passed to the chosen tracker.

A resumed run repeats its finished steps from disk and logs them again; a line that exists already
is neither written nor passed on. Values that depend on the clock are ignored in that comparison.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.errors import UserError, attempt
from trace_bench.core.protocols import RunContext, Tracker
from trace_bench.core.store import Lines, canonical
from trace_bench.core.text import described

CLOCK_WORDS = ("wall", "second", "seconds", "_s", "time")
"""A metric whose name ends in one of these depends on the machine's speed."""

MOST_SAID = 300
"""Characters of a tracker's error that are kept."""


class Silent(Tracker):
    """`tracker=jsonl`: lines of metrics.jsonl in the run folder; nothing leaves the machine."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Nothing."""


class Metrics(Tracker):
    """metrics.jsonl, one line per call of `log`; new lines also go to `tracker`. A failure of the
    tracker does not stop the run: it is logged once and kept in `failure`, and the tracker is not
    called again."""

    def __init__(self, path: Path, tracker: Tracker, log: Callable[[str], None]) -> None:
        self._lines = Lines(path, dict)
        self._there = Counter(_key(line) for line in self._lines)
        self._tracker: Tracker | None = tracker
        self._log = log
        self.failure: str | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        key = _key(values)
        if self._there[key] > 0:
            self._there[key] -= 1
            return
        self._lines.append(dict(values))
        self._forward(lambda tracker: tracker.log(values))

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """The run is finished."""
        self._forward(lambda tracker: tracker.conclude(summary))

    def close(self) -> None:
        self._lines.close()
        self._forward(lambda tracker: tracker.close())
        self._tracker = None

    def _forward(self, action: Callable[[Tracker], None]) -> None:
        if (tracker := self._tracker) is None:
            return
        error = attempt(lambda: action(tracker))
        if isinstance(error, BaseException):
            why = " ".join(described(error).split())[:MOST_SAID]
            self.failure = f"{type(tracker).__name__}, {why}"
            self._tracker = None
            self._log(
                f"the tracker failed ({self.failure}); the run goes on, and its metrics are in "
                "metrics.jsonl"
            )


def _key(values: Mapping[str, Any]) -> str:
    """The key by which two lines count as equal."""
    return canonical({k: _finite(v) for k, v in values.items() if not k.endswith(CLOCK_WORDS)})


def _finite(value: Any) -> Any:
    """The value, with NaN and infinities as strings: the writer refuses them by their key."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class WandbTracker(Tracker):
    """Weights & Biases besides metrics.jsonl, with the closing table and the agent at the end;
    needs pip install '.[wandb]'. Offline it needs no key. A repeated run continues the W&B run of
    the same id, the run's fingerprint or under a W&B agent the agent's, and logs only what is new.

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
