"""Looks at the first prompts of held-out tasks before anything is run: tools must reach the
model, the prompts must leave room for a turn, and servers must answer one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, ReadsPrompts, Suite, TriesTurns, TurnRequest
from trace_bench.core.types import Message, Step, Task
from trace_bench.play.steps import close, fault_of, make, readable, step_all
from trace_bench.play.suites import asks_user

LOOKED_AT = 8  # tasks
NO_TASK: Message = {"role": "user", "content": "What can you do for me?"}
"""The prompt of a turn that is asked for where no task's prompt is known beforehand."""


def check_prompts(policy: Policy, suite: Suite, tasks: Sequence[Task]) -> str | None:
    """A warning if some of the first prompts do not fit the context; None if all do. Raises
    UserError if none does, or if tools do not reach the model. Tasks that cannot be reset are left
    to the run, and so is all of a suite whose user is a model, or a policy that cannot tell."""
    if not isinstance(policy, ReadsPrompts) or asks_user(suite):
        return None
    opened = _opened(suite, _chosen(tasks))
    sizes = [policy.first_prompt(step.messages, step.tools) for step in opened]
    if not (long := [size for size in sizes if size >= policy.context]):
        return None
    said = (
        f"the first prompts of {len(long)} of {len(sizes)} held-out tasks that were looked at do "
        f"not fit: they have up to {max(long)} tokens, and policy.context={policy.context} must "
        "leave room for a turn"
    )
    if len(long) == len(sizes):
        raise UserError(f"{said}. Change `policy.context`, or `model` if it allows no more.")
    return f"{said}; such episodes end at once and are scored as they stand"


def try_turn(
    policy: Policy, suite: Suite, tasks: Sequence[Task], *, temperature: float, max_tokens: int
) -> str | None:
    """Asks a policy that can be asked beforehand for one turn, given the shortest of the first
    prompts; returns what it says about it. If a model plays the user, or no task can be reset, the
    prompt is `NO_TASK`. Raises UserError."""
    if not isinstance(policy, TriesTurns):
        return None
    steps = [] if asks_user(suite) else list(_opened(suite, _chosen(tasks)))
    first = min(steps, key=_length, default=Step((NO_TASK,)))
    request = TurnRequest(
        -1, first.messages, first.tools, temperature=temperature, max_tokens=max_tokens
    )
    return policy.try_turn(request)


def _chosen(tasks: Sequence[Task]) -> Sequence[Task]:
    return tasks[:: max(1, len(tasks) // LOOKED_AT)][:LOOKED_AT]


def _length(step: Step) -> int:
    return sum(len(str(message.get("content") or "")) for message in step.messages)


def _opened(suite: Suite, tasks: Sequence[Task]) -> Iterator[Step]:
    """What the environments of these tasks return at reset."""
    due = [(make(suite), task) for task in tasks]
    try:
        for step in step_all(suite, due):
            if isinstance(step, Step) and fault_of(step) is None:
                yield readable(step)
    finally:
        for env, _ in due:
            close(env)
