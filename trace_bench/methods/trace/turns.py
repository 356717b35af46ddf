"""Learning which adapter each turn needs, from training rollouts that are paid for already.

An example is what a conversation shows before one of the agent's turns; its label is the adapter in
whose environment the rollout was played, and the base model for a contrast case. Openings of the
adapters' other tasks are examples too: they cost nothing. No word is named by hand: the words are
those that occur in enough tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from trace_bench.core.protocols import Lab
from trace_bench.core.types import Message, Task, Trajectory
from trace_bench.methods.trace import logistic
from trace_bench.methods.trace.classifier import check_examples, steps
from trace_bench.methods.trace.settings import RoutingSettings
from trace_bench.methods.trace.training import Trained
from trace_bench.policies.routing.classifier import shown

WORDS = 500  # most words: those of the most tasks
IN_TASKS = 4  # fewest tasks that a word must occur in, so that no task is learned by heart

Shown = frozenset[str]


class Conversations:
    """What the rollouts of a run's training have shown, by task."""

    def __init__(self, lab: Lab, settings: RoutingSettings) -> None:
        self._lab, self._settings = lab, settings
        self._seen: dict[str, set[Shown]] = {}

    def hear(self, tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> None:
        """`protocols.Hear`."""
        for task, trajectory in zip(tasks, trajectories, strict=True):
            self._seen.setdefault(task.id, set()).update(prefixes(trajectory))

    def router(self, trained: Sequence[Trained]) -> dict[str, Any]:
        """The router's description."""
        labels: list[str | None] = [*(t.adapter.name for t in trained), None]
        examples: list[tuple[Shown, int, float]] = []
        found: Counter[str] = Counter()  # tasks that show a word
        for place, t in enumerate(trained):
            for task in t.job.tasks:
                label = len(trained) if task.data.get("contrast", False) else place
                seen = sorted(self._of(task), key=sorted)
                found.update(frozenset().union(*seen))
                examples += [(words, label, 1.0 / len(seen)) for words in seen]
        check_examples(examples)
        there = sorted({label for _, label, _ in examples})
        common = sorted(w for w, n in found.items() if n >= IN_TASKS)
        words = sorted(common, key=lambda w: -found[w])[:WORDS]
        fitted = logistic.fit(
            [[float(w in seen) for w in words] for seen, _, _ in examples],
            [there.index(label) for _, label, _ in examples],
            self._settings.route_l2,
            weigh=[weight for _, _, weight in examples],
            standardize=False,
        )
        self._lab.log(
            f"router: {len(examples)} turns of training rollouts, {fitted.right:.0%} of them go "
            "where they came from"
        )
        return {
            "kind": "turns",
            "words": words,
            "labels": [labels[label] for label in there],
            **fitted.as_json(),
            "others": self._settings.route_others,
        }

    def _of(self, task: Task) -> set[Shown]:
        """What the task's rollouts have shown; its opening, if there were none."""
        if task.id not in self._seen:
            first = list(steps(self._lab, [task]))
            self._seen[task.id] = {frozenset(shown(s.messages, s.tools)) for s in first}
        return self._seen[task.id]


def prefixes(trajectory: Trajectory) -> Iterator[Shown]:
    """What the conversation showed before each of the agent's turns."""
    messages: list[Message] = []
    for turn in trajectory.turns:
        messages += turn.messages
        yield frozenset(shown(messages, trajectory.tools))
        messages.append(turn.reply)
