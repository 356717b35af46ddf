"""Routing by what a conversation's start is about: it is compared with stored examples, or the base
model itself is asked. The question lists what each adapter is for and asks for one letter; the
letter with the highest next-token probability decides (the paper's step 4)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from string import ascii_uppercase
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RanksLabels, Router
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing.merge import Mixture, mixture

VERSION = 1  # of the question, stored in the agent
_SYSTEM = (
    "You choose the skill that a request needs most. Answer with the letter of one skill and "
    "nothing else.\n{skills}"
)
_BASE = "none of these: the request needs no special skill"


def first_message(messages: Sequence[Message]) -> str:
    """The text that routing compares: the first user message, or else the last message."""
    for message in messages:
        if message["role"] == "user":
            return str(message["content"])
    return str(messages[-1]["content"]) if messages else ""


class RetrievalRouter(Router):
    """Nearest neighbours among stored examples. The similarity is a weighted mean of the TF-IDF
    cosine of the first messages and the cosine of the sets of tools (weight `tools_weight`). Of the
    nearest `top_k` examples, those with a similarity of at least `threshold` vote with it.

    The candidate with the most votes wins; the base model (null) is a candidate like any other,
    and it (or the adapter `otherwise`) wins if there are no votes. Ties go to the candidate that
    appears first in `examples`."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        examples = list(description["examples"])
        self.top_k = int(description.get("top_k", 5))
        self.threshold = float(description.get("threshold", 0.35))
        self.weight = float(description.get("tools_weight", 0.0))
        self.otherwise: str | None = description.get("otherwise")
        inside = 0.0 <= self.threshold <= 1.0 and 0.0 <= self.weight <= 1.0
        if not examples or self.top_k < 1 or not inside:
            raise UserError(
                f"retrieval router with {len(examples)} examples, top_k {self.top_k}, threshold "
                f"{self.threshold}, tools_weight {self.weight}; needed: at least one example, "
                "top_k >= 1, threshold and tools_weight in [0, 1]."
            )
        self.names: list[str | None] = [example[1] for example in examples]
        counts = [Counter(words(example[0])) for example in examples]
        documents = Counter(word for c in counts for word in c)
        self.vocabulary = {word: i for i, word in enumerate(sorted(documents))}
        self.idf = np.array(
            [math.log((1 + len(examples)) / (1 + documents[w])) + 1 for w in self.vocabulary]
        )
        self.matrix = np.stack([self._vector(c) for c in counts])
        self.tools = {name: i for i, name in enumerate(description.get("tools", ()))}
        self.tool_matrix = np.zeros((len(examples), len(self.tools)))
        for row, example in zip(self.tool_matrix, examples, strict=True):
            places = list(example[2]) if len(example) > 2 else []
            row[places] = 1.0 / math.sqrt(max(len(places), 1))

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | None:
        return self.choose(first_message(messages), [t["function"]["name"] for t in tools])

    def choose(self, text: str, tools: Sequence[str] = ()) -> str | None:
        """The adapter for a first message and the names of the tools at hand."""
        votes = self.votes(text, tools)
        return max(votes, key=lambda name: votes[name]) if votes else self.otherwise

    def votes(self, text: str, tools: Sequence[str] = ()) -> dict[str | None, float]:
        """The votes of the nearest examples by candidate, in order of the examples."""
        similarity = self.matrix @ self._vector(Counter(words(text)))
        if self.weight:
            known = [self.tools[name] for name in tools if name in self.tools]
            shared = self.tool_matrix[:, known].sum(1) / math.sqrt(max(len(tools), 1))
            similarity = (1.0 - self.weight) * similarity + self.weight * shared
        nearest = np.argsort(-similarity, kind="stable")[: self.top_k]
        votes: dict[str | None, float] = {}
        for i in sorted(nearest.tolist()):
            if similarity[i] > 0.0 and similarity[i] >= self.threshold:
                votes[self.names[i]] = votes.get(self.names[i], 0.0) + float(similarity[i])
        return votes

    def _vector(self, counts: Counter[str]) -> np.ndarray:
        """A unit vector [vocabulary]; unknown words are left out. All zeros if none is known."""
        vector = np.zeros(len(self.vocabulary))
        for word, count in counts.items():
            if (i := self.vocabulary.get(word)) is not None:
                vector[i] = count * self.idf[i]
        norm = float(np.linalg.norm(vector))
        return vector / norm if norm else vector


def words(text: str) -> list[str]:
    """Lowercase words and adjacent pairs; every number counts as the same word."""
    single = ["0" if w.isdigit() else w for w in re.findall(r"[a-z]+|\d+", text.lower())]
    return single + [f"{a} {b}" for a, b in pairwise(single)]


class ZeroShotRouter(Router):
    """`skills`: (adapter, what it is for). The base model (or the adapter `otherwise`) is one more
    choice, and is chosen if no letter is a likely answer. Ties go to the earlier letter. With a
    `share` above 0, the router returns a weighted sum of the smallest set of choices with that
    share of the probability."""

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not isinstance(model, RanksLabels):
            raise UserError(
                "a zero-shot router asks the base model for letters, and this policy has none to "
                "ask. Change `policy` to local or openai, or `method.route` to retrieval."
            )
        # A server answers several at once; here threads would make the batches those of the clock.
        self._model, self.waits = model, model.at_servers
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
        """The choice among these and the base model. Raises UserError without probabilities."""
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

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        self._retrieval = RetrievalRouter(description["retrieval"])
        self.otherwise: str | None = description.get("otherwise")
        asked = {**description["zero_shot"], "otherwise": self.otherwise}
        self._zero_shot = ZeroShotRouter(asked, model)
        self.waits = self._zero_shot.waits

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        names = [t["function"]["name"] for t in tools]
        votes = self._retrieval.votes(first_message(messages), names)
        near = [name for name in votes if name not in (None, self.otherwise)]
        return self._zero_shot.choose(messages, near) if near else self.otherwise
