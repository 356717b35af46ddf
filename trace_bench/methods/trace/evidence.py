"""What routes are learned from (`policies.routing.route.Evidence`): the openings of the adapters'
own tasks, and what their training rollouts have shown; nothing of the target tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Lab, State, performed
from trace_bench.core.types import AgentSpec, Message, Step, Task, Trajectory
from trace_bench.play.steps import usable, with_guidance
from trace_bench.policies.routing.turn import words_of
from trace_bench.trainers.start import start_of

Words = frozenset[str]


class TrainingEvidence:
    """Of one fit, whose training rollouts `hear` is given."""

    def __init__(self, lab: Lab, base: AgentSpec) -> None:
        start = start_of(base)
        self.otherwise: str | None = None if start is None else start.name
        self.fitted: dict[tuple[str, ...], dict[str, Any]] = {}
        self.log = lab.log
        self._lab, self._base = lab, base
        self._states: dict[tuple[str, ...], Sequence[State]] = {}
        self._turns: dict[str, set[Words]] = {}

    def states(self, tasks: Sequence[Task]) -> Sequence[State]:
        key = tuple(task.id for task in tasks)
        if key not in self._states:
            openings = [
                (with_guidance(step.messages, self._base.prompt), step.tools)
                for step in first_steps(self._lab, tasks)
            ]
            self._states[key] = self._lab.prompt_states(openings)
        return self._states[key]

    def turns(self, task: Task) -> set[Words]:
        if task.id not in self._turns:
            first = first_steps(self._lab, [task])
            self._turns[task.id] = {frozenset(words_of(s.messages, s.tools)) for s in first}
        return self._turns[task.id]

    def hear(self, tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> None:
        for task, trajectory in zip(tasks, trajectories, strict=True):
            self._turns.setdefault(task.id, set()).update(before_turns(trajectory))


def first_steps(lab: Lab, tasks: Sequence[Task]) -> Iterator[Step]:
    """Those of the tasks that open: generated code may fail at any time, which is logged."""
    for task in tasks:
        try:
            first = usable(performed(lab.suite_of(task), task)[0])
        except Exception as error:
            if isinstance(error, UserError) and not isinstance(error, SourceError):
                raise  # such as a sandbox that cannot be started
            lab.log(f"no example for the router from {task.id}: {type(error).__name__}: {error}")
            continue
        yield first


def before_turns(trajectory: Trajectory) -> Iterator[Words]:
    """What the conversation showed before each of the agent's turns."""
    messages: list[Message] = []
    for turn in trajectory.turns:
        messages += turn.messages
        yield frozenset(words_of(messages, trajectory.tools))
        messages.append(turn.reply)
