"""What an accepted environment must still hold to when it is trained on, and after that. Nothing
here is charged, since no agent acts: what agents did is replayed, and floors are measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trace_bench.core.errors import EpisodeError, SourceError
from trace_bench.core.protocols import HasReference, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.methods.trace.synthesis.generate import floors
from trace_bench.methods.trace.synthesis.generate.replay import Episode, difference

SAMPLE = 32  # training tasks of the floors, and episodes of training that are replayed


@dataclass(frozen=True)
class Accepted:
    """An environment that is trained on. `name`: of its suite; `calibration`: the episodes of the
    agent that is to be trained; `acting`: ids of the tasks whose reference calls tools."""

    capability: str
    name: str
    code: str
    tasks: tuple[Task, ...]
    calibration: tuple[Episode, ...]
    acting: frozenset[str]


def before_training(made: Accepted, fresh: Suite, settings: SynthesisSettings) -> list[str]:
    """What is wrong before training. `fresh`: the module in a process that has run nothing."""
    if other := difference(fresh, made.calibration):
        return [other]
    earned = by_talk(made, made.calibration)
    if earned > settings.idle_limit:
        return [
            f"calls of tools are needed, and messages without any earned the agent {earned:.2f} on "
            f"average; allowed: {settings.idle_limit:g}."
        ]
    return floors.too_high(floors.measure(fresh, _sample(made), settings))


def after_training(
    made: Accepted,
    trained: Suite,
    fresh: Suite,
    heard: Sequence[Episode],
    settings: SynthesisSettings,
) -> str | None:
    """Why what was trained cannot be used; None when all is well. `trained`: the module in the
    processes that training used; `heard`: training's episodes, in order."""
    try:
        step = -(-len(heard) // SAMPLE) or 1
        if other := difference(fresh, [*heard[::step], *heard[-1:]]):
            return other
        for suite in (trained, fresh):
            if high := floors.too_high(floors.measure(suite, _sample(made), settings)):
                return high[0]
    except (EpisodeError, SourceError) as error:
        return f"the module failed: {error}"
    return jump(made, heard, settings)


def jump(made: Accepted, heard: Sequence[Episode], settings: SynthesisSettings) -> str | None:
    """The reward of the second half of training against calibration's: it may not have risen, by
    more than what an idle agent may earn, in episodes without a call of a tool."""
    late = heard[len(heard) // 2 :]
    before, after = by_talk(made, made.calibration), by_talk(made, late)
    if after - before <= settings.idle_limit:
        return None
    return (
        f"the reward was {_mean(made.calibration):.2f} in calibration and {_mean(late):.2f} in "
        f"training, with {after - before:.2f} more of it from episodes without the calls of tools "
        f"that the tasks need; allowed: {settings.idle_limit:g}."
    )


def acting(suite: Suite, tasks: Sequence[Task]) -> frozenset[str]:
    """The ids of the tasks whose reference calls tools."""
    if not isinstance(suite, HasReference):
        return frozenset()
    return frozenset(
        task.id for task in tasks if any(m.get("tool_calls") for m in suite.reference(task))
    )


def by_talk(made: Accepted, episodes: Sequence[Episode]) -> float:
    """The part of the mean reward that was earned without a call of a tool, over the tasks that
    need one."""
    needing = [e for e in episodes if e.task.id in made.acting]
    talk = [e for e in needing if not any(a.get("tool_calls") for a in e.actions)]
    return sum(e.score.similarity for e in talk) / max(len(needing), 1)


def _mean(episodes: Sequence[Episode]) -> float:
    return sum(e.score.similarity for e in episodes) / max(len(episodes), 1)


def _sample(made: Accepted) -> list[Task]:
    rng = random.Random(stable_seed("floors", made.name))
    return rng.sample(made.tasks, min(SAMPLE, len(made.tasks)))
