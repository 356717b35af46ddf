"""Faults of a simulated user that the task itself gives away, and a second chance for them.

A user that ends the conversation before saying what is wanted, that says nothing, or that names an
identifier which neither its instructions nor anybody else has said, plays another task than the one
that is scored. It is told so and asked again; if that does not help, the episode has failed for the
user's sake and not for the agent's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.errors import EpisodeError
from trace_bench.core.types import Boundary
from trace_bench.envs.registry import Ask

SECOND_CHANCES = 2
# What nobody makes up by accident: addresses, order and reservation numbers, user ids, phone
# numbers. Dates, prices and counts are not among them: a user may well compute those.
_IDENTIFIER = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.]+"
    r"|#\w*\d\w*"
    r"|\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{5,}\b"
    r"|\b[a-z]+_[a-z]+_\d+\b"
    r"|\b\d{7,}\b"
    r"|\b\d{3}-\d{3}-\d{4}\b"
)


class CarefulAsk:
    """Asks for the user's words and looks at them before they count. `faults` counts the answers
    that were refused."""

    def __init__(self, ask: Ask, stops: Sequence[str]) -> None:
        self._ask, self._stops = ask, tuple(stops)
        self.faults = 0

    def __call__(self, messages: Sequence[Mapping[str, Any]], opening: bool) -> str:
        """The user's next words. `messages`: the conversation as the user sees it; `opening`: they
        are the first. Raises EpisodeError(USER)."""
        talk = list(messages)
        for _ in range(SECOND_CHANCES + 1):
            text = self._ask("user", talk)
            fault = self._fault(text, messages, opening)
            if fault is None:
                return text
            self.faults += 1
            note = f"(To whoever plays the user: {fault} Answer again, as the user.)"
            talk += [{"role": "assistant", "content": text}, {"role": "user", "content": note}]
        raise EpisodeError(Boundary.USER.value, f"the simulated user is at fault: {fault}")

    def _fault(self, text: str, messages: Sequence[Mapping[str, Any]], opening: bool) -> str | None:
        if not text.strip():
            return "You said nothing."
        if opening and any(stop in text for stop in self._stops):
            return "You ended the conversation before you said what you want."
        if strange := invented(text, [str(m.get("content") or "") for m in messages]):
            return f"Nobody has told you {', '.join(strange[:3])}; do not make up identifiers."
        return None


def invented(text: str, known: Sequence[str]) -> list[str]:
    """Identifiers in `text` that stand in none of the known texts, however they are written."""
    there = _plain("\n".join(known))
    return [name for name in _IDENTIFIER.findall(text) if _plain(name) not in there]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
