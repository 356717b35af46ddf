"""The checks that a written environment must pass before any rollout is spent on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trace_bench.core.errors import EngineError, EpisodeError, UserError
from trace_bench.core.protocols import HasReference, Suite, make_env
from trace_bench.core.types import Task, Tool, to_json
from trace_bench.envs.check import first_fault
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.methods.trace.synthesis.draw import opening, seeded
from trace_bench.methods.trace.synthesis.generate import floors
from trace_bench.methods.trace.synthesis.generate.leaks import Leaks, texts_of
from trace_bench.methods.trace.synthesis.generate.replay import difference

CONFORMING = 6  # of them, those that go through all of envs/check.py
# It must not say which words: the author would learn what is held out.
TOO_CLOSE = (
    "a wording, name or number is too close to tasks that you must not know. Make up your own."
)


def examine(
    suite: Suite,
    twin: Suite,
    seeds: Sequence[int],
    tools: Mapping[str, Tool],
    leaks: Leaks,
    settings: SynthesisSettings,
) -> list[str]:
    """What is wrong, in words for the author, of the first check that fails; [] when all is well.

    `twin`: the same module in another process, which must give the same. `seeds`: of the tasks that
    are looked at."""
    try:
        tasks = [seeded(suite, seed) for seed in seeds]
        return (
            _variety(suite, tasks)
            or _tools(suite, tasks, tools)
            or _leaks(suite, tasks, leaks)
            or _conformance(suite, tasks[:CONFORMING])
            or _twin(suite, twin, tasks[:CONFORMING])
            or _floors(suite, twin, tasks, settings)
        )
    except EngineError:
        raise
    except (UserError, EpisodeError) as error:
        return [f"the module failed: {error}"]


def _variety(suite: Suite, tasks: Sequence[Task]) -> list[str]:
    openings = {opening(suite, task)[0] for task in tasks}
    if len(openings) < len(tasks) // 2:
        return [f"{len(tasks)} seeds give only {len(openings)} different first messages."]
    return []


def _tools(suite: Suite, tasks: Sequence[Task], tools: Mapping[str, Tool]) -> list[str]:
    """The target's own schemas, and nothing else."""
    for task in tasks:
        env = make_env(suite)
        try:
            for tool in env.reset(task).tools:
                name = tool["function"]["name"]
                if name not in tools:
                    return [f"there is no tool {name!r}; allowed: {', '.join(sorted(tools))}."]
                if to_json(tool) != to_json(tools[name]):
                    return [f"the schema of {name!r} is not the target's; use TOOLS[{name!r}]."]
        finally:
            env.close()
    return []


def _leaks(suite: Suite, tasks: Sequence[Task], leaks: Leaks) -> list[str]:
    for task in tasks:
        if leaks.found([*texts_of(task), opening(suite, task)[0]]):
            return [TOO_CLOSE]
    return []


def _conformance(suite: Suite, tasks: Sequence[Task]) -> list[str]:
    fault = first_fault(suite, tasks)
    return [] if fault is None else [fault]


def _twin(suite: Suite, twin: Suite, tasks: Sequence[Task]) -> list[str]:
    """Another process gives the same tasks, messages and rewards."""
    for task in tasks:
        other = seeded(twin, task.seed)
        if to_json(other.data) != to_json(task.data):
            return [f"make_task({task.seed}) gives other data in another process."]
        if _played(suite, task) != _played(twin, task):
            return [f"{task.id} is played otherwise in another process."]
    return []


def _played(suite: Suite, task: Task) -> str:
    env = make_env(suite)
    try:
        steps = [env.reset(task)]
        for action in suite.reference(task) if isinstance(suite, HasReference) else ():
            if steps[-1].done:
                break
            steps.append(env.step(action))
        return json.dumps(to_json(steps))
    finally:
        env.close()


def _floors(
    suite: Suite, twin: Suite, tasks: Sequence[Task], settings: SynthesisSettings
) -> list[str]:
    """The floors, and the same episodes in another process, the last one first."""
    measured = floors.measure(suite, tasks, settings)
    if high := floors.too_high(measured):
        return high
    other = difference(twin, [episode for floor in measured for episode in floor.episodes])
    return [] if other is None else [other]
