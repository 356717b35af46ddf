"""Dialogues from a suite's references, replayed in its environment, and from a finished run's own
successful rollouts; held-out episodes are never taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from trace_bench.checklists.items import Checklist, read_checklist, to_json
from trace_bench.checklists.sources import of_reference, rewarded_in, spread
from trace_bench.checklists.talk import UserTurn, turns_of
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    HasChecklist,
    HasReference,
    Suite,
    conversation,
    make_env,
    perform,
    performed,
)
from trace_bench.core.run_files import SUMMARY
from trace_bench.core.summary import Summary, read_summary
from trace_bench.core.types import Milestone, Task, Trajectory
from trace_bench.envs.recorded.data import Record
from trace_bench.record.folder import scenario_of
from trace_bench.results.formats.episodes import FinishedRun


def of_suite(suite: Suite, tasks: Sequence[Task]) -> Iterator[tuple[str, Record | None]]:
    """(uuid, the dialogue) of each task's reference; None for one that does not succeed."""
    if not isinstance(suite, HasReference):
        raise UserError(
            f"{suite.name}/{suite.variant} has no references to record. Change `env`, or record a "
            "finished run (`python -m trace_bench.record run FOLDER`)."
        )
    for task in tasks:
        yield task.id, _of_reference(suite, task)


def held_out(suite: Suite, splits: Sequence[str]) -> set[str]:
    """The scenarios of splits that no recording may share: what the user says as their references
    go."""
    found = set()
    for split in splits:
        for task in suite.tasks(split):
            actions = suite.reference(task) if isinstance(suite, HasReference) else ()
            found.add(scenario_of(conversation(performed(suite, task, actions), actions)))
    return found


def _of_reference(suite: HasReference, task: Task) -> Record | None:
    actions = suite.reference(task)
    with closing(make_env(suite)) as env:
        steps = perform(env, task, actions)
        score = steps[-1].score or env.score()
    if not score.success:
        return None
    messages = conversation(steps, actions)
    opening, turns = turns_of(messages)
    return {
        "uuid": task.id,
        "messages": messages,
        "tools": list(steps[0].tools),
        "checklists": to_json([_checklist(suite, task, len(opening), turns, score.milestones)]),
        "source": {"suite": f"{suite.name}/{suite.variant}", "task": task.id, "by": "reference"},
    }


def _checklist(
    suite: Suite, task: Task, first: int, turns: Sequence[UserTurn], met: Sequence[Milestone]
) -> Checklist:
    """The suite's own checklist, laid over the turns; without one, of what was rewarded."""
    if not isinstance(suite, HasChecklist):
        return by_milestones(turns, first, met)
    found = read_checklist([list(turn) for turn in suite.checklist(task)], f"task {task.id}")
    if len(found.turns) == len(turns):
        return found
    return spread([item for turn in found.turns for item in turn], turns)


def by_milestones(
    turns: Sequence[UserTurn], first: int, milestones: Sequence[Milestone]
) -> Checklist:
    """The checklist of a dialogue from a suite's milestones; of all its calls and replies if the
    suite does not say where they were met."""
    placed = any(m.place is not None for m in milestones)
    return of_reference(turns, rewarded_in(turns, first, milestones) if placed else None)


def summary_of(folder: Path) -> Summary:
    """The summary of a finished run on tasks that it does not report on. Raises UserError."""
    summary = read_summary(folder)
    if summary is None:
        raise UserError(f"{folder} is no finished run: it has no {SUMMARY}. Name another folder.")
    if summary.protocol != "held_out":
        raise UserError(
            f"{folder} trained on the tasks that it reports (protocol={summary.protocol}), "
            "and recordings may hold none of those. Name a run with protocol=held_out."
        )
    return summary


def of_run(folder: Path, summary: Summary) -> Iterator[tuple[str, Record | None]]:
    """(uuid, the dialogue) of each rollout that was spent; None for one without success, or with a
    call that could not be read."""
    for episode in FinishedRun(folder, summary).episodes():
        if episode.held_out or episode.purpose == "evaluation":
            continue
        identity = f"{summary.fingerprint}/{episode.group}/{episode.index:05d}"
        yield identity, _of_rollout(identity, summary.world, episode.trajectory)


def _of_rollout(identity: str, suite: str, t: Trajectory) -> Record | None:
    if t.failure is not None or t.score is None or not t.score.success:
        return None
    if any(turn.malformed for turn in t.turns):
        return None
    opening, turns = turns_of(t.messages)
    if not turns or not all(turn.steps for turn in turns):
        return None
    return {
        "uuid": identity,
        "messages": t.messages,
        "tools": list(t.tools),
        "checklists": to_json([by_milestones(turns, len(opening), t.score.milestones)]),
        "source": {"suite": suite, "task": t.task, "by": t.agent},
    }
