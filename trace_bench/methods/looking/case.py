"""One trajectory with its score, also beside its task's reference, and questions about where values
came from."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HasMilestones, HasReference, Suite, make_env
from trace_bench.core.types import Message, Milestone, StopReason, Task
from trace_bench.methods.looking.evidence import (
    Call,
    Conversation,
    as_number,
    atoms,
    in_results,
    in_texts,
    precise,
    read,
    records,
    same,
)


@dataclass(frozen=True)
class Scored:
    """One trajectory to be labelled, with the milestones and minefields of its score, if it has
    any."""

    agent: Conversation
    stop: StopReason
    milestones: tuple[Milestone, ...]
    minefields: tuple[Milestone, ...]
    malformed: bool

    @property
    def acts(self) -> bool:
        """Whether the task wants more than words."""
        return any(m.tells is None for m in self.milestones)

    @property
    def forbidden(self) -> bool:
        """Whether the task has minefields: something must not be done."""
        return bool(self.minefields)


@dataclass(frozen=True)
class Case(Scored):
    """With the task's reference and its results: that is all the program may know."""

    reference: Conversation

    @property
    def acts(self) -> bool:
        return bool(self.reference.calls)


def check_labels(suite: Suite) -> None:
    """Raises UserError for a suite whose episodes the program cannot label."""
    if not isinstance(suite, HasReference | HasMilestones):
        raise UserError(
            "the labelling program compares episodes with references, or reads the milestones of "
            f"their scores, and {suite.name}/{suite.variant} has neither (HasReference, "
            "HasMilestones, see docs/environments.md). Set llm.analyst.by=endpoint, or another "
            "`env`."
        )


Facts = Conversation | tuple[Milestone, ...]
"""What is known of a task: its reference with the results, or its milestones, none of them met."""


def facts_of(suite: Suite, task: Task) -> Facts:
    """Replays the reference in the environment, if there is one. The agent does not act: no rollout
    is spent."""
    if not isinstance(suite, HasReference):
        assert isinstance(suite, HasMilestones)
        return tuple(suite.milestones(task))
    replies = suite.reference(task)
    env = make_env(suite)
    try:
        step = env.reset(task)
        messages: list[Message] = list(step.messages)
        for reply in replies:
            if step.done:
                break
            messages.append(reply)
            step = env.step(reply)
            messages.extend(step.messages)
    finally:
        env.close()
    return read(messages)


def right_call(call: Call, wanted: Sequence[Call]) -> bool:
    """One of the wanted calls has this name and these arguments (long texts aside)."""
    return any(
        w.name == call.name
        and all(same(call.arguments.get(k), v) or is_long(v) for k, v in w.arguments.items())
        for w in wanted
    )


def is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value.split()) > 1


def made_up(call: Call, key: str, agent: Conversation) -> bool:
    value, past = call.arguments[key], agent.before(call.at)
    return precise(value) and not in_results(value, past.good) and not in_texts(value, past.heard)


def invents(case: Case, known: Set[str]) -> bool:
    """The agent made a call that the reference does not make, with an argument from nowhere."""
    return any(
        made_up(call, key, case.agent)
        for call in case.agent.calls
        if call.name not in known
        for key in call.arguments
    )


def chosen_record(search: Call, calls: Sequence[Call]) -> tuple[str, str, Any] | None:
    """A later argument that stands in exactly one of the records."""
    for call in calls:
        for key, value in call.arguments.items() if call.at > search.at else ():
            rows = [row for row in records(search) if any(same(a, value) for a in atoms(row))]
            if precise(value) and len(rows) == 1:
                return call.name, key, value
    return None


def parts(reference: Conversation) -> list[list[Call]]:
    """The reference's calls in groups that do not feed one another. Calls that only mend an error
    (between a failed call and its repetition) belong to no part of the request."""
    groups: list[list[Call]] = []
    for call in reference.good:
        if mends(call, reference):
            continue
        fed = [g for g in groups if any(feeds(c, call, reference) for c in g)]
        groups = [g for g in groups if g not in fed]
        groups.append([*(c for g in fed for c in g), call])
    return groups


def mends(call: Call, reference: Conversation) -> bool:
    return any(
        failed.error is not None
        and failed.at < call.at
        and failed.name != call.name
        and any(g.name == failed.name and g.at > call.at for g in reference.good)
        and not any(g.name == failed.name and failed.at < g.at < call.at for g in reference.good)
        for failed in reference.calls
    )


def feeds(source: Call, call: Call, reference: Conversation) -> bool:
    """Whether an argument of `call` came out of `source` and not from the user."""
    return any(
        precise(value)
        and in_results(value, [source])
        and not in_texts(value, [t for t in reference.heard if t.at < call.at])
        for value in call.arguments.values()
    )


def is_converted(value: Any, call: Call, reference: Conversation) -> bool:
    """A short value of the reference that stands neither in what the user said nor in a result."""
    if as_number(value) in (None, 0.0) and not (isinstance(value, str) and not is_long(value)):
        return False
    past = reference.before(call.at)
    return not in_texts(value, past.heard) and not in_results(value, past.good)
