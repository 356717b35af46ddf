"""Routing by the base model itself: the prompt lists what each adapter is for and asks for one
letter; the letter with the highest next-token probability decides (the paper's method, step 4)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RanksLabels, Router
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing.merge import Mixture, mixture
from trace_bench.policies.routing.retrieval import RetrievalRouter, first_message

VERSION = 1  # of the prompt below, stored in the agent
_SYSTEM = (
    "You choose the skill that a request needs most. Answer with the letter of one skill and "
    "nothing else.\n{skills}"
)
_BASE = "none of these: the request needs no special skill"


class ZeroShotRouter(Router):
    """`skills`: (adapter, what it is for). The base model (or the adapter `otherwise`) is one more
    choice, and is chosen if no letter is a likely answer. Ties go to the earlier letter. With a
    `share` above 0, the router returns a weighted sum of the smallest set of choices with that
    share of the probability."""

    waits = True  # each choice waits for a request, so choices should run concurrently

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not isinstance(model, RanksLabels):
            raise UserError(
                "a zero-shot router asks the base model for letters, and this policy has none to "
                "ask. Change `policy` to local or openai, or `method.route` to retrieval."
            )
        self._model = model
        self.skills: list[tuple[str | None, str]] = [(n, str(w)) for n, w in description["skills"]]
        if not 1 <= len(self.skills) < len(ascii_uppercase):
            raise UserError(
                f"a zero-shot router with {len(self.skills)} skills; allowed: 1 to "
                f"{len(ascii_uppercase) - 1}."
            )

        self.share = float(description.get("share", 0.0))
        self.otherwise: str | None = description.get("otherwise")

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.choose(messages, [name for name, _ in self.skills])

    def choose(
        self, messages: Sequence[Message], among: Collection[str | None]
    ) -> str | Mixture | None:
        """The choice among these adapters and the base model. Raises UserError if the model gives
        no probabilities."""
        offered = [(name, what) for name, what in self.skills if name in among]
        offered.append((self.otherwise, _BASE))
        letters = ascii_uppercase[: len(offered)]
        skills = "\n".join(f"{c}. {what}" for c, (_, what) in zip(letters, offered, strict=True))
        question: list[Message] = [
            {"role": "system", "content": _SYSTEM.format(skills=skills)},
            {"role": "user", "content": first_message(messages)},
        ]
        found = self._model.label_logprobs(question, list(letters))
        if found is None:
            raise UserError(
                "the server gives no log-probabilities, which a zero-shot router needs. Set "
                "`method.route` to retrieval, or use a server such as vLLM."
            )
        if not found:
            return self.otherwise
        if self.share > 0:
            chances = [math.exp(found.get(c, float("-inf"))) for c in letters]
            names = [name for name, _ in offered]
            return mixture(list(zip(names, chances, strict=True)), self.share, self.otherwise)
        best = max(letters, key=lambda c: found.get(c, float("-inf")))
        return offered[letters.index(best)][0]


class BothRouter(Router):
    """Retrieval preselects adapters; the base model chooses among them."""

    waits = True

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        self._retrieval = RetrievalRouter(description["retrieval"])
        self.otherwise: str | None = description.get("otherwise")
        asked = {**description["zero_shot"], "otherwise": self.otherwise}
        self._zero_shot = ZeroShotRouter(asked, model)

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        names = [t["function"]["name"] for t in tools]
        votes = self._retrieval.votes(first_message(messages), names)
        near = [name for name in votes if name not in (None, self.otherwise)]
        return self._zero_shot.choose(messages, near) if near else self.otherwise
