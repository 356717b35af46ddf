"""Routing by the base model's own word (the paper's step 4): the question lists what each adapter
is for and asks for one letter; the letter with the highest next-token probability decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Need, Policy, Router
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing import Evidence, Expert, Route

LETTERS = Need(
    "policy", Policy.label_logprobs, "docs/routing.md",
    "With method.route=linear no model is asked.",
)  # fmt: skip

VERSION = 1  # of the question, stored in the agent
_SYSTEM = (
    "You choose the skill that a request needs most. Answer with the letter of one skill and "
    "nothing else.\n{skills}"
)
_BASE = "none of these: the request needs no special skill"


@dataclass(frozen=True)
class ZeroShot(Route):
    """The base model is asked for the letter of one of the adapters' descriptions, or of "none of
    these" (published)."""

    asks = True

    name: Literal["zero_shot"] = "zero_shot"

    @property
    def needs(self) -> tuple[Need, ...]:
        return (LETTERS,)

    def fit(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        skills = [[e.adapter.name, e.description] for e in experts]
        return {"kind": "zero_shot", "skills": skills, "prompt": VERSION}


def first_message(messages: Sequence[Message]) -> str:
    """What the base model is asked about: the first user message, or else the last message."""
    for message in messages:
        if message["role"] == "user":
            return str(message["content"])
    return str(messages[-1]["content"]) if messages else ""


class ZeroShotRouter(Router):
    """`skills`: (adapter, what it is for). The base model (or the adapter `otherwise`) is one more
    choice, and is chosen if no letter is a likely answer. Ties go to the earlier letter."""

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not (isinstance(model, Policy) and model.has(Policy.label_logprobs)):
            raise UserError(
                "a zero-shot router asks the base model for letters, and this policy has none to "
                "ask. Change `policy` to local or openai, or `method.route` to turn."
            )
        # A server answers several at once; here threads would make the batches those of the clock.
        self._model, self.waits = model, model.at_servers
        self.skills: list[tuple[str | None, str]] = [(n, str(w)) for n, w in description["skills"]]
        if not 1 <= len(self.skills) < len(ascii_uppercase):
            raise UserError(
                f"a zero-shot router with {len(self.skills)} skills; allowed: 1 to "
                f"{len(ascii_uppercase) - 1}."
            )
        self.otherwise: str | None = description.get("otherwise")

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | None:
        """Raises UserError where the server gives no probabilities."""
        offered = [*self.skills, (self.otherwise, _BASE)]
        letters = ascii_uppercase[: len(offered)]
        skills = "\n".join(f"{c}. {what}" for c, (_, what) in zip(letters, offered, strict=True))
        question: list[Message] = [
            {"role": "system", "content": _SYSTEM.format(skills=skills)},
            {"role": "user", "content": first_message(messages)},
        ]
        logprobs = self._model.label_logprobs(question, list(letters))
        if logprobs is None:
            raise UserError(
                "the server gives no log-probabilities, which a zero-shot router needs. Set "
                "`method.route` to turn, or use a server such as vLLM."
            )
        if not logprobs:
            return self.otherwise
        best = max(letters, key=lambda c: logprobs.get(c, float("-inf")))
        return offered[letters.index(best)][0]
