"""Hints (TRACE, section 2; `trainer.hinted`): some rollouts of a group run with a line in the
system message that names the tools of the task's reference, so that a group in which the agent
alone would always fail has episodes that succeed.

What is trained on is the conversation without the line, as published: the tokens that were sampled,
after the prompt that the group's other rollouts had. The old policy's log-probabilities are the
trainer's own for that conversation (`update`), so that the ratio of the loss is 1 before the first
step. The sampling was by the policy with the hint, which no ratio corrects: that is the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HasReference, Lab, Suite
from trace_bench.core.types import Task, Trajectory
from trace_bench.trainers.settings import Recipe
from trace_bench.trainers.tree import Tokens, sequence_of


def hint(suite: Suite, task: Task) -> str:
    """The tools that the task needs, in words. Raises UserError for a suite without references."""
    if not isinstance(suite, HasReference):
        raise UserError(
            f"trainer.hinted names the tools of a task's reference, and {suite.name}/"
            f"{suite.variant} has none. Set `trainer.hinted` to 0, or change `env`."
        )
    calls = [call for m in suite.reference(task) for call in m.get("tool_calls") or ()]
    names = dict.fromkeys(call["function"]["name"] for call in calls)
    return f"Call {', then '.join(names)}." if names else "Call no tool."


def hints(lab: Lab, tasks: Sequence[Task], settings: Recipe) -> list[str] | None:
    """The hint of each episode of an iteration, "" for those without; None if there are none."""
    if not settings.hinted:
        return None
    found = {task.id: hint(lab.suite_of(task), task) for task in tasks[:: settings.group_size]}
    return [found[task.id] if is_hinted(n, settings) else "" for n, task in enumerate(tasks)]


def is_hinted(place: int, settings: Recipe) -> bool:
    """Whether the episode at this place of an iteration has a hint: the first of each group do."""
    return place % settings.group_size < settings.hinted


def sequences(trajectories: Sequence[Trajectory], settings: Recipe) -> list[Tokens]:
    """The tokens to train on, groups adjacent; those of hinted rollouts without the hint. Where no
    rollout of the group tells what the prompt is without it, they have no sampled tokens and are
    not trained on."""
    size = settings.group_size
    out: list[Tokens] = []
    for place, trajectory in enumerate(trajectories):
        if not is_hinted(place, settings):
            out.append(sequence_of(trajectory))
            continue
        first = place - place % size
        others = trajectories[first + settings.hinted : first + size]
        prompt = next((t.turns[0].prompt_ids for t in others if t.turns), ())
        turns = trajectory.turns if prompt else ()
        plain = tuple(replace(t, prompt_ids=prompt) if not n else t for n, t in enumerate(turns))
        out.append(sequence_of(replace(trajectory, turns=plain)))
    return out
