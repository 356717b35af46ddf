"""Dialogues from a finished run's own successful rollouts; held-out episodes are never taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import item_to_json
from trace_bench.checklists.talk import turns_of
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import SUMMARY
from trace_bench.core.store import read_object
from trace_bench.core.types import Trajectory
from trace_bench.envs.recorded.data import Record
from trace_bench.record.references import by_milestones
from trace_bench.results.formats.episodes import Source


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of a finished run on tasks that it does not report on. Raises UserError."""
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder} is no finished run: it has no {SUMMARY}. Name another folder.")
    summary = read_object(folder / SUMMARY)
    if summary.get("protocol") != "held_out":
        raise UserError(
            f"{folder} trained on the tasks that it reports (protocol={summary.get('protocol')}), "
            "and recordings may hold none of those. Name a run with protocol=held_out."
        )
    return summary


def dialogues(folder: Path) -> Iterator[tuple[str, Record | None]]:
    """(uuid, the dialogue) of each rollout that was spent; None for one without success, or with a
    call that could not be read."""
    summary = summary_of(folder)
    suite = "/".join(filter(None, (str(summary["env"]), str(summary["suite"]))))
    for episode in Source(folder, summary).episodes():
        if episode.held_out or episode.purpose == "evaluation":
            continue
        identity = f"{summary['fingerprint']}/{episode.group}/{episode.index:05d}"
        yield identity, _dialogue(identity, suite, episode.trajectory)


def _dialogue(identity: str, suite: str, t: Trajectory) -> Record | None:
    lost = t.failure is not None or t.score is None
    if lost or not t.score.success or any(turn.malformed for turn in t.turns):  # type: ignore[union-attr]
        return None
    opening, turns = turns_of(t.messages)
    if not turns or not all(turn.steps for turn in turns):
        return None
    milestones = () if t.score is None else t.score.milestones
    made = by_milestones(turns, len(opening), milestones)
    return {
        "uuid": identity,
        "messages": t.messages,
        "tools": list(t.tools),
        "checklists": [[[item_to_json(item) for item in items] for items in made.turns]],
        "source": {"suite": suite, "task": t.task, "by": t.agent},
    }
