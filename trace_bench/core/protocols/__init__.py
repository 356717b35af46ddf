"""Every interface of the program, and the values that cross them.

A part of a kind is written by inheriting its class (`Env`, `Suite`, `Policy`, `Router`, `Trainer`,
`Method`, `Tracker`), which has defaults for all that is not required. Each optional ability is a
class that inherits the kind, and a part has it because its class inherits that: nothing is
recognised by a member's name. What must be known before the part is built, such as its container
image, is an attribute of the class.

    episodes       Env (Solves), Suite (HasReference, HasMilestones, HasChecklist, Synthesizes,
                   ActsTogether), Policy (RanksLabels, ShowsState,
                   HoldsModel), Router (RoutesTurns)
    training       Trainer (ContinuesAdapters, AssignsAdvantages, FineTunes), Method, Lab; of what
                   runs a trainer's episodes elsewhere: TakesBack; Tracker (TakesReport)

A class that inherits none of these is a guest (`adopted`): it works with the required members
alone, and everything else that it has is its own affair. Every part that is found by name
(`settings.registry`) is built by its factory, whose parameters are the part's settings; one
annotated `RunContext` receives the facts of the run.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from trace_bench.core.protocols.episodes import (
    ActsTogether,
    Env,
    HasChecklist,
    HasMilestones,
    HasReference,
    HoldsModel,
    Lender,
    Policy,
    Prompt,
    RanksLabels,
    Router,
    RoutesTurns,
    ShowsState,
    Solves,
    State,
    Suite,
    Synthesizes,
    TurnReply,
    TurnRequest,
    Typical,
)
from trace_bench.core.protocols.training import (
    Ask,
    AssignsAdvantages,
    ContinuesAdapters,
    FineTunes,
    Hear,
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
    TakesBack,
    TakesReport,
    Tracker,
    Trainer,
    TrainingJob,
    Workload,
    Yardstick,
)
from trace_bench.core.types import Message, Step, Task

_HERE = __name__


def members(protocol: type) -> list[str]:
    """The names of the public members that a protocol itself declares, in order."""
    named = [*inspect.get_annotations(protocol), *vars(protocol)]
    return [n for n in dict.fromkeys(named) if not n.startswith("_")]


def required(kind: type) -> list[str]:
    """The names of the members for which `kind` and what it inherits have no default."""
    found = [(p, n) for p in reversed(kind.__mro__) if p.__module__.startswith(_HERE)
             for n in members(p)]  # fmt: skip
    return [n for p, n in found if n not in vars(p) or _is_abstract(vars(p)[n])]


def missing(part: object, kind: type) -> list[str]:
    """The names of the members that a `kind`, or an ability of the part, needs and it lacks."""
    needed = required(type(part) if isinstance(part, kind) else kind)
    return [n for n in needed if not hasattr(part, n) or _is_abstract(getattr(part, n))]


def abilities(kind: type) -> list[type]:
    """The optional abilities of a kind of part: the protocols that inherit it."""
    classes: list[type] = kind.__subclasses__()
    return [a for a in classes if a.__module__.startswith(_HERE)]


def adopted(part: object, kind: type) -> Any:
    """The part itself if its class inherits `kind`, else a guest: a `kind` that has the required
    members of `part`, and the defaults of all others."""
    cls: Any = type(part)
    return part if isinstance(part, kind) else _guest_of(kind, cls)(part)


def make_env(suite: Suite) -> Env:
    """An environment of the suite, for one episode after the other."""
    env: Env = adopted(suite.make(), Env)
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


def written(part: object) -> object:
    """The object that a person's class made: of a guest or a sandboxed suite, what is inside."""
    return written(part.inside) if isinstance(part, Forwards) else part


class Forwards:
    """Has members of the object `inside`, see `forwards`."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


def forwards(names: Iterable[str]) -> dict[str, Any]:
    """The body of a class that `Forwards` these members."""
    return {n: property(operator.attrgetter(f"inside.{n}")) for n in names}


@functools.lru_cache(maxsize=32)
def _guest_of(kind: type, cls: type) -> type:
    named = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (_Guest, kind), {**named, **forwards(required(kind))})


class _Guest(Forwards):
    def __getattr__(self, name: str) -> Any:
        """What the kind does not know is the guest's own, for those who know the guest."""
        if name == "inside":  # asked of a copy that is being made
            raise AttributeError(name)
        return getattr(self.inside, name)


def _is_abstract(value: object) -> bool:
    return getattr(value, "__isabstractmethod__", False) is True
