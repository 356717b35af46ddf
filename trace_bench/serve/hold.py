"""What holds one answer to its request, token by token: a grammar, texts that end it, and the share
of the probability that is drawn from; and the answer that a turn then is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from trace_bench.core.types import Message, Turn
from trace_bench.policies.chat import Chat
from trace_bench.policies.engine.guide import Guide
from trace_bench.serve.completion import Completion
from trace_bench.serve.request import ChatRequest

if TYPE_CHECKING:
    from torch import Tensor


class Hold:
    """The `policies.engine.scheduler.TokenGuide` of one answer. `grammar`: its form, if it has one.
    A text of `ask.stops` ends the turn as soon as it is there."""

    def __init__(self, ask: ChatRequest, chat: Chat, grammar: Guide | None) -> None:
        self._ask, self._chat, self._grammar = ask, chat, grammar
        self._ids: list[int] = []
        self._over = False

    def allowed(self, logits: Tensor) -> Tensor:
        """logits [vocabulary] -> bool [vocabulary]: the tokens that may come next."""
        import torch

        if self._over:
            only = torch.zeros_like(logits, dtype=torch.bool)
            only[self._chat.stop] = True
            return only
        mask = torch.ones_like(logits, dtype=torch.bool)
        if self._grammar is not None:
            mask = self._grammar.allowed(logits)
        if self._ask.top_p == 1 or self._ask.temperature == 0:
            return mask
        scores = logits.masked_fill(~mask, -torch.inf) / self._ask.temperature
        chances, order = scores.softmax(-1).sort(descending=True)
        likely = torch.zeros_like(mask)
        likely[order[chances.cumsum(-1) - chances < self._ask.top_p]] = True
        return mask & likely

    def take(self, token: int) -> None:
        if self._grammar is not None:
            self._grammar.take(token)
        if self._ask.stops:
            self._ids.append(token)
            text = self._chat.partial(self._ids)
            self._over = any(stop in text for stop in self._ask.stops)

    @property
    def error(self) -> str:
        """Why the answer could not be held to its form any more; empty if it was."""
        return "" if self._grammar is None else self._grammar.error


def sayable(text: str, stops: Sequence[str]) -> str:
    """What of a text that still grows no stop can take back."""
    ended = before(text, stops)
    return ended if ended != text else text[: len(text) + 1 - max(map(len, stops), default=1)]


def before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stops."""
    return text[: min((text.find(s) for s in stops if s in text), default=len(text))]


def answer_of(turn: Turn, prompt: int, ask: ChatRequest, chat: Chat) -> Completion:
    """`prompt`: tokens before the turn. Calls get new ids: the conversation may hold the others."""
    text = turn.reply["content"].strip()
    message: Message = {**turn.reply, "content": before(text, ask.stops)}
    cut = message["content"] != text
    finish = "length" if turn.truncated and not cut else "stop"
    if message.get("tool_calls"):
        message["tool_calls"] = [{**c, "id": f"call_{uuid4().hex}"} for c in message["tool_calls"]]
        finish = "tool_calls"
    logprobs = _logprobs(turn, ask, chat) if ask.logprobs else None
    return Completion(message, finish, prompt, len(turn.token_ids), logprobs)


def _logprobs(turn: Turn, ask: ChatRequest, chat: Chat) -> list[Mapping[str, Any]]:
    said = ""
    found: list[Mapping[str, Any]] = []
    for token, logprob in zip(turn.token_ids, turn.logprobs, strict=True):
        if token == chat.stop or before(said, ask.stops) != said:
            break
        piece = chat.piece(token)
        said += piece
        octets = list(piece.encode())
        found.append({"token": piece, "logprob": logprob, "bytes": octets, "top_logprobs": []})
    return found
