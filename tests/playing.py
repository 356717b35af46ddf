"""Plays a few episodes in one call, with a player of their own, and a policy that is a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trace_bench.core.protocols import OnEpisode, Policy, Suite, TurnRequest
from trace_bench.core.types import AgentSpec, Message, Task, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import ScriptedPolicy


def play(
    policy: Policy,
    suite: Suite | Suites,
    agent: AgentSpec,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    *,
    temperature: float = 1.0,
    route: Sequence[str | None] | None = None,
    on_episode: OnEpisode | None = None,
    **limits: Any,
) -> list[Trajectory]:
    """One episode per entry of `tasks`. `limits`: as of a `Player`."""
    suites = suite if isinstance(suite, Suites) else Suites(suite)
    way = None if route is None else tuple(route)
    batch = EpisodeBatch(agent, tuple(tasks), tuple(seeds), temperature, way)
    return Player(policy, suites, **limits).play(batch, on_episode)


class FunctionPolicy(ScriptedPolicy):
    """Answers with the result of a function of the request."""

    def __init__(self, function: Callable[[TurnRequest], Message]) -> None:
        super().__init__()
        self._function = function

    def reply(self, request: TurnRequest) -> Message:
        return self._function(request)
