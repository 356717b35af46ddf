"""What agents earn in a written environment that cannot have earned it: one that does nothing, one
that only talks, one that calls tools at random. They are no rollouts: no agent acts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trace_bench.core.protocols import Suite, make_env
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Task
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.methods.trace.synthesis.draw import IDLE, MAX_STEPS, first_step, opening
from trace_bench.methods.trace.synthesis.generate.replay import Episode
from trace_bench.policies.scripted import call_message, plausible, text_message

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
        """On average over the tasks."""
        return sum(e.score.similarity for e in self.episodes) / self.tasks


def measure(suite: Suite, tasks: Sequence[Task], settings: SynthesisSettings) -> list[Floor]:
    """The floors on these tasks. EpisodeError when the environment fails."""
    agents: tuple[tuple[str, float, Script], ...] = (
        ("does nothing", settings.idle_limit, lambda suite, task: ((), IDLE)),
        ("only talks", settings.idle_limit, _talk),
        ("calls tools at random", settings.random_limit, _random_calls),
    )
    floors = []
    for agent, limit, script in agents:
        played = [_played(suite, task, *script(suite, task)) for task in tasks]
        ended = tuple(e for e in played if e is not None)
        floors.append(Floor(agent, limit, len(tasks), ended))
    return floors


def too_high(floors: Sequence[Floor]) -> list[str]:
    """The floors above their limits, in words."""
    return [
        f"an agent that {f.agent} earns {f.earned:.2f} on average; allowed: {f.limit:g}."
        for f in floors
        if f.earned > f.limit
    ]


def _played(suite: Suite, task: Task, replies: Sequence[Message], then: Message) -> Episode | None:
    """None for an episode that never ends."""
    actions: list[Message] = []
    env = make_env(suite)
    try:
        step = env.reset(task)
        while not step.done and len(actions) < MAX_STEPS:
            actions.append(replies[len(actions)] if len(actions) < len(replies) else then)
            step = env.step(actions[-1])
    finally:
        env.close()
    return None if step.score is None else Episode(task, tuple(actions), step.score)


def _talk(suite: Suite, task: Task) -> tuple[Sequence[Message], Message]:
    """That it is done, or words of the request: a module may know one sentence, not all."""
    rng = random.Random(stable_seed("talking agent", task.id))
    words = opening(suite, task)[0].split()
    if not words or rng.random() < 0.5:
        return (), text_message("That is done.")
    return (), text_message(" ".join(rng.sample(words, min(WORDS, len(words)))))


def _random_calls(suite: Suite, task: Task) -> tuple[Sequence[Message], Message]:
    tools = first_step(suite, task).tools
    rng = random.Random(stable_seed("random agent", task.id))
    out: list[Message] = []
    for n in range(CALLS if tools else 0):
        function = rng.choice(tools)["function"]
        arguments = plausible(function.get("parameters") or {}, rng)
        out.append(call_message(function["name"], arguments, f"call_{n}"))
    return out, IDLE
