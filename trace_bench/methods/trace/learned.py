"""What routers are learned from, and the regression that learns it: openings of the adapters' own
synthetic tasks, and what their training rollouts have shown; nothing of the target tasks. A label
is the adapter in whose environment something was seen, or the base model for a contrast case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Lab, State, performed
from trace_bench.core.types import AgentSpec, Message, Step, Task, Trajectory
from trace_bench.play.steps import usable, with_guidance
from trace_bench.policies.routing.router import shown

if TYPE_CHECKING:
    from torch import Tensor

    from trace_bench.methods.trace.fit import Trained

WORDS = 500  # most words: those of the most tasks
IN_TASKS = 4  # fewest tasks that a word must occur in, so that no task is learned by heart
STEPS = 200  # of LBFGS at most; it converges in some 50
L2 = 1e-3  # penalty of the regression (ours)
EXAMPLES = 256  # most openings of an adapter's tasks, and of its contrast cases (ours)

Shown = frozenset[str]


class Openings:
    """The base model's final hidden states at the end of the openings of each job's tasks, read
    once: training asks for a router after each of its iterations."""

    def __init__(self, lab: Lab, base: AgentSpec) -> None:
        self._lab, self._base = lab, base
        self._states: dict[str, tuple[Sequence[State], Sequence[State]]] = {}
        self._fitted: dict[tuple[str, ...], Fitted] = {}

    def classifier(self, trained: Sequence[Trained], warm: bool = True) -> dict[str, Any]:
        """What of a router's description chooses; all zero without `warm`."""
        labels: list[str | None] = [*(t.adapter.name for t in trained), None]
        found = [self._of(t) for t in trained]
        contrast = [state for _, others in found for state in others]
        by_class = [*(own for own, _ in found), contrast]
        states = [state for own in by_class for state in own]
        check_examples(states)
        if not warm:
            zero = [[0.0] * len(states[0]) for _ in labels]
            return {"labels": labels, "weights": zero, "bias": [0.0] * len(labels)}
        there = [place for place, own in enumerate(by_class) if len(own)]
        key = tuple(t.name for t in trained)
        if key not in self._fitted:
            classes = [n for n, place in enumerate(there) for _ in by_class[place]]
            fitted = self._fitted[key] = fit(states, classes)
            self._lab.log(
                f"router: {fitted.right:.0%} of {len(states)} openings go where they came from"
            )
        return {"labels": [labels[place] for place in there], **self._fitted[key].as_json()}

    def _of(self, trained: Trained) -> tuple[Sequence[State], Sequence[State]]:
        """States of its tasks: with its capability, and contrast cases."""
        if trained.name not in self._states:
            own, contrast = trained.side(False)[:EXAMPLES], trained.side(True)[:EXAMPLES]
            self._states[trained.name] = self._read(own), self._read(contrast)
        return self._states[trained.name]

    def _read(self, tasks: Sequence[Task]) -> Sequence[State]:
        openings = [
            (with_guidance(step.messages, self._base.prompt), step.tools)
            for step in first_steps(self._lab, tasks)
        ]
        return self._lab.prompt_states(openings)


def check_examples(found: Sequence[object]) -> None:
    if not found:
        raise UserError(
            "no opening of the synthetic tasks could be read, so the router has no examples. Set "
            "`method.route` to linear, or raise `method.synthetic_tasks`."
        )


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


class Conversations:
    """What a run's training rollouts have shown before each of the agent's turns, by task; of other
    tasks, their openings. The words are those that occur in enough tasks, none is named by hand."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._seen: dict[str, set[Shown]] = {}

    def hear(self, tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> None:
        for task, trajectory in zip(tasks, trajectories, strict=True):
            self._seen.setdefault(task.id, set()).update(prefixes(trajectory))

    def classifier(self, trained: Sequence[Trained]) -> dict[str, Any]:
        """The part of a router's description that chooses."""
        labels: list[str | None] = [*(t.adapter.name for t in trained), None]
        examples: list[tuple[Shown, int, float]] = []
        found: Counter[str] = Counter()  # tasks that show a word
        for place, t in enumerate(trained):
            for task in t.tasks:
                label = len(trained) if task.data.get("contrast", False) else place
                seen = sorted(self._of(task), key=sorted)
                found.update(frozenset().union(*seen))
                examples += [(words, label, 1.0 / len(seen)) for words in seen]
        check_examples(examples)
        there = sorted({label for _, label, _ in examples})
        common = [w for w, n in found.items() if n >= IN_TASKS]
        words = sorted(common, key=lambda w: (-found[w], w))[:WORDS]
        fitted = fit(
            [[float(w in seen) for w in words] for seen, _, _ in examples],
            [there.index(label) for _, label, _ in examples],
            weigh=[weight for _, _, weight in examples],
            standardize=False,
        )
        self._lab.log(
            f"router: {len(examples)} turns of training rollouts, {fitted.right:.0%} of them go "
            "where they came from"
        )
        return {"words": words, "labels": [labels[c] for c in there], **fitted.as_json()}

    def _of(self, task: Task) -> set[Shown]:
        """What the task's rollouts have shown; its opening, if there were none."""
        if task.id not in self._seen:
            first = list(first_steps(self._lab, [task]))
            self._seen[task.id] = {frozenset(shown(s.messages, s.tools)) for s in first}
        return self._seen[task.id]


def prefixes(trajectory: Trajectory) -> Iterator[Shown]:
    messages: list[Message] = []
    for turn in trajectory.turns:
        messages += turn.messages
        yield frozenset(shown(messages, trajectory.tools))
        messages.append(turn.reply)


# -- multinomial logistic regression ----------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """`weights` [classes, features] and `bias` [classes], for features as they are given;
    `right`: the share of the examples whose class has the highest score."""

    weights: Tensor
    bias: Tensor
    right: float

    def as_json(self) -> dict[str, Any]:
        """Exact: a float's text is read back as the same number."""
        return {"weights": self.weights.tolist(), "bias": self.bias.tolist()}


def fit(
    features: Sequence[Sequence[float]],
    classes: Sequence[int],
    l2: float = L2,
    weigh: Sequence[float] | None = None,
    standardize: bool = True,
) -> Fitted:
    """Minimizes the mean cross-entropy plus l2/2 times the squared weights, with LBFGS in float64
    from zero, on standardized features (folded back into what is returned) unless `standardize` is
    false. `weigh`: the examples' weights (None: equal), within their class: all classes count the
    same. `classes` are 0, 1, ... without gaps."""
    import numpy as np
    import torch

    x = torch.from_numpy(np.array(features, dtype=np.float64))
    y = torch.tensor(classes)
    each = torch.tensor([1.0] * len(y) if weigh is None else weigh, dtype=torch.float64)
    count = int(y.max()) + 1
    of_class = torch.zeros(count, dtype=torch.float64).index_add_(0, y, each)
    each = each / of_class[y] / count
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where((scale > 1e-12) & standardize, scale, torch.ones_like(scale))
    z = (x - mean) / scale
    w = torch.zeros(count, x.shape[1], dtype=torch.float64, requires_grad=True)
    b = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS([w, b], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> float:
        steps.zero_grad()
        apart = torch.nn.functional.cross_entropy(z @ w.t() + b, y, reduction="none")
        total = (each * apart).sum() + l2 / 2 * w.square().sum()
        torch.autograd.backward(total)
        return float(total.detach())

    steps.step(loss)
    with torch.no_grad():
        right = float(((z @ w.t() + b).argmax(1) == y).double().mean())
        weights = w / scale
        return Fitted(weights.detach(), (b - weights @ mean).detach(), right)
