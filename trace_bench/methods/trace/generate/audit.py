"""What an accepted environment must still hold to when it is trained on, and after that. Nothing
here is charged, since no agent acts: what agents did is replayed, and floors are measured.

Replayed in another process and another order, an environment that counts its episodes, or keeps
anything else from one to the next, rewards them otherwise. Floors are what agents earn that cannot
have earned it: one that does nothing, one that only talks, one that calls tools at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import EpisodeError, SourceError
from trace_bench.core.protocols import Suite, make_env, perform, performed
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Score, Task, Trajectory
from trace_bench.methods.making import IDLE, opening, script
from trace_bench.policies.scripted import plausible


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
        with closing(make_env(suite)) as env:
            again = perform(env, episode.task, episode.actions)[-1].score or env.score()
        first = episode.score
        if (again.similarity, again.success) != (first.similarity, first.success):
            return (
                f"{episode.task.id} is rewarded otherwise in another process: the same messages of "
                f"the agent earned {first.similarity:g}, and now {again.similarity:g}. Nothing may "
                "be kept from one episode to the next."
            )
    return None


# -- floors -----------------------------------------------------------------------------------

IDLE_LIMIT = 0.2  # most that an agent which does nothing may earn in an environment on average
RANDOM_LIMIT = 0.3  # most that random calls of tools may
CALLS = 4  # random tool calls of the random agent, as in policies/scripted.py
WORDS = 8  # of the request, that the talking agent says
Script = Callable[[Suite, Task], tuple[Sequence[Message], Message]]
"""The first messages of an agent, and the one that it sends from then on."""


@dataclass(frozen=True)
class Floor:
    """One such agent. `episodes`: those that ended, of `tasks`; the others earned nothing."""

    agent: str
    limit: float
    tasks: int
    episodes: tuple[Episode, ...]

    @property
    def earned(self) -> float:
        return sum(e.score.similarity for e in self.episodes) / self.tasks


def measure(suite: Suite, tasks: Sequence[Task]) -> list[Floor]:
    """The floors on these tasks. EpisodeError when the environment fails."""
    agents: tuple[tuple[str, float, Script], ...] = (
        ("does nothing", IDLE_LIMIT, lambda suite, task: ((), IDLE)),
        ("only talks", IDLE_LIMIT, _talk),
        ("calls tools at random", RANDOM_LIMIT, partial(_random_calls, calls=CALLS)),
        ("calls one tool at random", RANDOM_LIMIT, partial(_random_calls, calls=1)),
    )
    floors = []
    for agent, limit, turns in agents:
        played = [_played(suite, task, *turns(suite, task)) for task in tasks]
        floors.append(Floor(agent, limit, len(tasks), tuple(filter(None, played))))
    return floors


def too_high(floors: Sequence[Floor]) -> list[str]:
    return [
        f"an agent that {f.agent} earns {f.earned:.2f} on average; allowed: {f.limit:g}."
        for f in floors
        if f.earned > f.limit
    ]


def _played(suite: Suite, task: Task, replies: Sequence[Message], then: Message) -> Episode | None:
    """None for an episode that never ends."""
    actions = tuple(script(replies, then))
    steps = performed(suite, task, actions)
    score = steps[-1].score
    return None if score is None else Episode(task, actions[: len(steps) - 1], score)


def _talk(suite: Suite, task: Task) -> tuple[Sequence[Message], Message]:
    """That it is done, or words of the request: a module may know one sentence, not all."""
    rng = random.Random(stable_seed("talking agent", task.id))
    words = opening(suite, task).split()
    if not words or rng.random() < 0.5:
        return (), text_message("That is done.")
    return (), text_message(" ".join(rng.sample(words, min(WORDS, len(words)))))


def _random_calls(suite: Suite, task: Task, calls: int) -> tuple[Sequence[Message], Message]:
    tools = performed(suite, task)[0].tools
    rng = random.Random(stable_seed("random agent", task.id))
    out: list[Message] = []
    for n in range(calls if tools else 0):
        function = rng.choice(tools)["function"]
        arguments = plausible(function.get("parameters") or {}, rng)
        out.append(call_message(function["name"], arguments, f"call_{n}"))
    return out, IDLE


# -- the audit --------------------------------------------------------------------------------

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


def before_training(accepted: Accepted, fresh: Suite) -> list[str]:
    """What is wrong before training. `fresh`: the module in a process that has run nothing."""
    if other := difference(fresh, accepted.calibration):
        return [other]
    earned = by_talk(accepted, accepted.calibration)
    if earned > IDLE_LIMIT:
        return [
            f"calls of tools are needed, and messages without any earned the agent {earned:.2f} on "
            f"average; allowed: {IDLE_LIMIT:g}."
        ]
    return too_high(measure(fresh, _sample(accepted)))


def after_training(
    accepted: Accepted, trained: Suite, fresh: Suite, heard: Sequence[Episode]
) -> str | None:
    """Why what was trained cannot be used; None when all is well. `trained`: the module in the
    processes that training used; `heard`: training's episodes, in order."""
    try:
        step = -(-len(heard) // SAMPLE) or 1
        if other := difference(fresh, [*heard[::step], *heard[-1:]]):
            return other
        for suite in (trained, fresh):
            if high := too_high(measure(suite, _sample(accepted))):
                return high[0]
    except (EpisodeError, SourceError) as error:
        return f"the module failed: {error}"
    return jump(accepted, heard)


def jump(accepted: Accepted, heard: Sequence[Episode]) -> str | None:
    """The reward of the second half of training against calibration's: it may not have risen, by
    more than what an idle agent may earn, in episodes without a call of a tool."""
    late = heard[len(heard) // 2 :]
    before, after = by_talk(accepted, accepted.calibration), by_talk(accepted, late)
    if after - before <= IDLE_LIMIT:
        return None
    return (
        f"the reward was {_mean(accepted.calibration):.2f} in calibration and {_mean(late):.2f} in "
        f"training, with {after - before:.2f} more of it from episodes without the calls of tools "
        f"that the tasks need; allowed: {IDLE_LIMIT:g}."
    )


def acting(suite: Suite, tasks: Sequence[Task]) -> frozenset[str]:
    if not suite.has(Suite.reference):
        return frozenset()
    return frozenset(
        task.id for task in tasks if any(m.get("tool_calls") for m in suite.reference(task))
    )


def by_talk(accepted: Accepted, episodes: Sequence[Episode]) -> float:
    """The mean reward earned without a call of a tool, over the tasks that need one."""
    needing = [e for e in episodes if e.task.id in accepted.acting]
    talk = [e for e in needing if not any(a.get("tool_calls") for a in e.actions)]
    return sum(e.score.similarity for e in talk) / max(len(needing), 1)


def _mean(episodes: Sequence[Episode]) -> float:
    return sum(e.score.similarity for e in episodes) / max(len(episodes), 1)


def _sample(accepted: Accepted) -> list[Task]:
    rng = random.Random(stable_seed("floors", accepted.name))
    return rng.sample(accepted.tasks, min(SAMPLE, len(accepted.tasks)))
