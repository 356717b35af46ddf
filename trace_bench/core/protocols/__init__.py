"""Every interface of the program, and the values that cross them.

A part of a kind is written by inheriting its class (`Env`, `Suite`, `Policy`, `Router`, `Trainer`,
`Method`, `Tracker`), which has defaults for all that is not required. Its optional abilities are
methods of that class (`Suite.reference`, `Trainer.check_start`), and a part has one because its
class overrides the method (`Part.has`). What must be known before the part is built, such as its
container image, is an attribute of the class.

    episodes       Env, Suite, Policy, Router
    training       Trainer, Method, Lab, Tracker; what runs a trainer's episodes elsewhere

Every part that is found by name (`settings.registry`) is built by its factory, whose parameters are
the part's settings; one annotated `RunContext` receives the facts of the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from contextlib import closing

from trace_bench.core.errors import UserError
from trace_bench.core.protocols.episodes import (
    Env,
    Lender,
    Part,
    Policy,
    Prompt,
    Router,
    State,
    Suite,
    TurnReply,
    TurnRequest,
    Typical,
    overrides,
)
from trace_bench.core.protocols.training import (
    Ask,
    Lab,
    Method,
    MethodPlan,
    Need,
    OnEpisode,
    Phase,
    PlannedRun,
    PlayElsewhere,
    RunContext,
    Source,
    Tracker,
    Trainer,
    TrainingJob,
    Yardstick,
)
from trace_bench.core.types import Message, Step, Task


def members(kind: type) -> list[str]:
    """The names of the public members that the class of a kind declares, in order."""
    named = [*inspect.get_annotations(kind), *vars(kind)]
    return [n for n in dict.fromkeys(named) if not n.startswith("_")]


def missing(part: object, kind: type) -> list[str]:
    """The names of the members without a default that a part of this kind lacks."""
    absent = object()
    values = {n: getattr(part, n, absent) for n in members(kind)}
    return [
        n for n, v in values.items() if v is absent or getattr(v, "__isabstractmethod__", False)
    ]


def make_env(suite: Suite) -> Env:
    """An environment, for one episode after the other. UserError if the suite makes none."""
    env: object = suite.make()
    if not isinstance(env, Env):
        raise UserError(
            f"{suite.name}/{suite.variant} makes {type(env).__name__}, which is no environment: "
            "its class must inherit trace_bench.Env. Change `env`."
        )
    return env


def perform(env: Env, task: Task, actions: Iterable[Message]) -> list[Step]:
    """Resets, and steps until the episode or the actions end."""
    steps = [env.reset(task)]
    for action in actions:
        if steps[-1].done:
            break
        steps.append(env.step(action))
    return steps


def performed(suite: Suite, task: Task, actions: Iterable[Message] = ()) -> list[Step]:
    """The same in an environment of its own."""
    with closing(make_env(suite)) as env:
        return perform(env, task, actions)


def conversation(steps: Sequence[Step], actions: Iterable[Message]) -> list[Message]:
    answered = zip(actions, steps[1:], strict=False)
    return [*steps[0].messages, *(m for a, step in answered for m in (a, *step.messages))]
