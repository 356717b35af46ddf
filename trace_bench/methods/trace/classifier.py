"""Learning which adapter an opening needs, from the adapters' own synthetic tasks.

An example is the base model's final hidden state at the end of an opening. Its label is the adapter
whose environment the opening is from, or the base model for a contrast case, in which the
capability must not be used. No agent acts, so no rollout is spent, and nothing of the
target tasks is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Lab, State
from trace_bench.core.types import AgentSpec, Step, Task
from trace_bench.methods.trace import logistic
from trace_bench.methods.trace.settings import RoutingSettings
from trace_bench.methods.trace.synthesis.draw import first_step
from trace_bench.methods.trace.training import Job, Trained
from trace_bench.play.steps import usable, with_guidance


class Openings:
    """The base model's states of the openings of each job's tasks. They are read once: training
    asks for a router after each of its iterations."""

    def __init__(self, lab: Lab, base: AgentSpec, settings: RoutingSettings) -> None:
        self._lab, self._base, self._settings = lab, base, settings
        self._states: dict[str, tuple[list[State], list[State]]] = {}
        self._fitted: dict[tuple[str, ...], logistic.Fitted] = {}

    def classifier(self, trained: Sequence[Trained], warm: bool = True) -> dict[str, Any]:
        """The part of a router's description that chooses: labels, weights, bias. Without `warm`
        they are zero, so that all labels are alike."""
        names = [t.adapter.name for t in trained]
        found = [self._of(t.job) for t in trained]
        states, classes = [], []
        for place, (own, _) in enumerate(found):
            states += own
            classes += [place] * len(own)
        contrast = [state for _, others in found for state in others]
        states += contrast
        classes += [len(trained)] * len(contrast)
        there = sorted(set(classes))
        check_examples(states)
        labels: list[str | None] = [*names, None]
        if warm:
            key = tuple(t.job.name for t in trained)
            if key not in self._fitted:
                self._fitted[key] = self._fit(states, [there.index(c) for c in classes])
            return {"labels": [labels[c] for c in there], **self._fitted[key].as_json()}
        zero = [[0.0] * len(states[0]) for _ in labels]
        return {"labels": labels, "weights": zero, "bias": [0.0] * len(labels)}

    def _fit(self, states: Sequence[State], places: Sequence[int]) -> logistic.Fitted:
        found = logistic.fit(states, places, self._settings.route_l2)
        self._lab.log(
            f"router: {found.right:.0%} of {len(states)} openings go where they came from"
        )
        return found

    def _of(self, job: Job) -> tuple[list[State], list[State]]:
        """States of the job's tasks: with its capability, and contrast cases."""
        if job.name not in self._states:
            sides: tuple[list[State], list[State]] = ([], [])
            for contrast, side in ((False, sides[0]), (True, sides[1])):
                tasks = [t for t in job.tasks if bool(t.data.get("contrast", False)) is contrast]
                for step in steps(self._lab, tasks[: self._settings.route_examples]):
                    first = with_guidance(step.messages, self._base.prompt)
                    side.append(self._lab.prompt_state(first, step.tools))
            self._states[job.name] = sides
        return self._states[job.name]


def check_examples(found: Sequence[object]) -> None:
    """Raises UserError if there is nothing to learn from."""
    if not found:
        raise UserError(
            "no opening of the synthetic tasks could be read, so the router has no examples. Set "
            "`method.route` to linear, or raise `method.synthetic_tasks`."
        )


def steps(lab: Lab, tasks: Sequence[Task]) -> Iterator[Step]:
    """The first steps of tasks. A task whose environment no longer opens is left out and logged:
    generated code may fail at any time."""
    for task in tasks:
        try:
            first = usable(first_step(lab.suite_of(task), task))
        except Exception as error:
            if isinstance(error, UserError) and not isinstance(error, SourceError):
                raise  # such as a sandbox that cannot be started
            lab.log(f"no example for the router from {task.id}: {type(error).__name__}: {error}")
            continue
        yield first
