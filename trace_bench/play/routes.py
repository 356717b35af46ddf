"""The router's choice of adapter for a task, from its first messages, without an episode."""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Router
from trace_bench.core.types import AgentSpec, Boundary, Task
from trace_bench.play.rollouts import Choice, with_guidance
from trace_bench.play.steps import close, fault_of, make, readable, step_all
from trace_bench.play.suites import Suites


def routes(
    router: Router, suites: Suites, agent: AgentSpec, tasks: Sequence[Task], together: int
) -> list[Choice | Exception]:
    """The router's choice for each task, or an exception if the task cannot be reset. At most
    `together` environments are open at once."""
    out: list[Choice | Exception] = []
    for first in range(0, len(tasks), together):
        out += _some(router, suites, agent, tasks[first : first + together])
    return out


def _some(
    router: Router, suites: Suites, agent: AgentSpec, tasks: Sequence[Task]
) -> list[Choice | Exception]:
    """The choices for one batch of tasks, which are reset together, suite by suite."""
    places: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        places.setdefault(id(suites.of(task)), []).append(i)
    found: dict[int, Choice | Exception] = {}
    for group in places.values():
        suite = suites.of(tasks[group[0]])
        due = [(make(suite), tasks[i]) for i in group]
        try:
            for i, step in zip(group, step_all(suite, due), strict=True):
                if isinstance(step, Exception):
                    found[i] = step
                    continue
                if (fault := fault_of(step)) is not None:
                    found[i] = EpisodeError(Boundary.ENVIRONMENT.value, fault)
                    continue
                step = readable(step)
                found[i] = router.route(with_guidance(step.messages, agent.prompt), step.tools)
        finally:
            for env, _ in due:
                close(env)
    return [found[i] for i in range(len(tasks))]
