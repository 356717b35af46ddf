"""Routing anew at every turn, by what the conversation shows so far: a logistic regression on
words, learned from training rollouts (`method.route=turn`). It needs no model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from trace_bench.core.protocols import Router
from trace_bench.core.types import Message, Share, Tool
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.regression import Layer, fit
from trace_bench.policies.routing.route import Evidence, Expert, Route, check_examples

WORDS = 500  # most words: those of the most tasks
IN_TASKS = 4  # fewest tasks that a word must occur in, so that no task is learned by heart


@dataclass(frozen=True)
class Turn(Route):
    """A linear classifier on words chooses anew at every turn, by what the conversation shows so
    far, learned from training rollouts (ours)."""

    hears: ClassVar[bool] = True

    name: Literal["turn"] = "turn"
    others: Share = 0.35
    """As with the classifier."""

    def fit(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        """A label is the adapter in whose environment a turn was seen, or the base model for a
        contrast case. The words are those of enough tasks; none is named by hand."""
        labels: list[str | None] = [*(e.adapter.name for e in experts), None]
        examples: list[tuple[frozenset[str], int, float]] = []
        in_tasks: Counter[str] = Counter()  # of each word
        for place, expert in enumerate(experts):
            for task in expert.tasks:
                label = len(experts) if task.data.get("contrast", False) else place
                turns = sorted(evidence.turns(task), key=sorted)
                in_tasks.update(frozenset().union(*turns))
                examples += [(words, label, 1.0 / len(turns)) for words in turns]
        check_examples(examples)
        there = sorted({label for _, label, _ in examples})
        common = [w for w, n in in_tasks.items() if n >= IN_TASKS]
        features = sorted(common, key=lambda w: (-in_tasks[w], w))[:WORDS]
        fitted = fit(
            [[float(w in words) for w in features] for words, _, _ in examples],
            [there.index(label) for _, label, _ in examples],
            weigh=[weight for _, _, weight in examples],
            standardize=False,
        )
        evidence.log(
            f"router: {len(examples)} turns of training rollouts, {fitted.right:.0%} of them go "
            "where they came from"
        )
        layer = {"labels": [labels[c] for c in there], **fitted.as_json()}
        return {"kind": "turns", "words": features, **layer, "others": self.others}


class TurnRouter(Router):
    """Chooses at every turn by what the conversation shows so far: a linear classifier on words,
    each marked with where it stands: in what the user said, in a tool's result, among the tools at
    hand, or as a tool that the agent called; words of the newest messages are marked once more. It
    needs no model, so any policy can be routed by it. `words` are the features of `weights`
    [labels, words]; `labels`, `others` and `otherwise` are as for `ClassifierRouter`."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.layer = Layer(description)
        self.place = {word: i for i, word in enumerate(description["words"])}

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        """The choice for the first turn."""
        return self.next(messages, tools)

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        features = np.zeros(len(self.place))
        features[[self.place[w] for w in words_of(messages, tools) if w in self.place]] = 1.0
        return self.layer.choose(features)


def words_of(messages: Sequence[Message], tools: Sequence[Tool]) -> set[str]:
    """What a conversation shows the agent before its next turn."""
    out = {f"at hand: {tool['function']['name']}" for tool in tools}
    spoken = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    newest = spoken[-1] + 1 if spoken else 0
    for n, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            out.add(f"called: {call['function']['name']}")
        if message["role"] in ("user", "tool"):
            said = {f"{message['role']}: {word}" for word in words(str(message["content"]))}
            out |= said
            if n >= newest and spoken:
                out |= {f"new {word}" for word in said}
    return out


def words(text: str) -> list[str]:
    """Lowercase words and adjacent pairs; every number counts as the same word."""
    single = ["0" if w.isdigit() else w for w in re.findall(r"[a-z]+|\d+", text.lower())]
    return single + [f"{a} {b}" for a, b in pairwise(single)]
