"""Finished episodes that are replayed, in another process and another order: an environment
that counts its episodes, or keeps anything else from one to the next, then rewards them otherwise.
No agent acts, so nothing is charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trace_bench.core.protocols import Suite, make_env
from trace_bench.core.types import Message, Score, Task, Trajectory


@dataclass(frozen=True)
class Episode:
    """What an agent did in a task (its messages, in order), and what it earned."""

    task: Task
    actions: tuple[Message, ...]
    score: Score


def of_rollouts(tasks: Sequence[Task], played: Sequence[Trajectory]) -> list[Episode]:
    """The rollouts of these tasks, without those that the infrastructure lost."""
    return [
        # A malformed call never reaches the environment.
        Episode(task, tuple(turn.reply for turn in t.turns if turn.malformed is None), t.score)
        for task, t in zip(tasks, played, strict=True)
        if t.score is not None and t.failure is None
    ]


def difference(suite: Suite, episodes: Sequence[Episode]) -> str | None:
    """The first episode, from the last one back, that earns something else in `suite`, in words;
    None when all earn the same. EpisodeError when the environment fails."""
    for episode in reversed(episodes):
        again, first = _earned(suite, episode), episode.score
        if (again.similarity, again.success) != (first.similarity, first.success):
            return (
                f"{episode.task.id} is rewarded otherwise in another process: the same messages of "
                f"the agent earned {first.similarity:g}, and now {again.similarity:g}. Nothing may "
                "be kept from one episode to the next."
            )
    return None


def _earned(suite: Suite, episode: Episode) -> Score:
    env = make_env(suite)
    try:
        step = env.reset(episode.task)
        for action in episode.actions:
            if step.done:
                break
            step = env.step(action)
        if step.done and step.score is not None:
            return step.score
        return env.score()
    finally:
        env.close()
