"""Completes a batch of episodes of which some are already on disk.

An episode's floating-point rounding may depend on the other episodes in its batch. So a batch that
is partly on disk is run again as a whole, and only the missing episodes are reported. If the policy
or the simulated user is not repeatable, only the missing episodes are run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trace_bench.core.protocols import OnEpisode, Policy, RoutesTurns
from trace_bench.core.types import AgentSpec, Task, Trajectory
from trace_bench.play.faults import Faults
from trace_bench.play.rollouts import Choice, play
from trace_bench.play.routes import routes
from trace_bench.play.suites import Suites, asks_user
from trace_bench.policies.routing.router import make_router


@dataclass(frozen=True)
class Batch:
    """The arguments of one `rollouts.play` call: one episode per entry of `tasks`."""

    agent: AgentSpec
    tasks: tuple[Task, ...]
    seeds: tuple[int, ...]
    temperature: float = 1.0
    route: tuple[str | None, ...] | None = None
    hints: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.tasks)

    def only(self, which: Sequence[int]) -> Batch:
        """The batch with only the episodes at these indices."""
        return replace(
            self,
            tasks=tuple(self.tasks[i] for i in which),
            seeds=tuple(self.seeds[i] for i in which),
            route=None if self.route is None else tuple(self.route[i] for i in which),
            hints=None if self.hints is None else tuple(self.hints[i] for i in which),
        )


@dataclass(frozen=True)
class Player:
    """Runs batches of episodes. `max_turns`: turns of the agent per episode; `max_tokens`: tokens
    per turn; `faults`: keeps tracebacks of what ends episodes."""

    policy: Policy
    suites: Suites
    max_turns: int = 20
    max_tokens: int = 96
    faults: Faults | None = None

    @property
    def repeats(self) -> bool:
        """Whether running the same batch again gives the same episodes."""
        return self.policy.repeatable and not any(map(asks_user, self.suites))

    def play(self, batch: Batch, on_episode: OnEpisode | None = None) -> list[Trajectory]:
        return play(
            self.policy,
            self.suites,
            batch.agent,
            batch.tasks,
            batch.seeds,
            temperature=batch.temperature,
            route=batch.route,
            hints=batch.hints,
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            on_episode=on_episode,
            faults=self.faults,
        )

    def play_missing(self, batch: Batch, there: Collection[int], on_episode: OnEpisode) -> None:
        """Completes a batch of which the indices `there` are on disk; `on_episode` is called for
        the missing episodes only."""
        which = [i for i in range(len(batch)) if i not in there]
        if not which:
            return
        missing = set(which)
        if self.repeats:
            which = list(range(len(batch)))

        def ended(place: int, trajectory: Trajectory) -> None:
            if which[place] in missing:
                on_episode(which[place], trajectory)

        self.play(batch.only(which), ended)

    def choices(self, agent: AgentSpec, tasks: Sequence[Task]) -> list[Choice | Exception] | None:
        """The router's choice for each task, or an exception if the task cannot be reset. None if
        the router or the suite waits for a model, or the router chooses at every turn: then the
        choice is only known in an episode."""
        router = make_router(agent, self.policy)
        if agent.router is None:
            return [router.route((), ())] * len(tasks)
        if router.waits or isinstance(router, RoutesTurns) or any(map(asks_user, self.suites)):
            return None
        return routes(router, self.suites, agent, tasks, self.policy.capacity)


class Episodes:
    """Complete calls that were run in this process, for another lab that makes the same calls.

    Only calls of agents without adapters are kept: those are what two trainings that start from the
    same agent have in common."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Batch, Mapping[int, Trajectory]]] = {}

    def keep(self, call: str, batch: Batch, played: Mapping[int, Trajectory]) -> None:
        """`played`: in the order in which the episodes ended."""
        if not batch.agent.adapters:
            self._calls[call] = (batch, dict(played))

    def find(self, call: str, batch: Batch) -> Mapping[int, Trajectory] | None:
        """The episodes of the call with that name, if its batch was the same."""
        kept, played = self._calls.get(call, (None, None))
        return played if kept == batch else None
