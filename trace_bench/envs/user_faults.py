"""Detects faults of a simulated user and asks it again.

A user is at fault if it ends the conversation before it states its request, sends an empty message,
or names an identifier that occurs neither in its instructions nor in the conversation: the episode
would then differ from the scored task. The user gets a note and a second attempt; if that fails
too, the episode is a failure of the user and not of the agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Boundary

SECOND_CHANCES = 2
# Identifiers that a user cannot derive: addresses, order and reservation numbers, user ids, phone
# numbers. Dates, prices and counts are left out, since a user may compute those.
_IDENTIFIER = re.compile(
    r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"
    r"|#\w*\d\w*"
    r"|\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{5,}\b"
    r"|\b[a-z]+_[a-z]+_\d+\b"
    r"|\b\d{7,}\b"
    r"|\b\d{3}-\d{3}-\d{4}\b"
)


class CarefulAsk:
    """Asks for the user's message and checks it before it is used. `faults` counts the rejected
    answers."""

    def __init__(self, ask: Ask, stops: Sequence[str]) -> None:
        self._ask, self._stops = ask, tuple(stops)
        self.faults = 0

    def __call__(self, messages: Sequence[Mapping[str, Any]], opening: bool) -> str:
        """The user's next message. `messages`: the conversation from the user's side; `opening`:
        whether it is the first message. Raises EpisodeError(USER)."""
        talk = list(messages)
        for _ in range(SECOND_CHANCES + 1):
            text = self._ask("user", talk)
            fault = self._fault(text, messages, opening)
            if fault is None:
                return text
            self.faults += 1
            note = f"(To the model that plays the user: {fault} Answer again, as the user.)"
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


def invented(text: str, texts: Sequence[str]) -> list[str]:
    """Identifiers in `text` that occur in none of the known texts, in any spelling."""
    there = _plain("\n".join(texts))
    return [name for name in _IDENTIFIER.findall(text) if _plain(name) not in there]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
