"""A router that needs no model: it chooses by words of the first messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.protocols import Router
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing import router

WORDS = "words"


class WordRouter(Router):
    """`words`: what the adapters of `labels` are for, word by word; without one, the last label."""

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        self.words, self.labels = description["words"], description["labels"]

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | None:
        said = " ".join(str(m["content"]).lower() for m in messages if m["role"] == "user")
        place = next((n for word, n in self.words.items() if word in said), -1)
        label: str | None = self.labels[place]
        return label


router.KINDS[WORDS] = WordRouter  # type: ignore[index]
