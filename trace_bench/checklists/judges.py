"""Judges: which items of a turn a step of the agent satisfies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trace_bench.checklists.conditions import check_of, holds
from trace_bench.checklists.items import CALLS, RESULTS, Item
from trace_bench.checklists.talk import Step, Turn
from trace_bench.core.checked import number
from trace_bench.core.store import canonical, stable_seed
from trace_bench.core.types import Message


@dataclass(frozen=True)
class Scene:
    """What a judge may look at. `task`: the dialogue's name; `before`: all messages before this
    turn of the user; `turn`: the turn so far; its last step is the one to judge."""

    task: str
    before: tuple[Message, ...]
    turn: Turn

    @property
    def step(self) -> Step:
        return self.turn.steps[-1]


class Judge(Protocol):
    """The ids of those items that the scene's last step satisfies. Raises EpisodeError at the
    boundary JUDGE if there is no verdict: the episode is void."""

    def satisfied(self, items: Sequence[Item], scene: Scene) -> frozenset[str]: ...


class ProgramJudge:
    """The items' own conditions, exactly."""

    def satisfied(self, items: Sequence[Item], scene: Scene) -> frozenset[str]:
        found = []
        for item in items:
            where = f"{scene.task}: item {item.id}"
            if holds(check_of(item.extra, where), scene.turn.steps):
                found.append(item.id)
        return frozenset(found)


@dataclass(frozen=True)
class Errors:
    """Set error rates of a judge, for experiments. `misses`: the share of satisfied items that it
    denies; `alarms`: the share of unsatisfied ones that it affirms, both for each verdict.
    `correlated`: one draw decides for all verdicts of an episode (of those that begin alike)
    instead of one for each."""

    misses: float = field(default=0.0, metadata=number(0, 1))
    alarms: float = field(default=0.0, metadata=number(0, 1))
    correlated: bool = False

    @property
    def any(self) -> bool:
        return self.misses > 0 or self.alarms > 0


class ErringJudge:
    """Another judge's verdicts with errors. Its draws follow from `seed`, the task, and the
    conversation: the same conversation gets the same verdicts."""

    def __init__(self, inner: Judge, errors: Errors, seed: int) -> None:
        self._inner, self._errors, self._seed = inner, errors, seed

    def satisfied(self, items: Sequence[Item], scene: Scene) -> frozenset[str]:
        right = self._inner.satisfied(items, scene)
        said = self._said(scene)
        found = []
        for item in items:
            parts = () if self._errors.correlated else (item.id,)
            draw = stable_seed(self._seed, "judge", scene.task, said, *parts) / 2**63
            met = item.id in right
            wrong = draw < (self._errors.misses if met else self._errors.alarms)
            if met != wrong:
                found.append(item.id)
        return frozenset(found)

    def _said(self, scene: Scene) -> str:
        """What the draw depends on: everything so far, or only the agent's first message."""
        spoken = [m for m in scene.before if m.get("role") == "assistant"]
        spoken += [step.message for step in scene.turn.steps]
        return canonical(plain_text(spoken[:1] if self._errors.correlated else spoken))


def plain_text(messages: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """The agent's messages without what differs between equal ones, such as the ids of calls."""
    out = []
    for message in messages:
        calls = message.get("tool_calls")
        listed = calls if isinstance(calls, list | tuple) else ()
        functions = [call.get("function") for call in listed if isinstance(call, Mapping)]
        out.append([str(message.get("content") or ""), *map(canonical, functions)])
    return out


def without_calls(items: Sequence[Item], scene: Scene) -> list[Item]:
    """The items that are left for a judge: after a malformed call those about calls and their
    results fail without one."""
    if not scene.step.malformed:
        return list(items)
    return [item for item in items if item.focus not in (CALLS, RESULTS)]
