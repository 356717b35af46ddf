"""What is known before a batch is played: episodes on disk, calls of another lab, the router's
choices.

An episode's rounding may depend on the others in its batch. So a batch that is partly on disk is
run again as a whole, and only the missing episodes are reported; or these alone are run, if the
policy or the simulated user is not repeatable."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trace_bench.core.protocols import OnEpisode, Prompt, Router, RoutesTurns
from trace_bench.core.types import AgentSpec, Task, Trajectory, grouped
from trace_bench.play.rollouts import Choice, EpisodeBatch, Player
from trace_bench.play.steps import close, make, step_all, with_guidance
from trace_bench.play.suites import Suites
from trace_bench.policies.routing.router import make_router


def play_missing(
    player: Player, batch: EpisodeBatch, there: Collection[int], on_episode: OnEpisode
) -> None:
    """Completes a batch of which `there` is on disk; `on_episode` is called for the rest."""
    which = [i for i in range(len(batch)) if i not in there]
    if not which:
        return
    missing = set(which)
    if player.repeats:
        which = list(range(len(batch)))

    def ended(place: int, trajectory: Trajectory) -> None:
        if which[place] in missing:
            on_episode(which[place], trajectory)

    player.play(batch.only(which), ended)


def choices(
    player: Player, agent: AgentSpec, tasks: Sequence[Task]
) -> list[Choice | BaseException] | None:
    """The router's choice for each task, or an exception if the task cannot be reset. None if it is
    only known in an episode, as a model is waited for or each turn has a choice of its own."""
    router = make_router(agent, player.policy)
    if agent.router is None:
        return [router.route((), ())] * len(tasks)
    if (
        router.waits
        or isinstance(router, RoutesTurns)
        or any(suite.asks_user() for suite in player.suites)
    ):
        return None
    found: list[Choice | BaseException] = []
    for first in range(0, len(tasks), player.policy.capacity):
        some = tasks[first : first + player.policy.capacity]
        found += _some(router, player.suites, agent, some)
    return found


class KnownCalls:
    """Complete calls that were run in this process, for another lab that makes the same calls, of
    agents without adapters: what two trainings from the same agent have in common."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[EpisodeBatch, Mapping[int, Trajectory]]] = {}

    def keep(self, call: str, batch: EpisodeBatch, played: Mapping[int, Trajectory]) -> None:
        """`played`: in the order in which the episodes ended."""
        if not batch.agent.adapters:
            self._calls[call] = (batch, dict(played))

    def find(self, call: str, batch: EpisodeBatch) -> Mapping[int, Trajectory] | None:
        kept, played = self._calls.get(call, (None, None))
        return played if kept == batch else None


def _some(
    router: Router, suites: Suites, agent: AgentSpec, tasks: Sequence[Task]
) -> list[Choice | BaseException]:
    """The choices for one batch of tasks, which are reset together, suite by suite."""
    found: dict[int, Choice | BaseException] = {}
    for group in grouped(range(len(tasks)), lambda i: id(suites.of(tasks[i]))).values():
        suite = suites.of(tasks[group[0]])
        due = [(make(suite), tasks[i]) for i in group]
        try:
            prompts: dict[int, Prompt] = {}
            for i, step in zip(group, step_all(suite, due), strict=True):
                if isinstance(step, BaseException):
                    found[i] = step
                else:
                    prompts[i] = (with_guidance(step.messages, agent.prompt), step.tools)
            found.update(zip(prompts, router.routes(list(prompts.values())), strict=True))
        finally:
            for env, _ in due:
                close(env)
    return [found[i] for i in range(len(tasks))]
