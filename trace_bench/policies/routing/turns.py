"""Routing at every turn, by what the conversation shows so far.

A linear classifier on words, each marked with where it stands: in what the user said, in a tool's
result, among the tools at hand, or as a tool that the agent called; words of the newest messages
are marked once more. It needs no model, so any policy can be routed by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing.classifier import Linear, best, blend, share
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.retrieval import words


class TurnRouter:
    """`words` are the features of `weights` [labels, words]; `labels`, `others` and `otherwise` are
    as for `ClassifierRouter`."""

    waits = False

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.linear = Linear(description)
        self.others = share(description, "others")
        self.otherwise: str | None = description.get("otherwise")
        self.place = {word: i for i, word in enumerate(description["words"])}

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        """The choice for the first turn."""
        return self.next(messages, tools)

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        """`protocols.RoutesTurns`."""
        features = np.zeros((1, len(self.place)))
        features[0, [self.place[w] for w in shown(messages, tools) if w in self.place]] = 1.0
        gates = best(self.linear.scores(features))
        return blend(self.linear.labels, gates, self.others, self.otherwise)


def shown(messages: Sequence[Message], tools: Sequence[Tool]) -> set[str]:
    """What a conversation shows the agent before its next turn."""
    out = {f"at hand: {tool['function']['name']}" for tool in tools}
    spoken = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    newest = spoken[-1] + 1 if spoken else 0
    for n, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            out.add(f"called: {call['function']['name']}")
        if message["role"] in ("user", "tool"):
            found = {f"{message['role']}: {word}" for word in words(str(message["content"]))}
            out |= found
            if n >= newest and spoken:
                out |= {f"new {word}" for word in found}
    return out
