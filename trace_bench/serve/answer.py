"""What holds one answer to its request, token by token: a grammar, texts that end it, and the share
of the probability that is drawn from; and the answer in the shape of OpenAI's chat completions,
whole or as server-sent events.

A schema is followed as llguidance computes it, in JSON in the layout of `json.dumps`, with one
space after a comma and a colon: white space without end, in which a weak model can lose itself, is
thereby ruled out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.types import Message, Turn
from trace_bench.policies.chat import Chat
from trace_bench.serve.request import ChatRequest

if TYPE_CHECKING:
    from torch import Tensor

LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
DONE = b"data: [DONE]\n\n"
_PROBE = 'A {"b": [1, "ü日"]}\n\tz'


class BadSchema(ValueError):
    """A schema that cannot be followed; the text says why."""


class Guide:
    """The state of one answer: `allowed` before each token, then `take`. A guide that has failed
    (`error`) only allows the end of the turn."""

    def __init__(self, matcher: Any, stop: int) -> None:
        self._matcher, self._stop = matcher, stop

    def allowed(self, logits: Tensor) -> Tensor:
        """bool [vocabulary]: the tokens that may come next, whatever their logits."""
        import torch

        bias = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8)
        return torch.from_numpy(bias != 0)

    def take(self, token: int) -> None:
        """Goes on by a token that was allowed."""
        if token != self._stop:
            self._matcher.consume_token(token)

    @property
    def error(self) -> str:
        """Why the answer could not be held to the schema any more; empty if it was."""
        return _words(self._matcher.get_error())


class Guides:
    """Makes guides for one model. Raises UserError if the package is missing or cannot work with
    the tokenizer."""

    def __init__(self, chat: Chat, vocabulary: int) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise UserError(
                "answers by a schema (response_format) need the package llguidance: pip install "
                "'.[serve]'"
            ) from error
        self._matcher: Any = llguidance.LLMatcher
        self._stop, self._around, self._opened = chat.stop, chat.calls.around, chat.opened
        self._tags = chat.tokenizer.get_added_vocab()  # texts that are tokens, which grammars name
        self._tokenizer = _readable(llguidance, chat, vocabulary)

    def guide(self, schema: Mapping[str, Any]) -> Guide:
        """A guide for one answer. Raises BadSchema for a schema that is wrong, refers to other
        documents, is too large, or uses what the library does not know (it ignores nothing)."""
        try:
            grammar = self._matcher.grammar_from_json_schema(json.dumps(schema), overrides=LAYOUT)
        except ValueError as error:
            raise BadSchema(_words(str(error))) from error
        return self._guide(grammar)

    def call(self, functions: Sequence[Mapping[str, Any]]) -> Guide:
        """A guide for a turn that is one call of one of these functions, as the model writes calls.
        Raises BadSchema for parameters that cannot be followed, and where a call is no JSON."""
        if self._around is None:
            raise BadSchema("this model's calls are no JSON, and cannot be held to a schema")
        begin, end, key = self._around
        closed = {"type": "object", "required": ["name", key], "additionalProperties": False}
        given = [(f["name"], f.get("parameters") or {"type": "object"}) for f in functions]
        shapes = [{**closed, "properties": {"name": {"const": n}, key: p}} for n, p in given]
        schema = json.dumps({"anyOf": shapes, "x-guidance": LAYOUT})
        before, after = (
            " ".join(p if p in self._tags else json.dumps(p) for p in part) for part in (begin, end)
        )
        lark = f"start: {before} call {after}\ncall: %json {schema}\n"
        return self._guide(self._matcher.grammar_from_lark(lark))

    def _guide(self, grammar: str) -> Guide:
        if self._opened:
            raise BadSchema("the model's prompt begins a thought, which a form would hold too")
        made = self._matcher(self._tokenizer, grammar, log_level=0)
        if made.is_error():
            raise BadSchema(_words(made.get_error()))
        return Guide(made, self._stop)


def _words(error: str) -> str:
    """The library's message in one line, without the states that it adds."""
    return " ".join(re.split("<state>|<grammar>", error)[0].split())[:300]


def _readable(library: Any, chat: Chat, vocabulary: int) -> Any:
    """The tokenizer as the library's own. Raises UserError if it reads other bytes in tokens than
    those they stand for."""
    from tokenizers import Tokenizer, decoders

    why = "it has no tokenizer of the package tokenizers"
    if (core := getattr(chat.tokenizer, "backend_tokenizer", None)) is not None:
        copy = Tokenizer.from_str(core.to_str())
        copy.no_padding()
        copy.no_truncation()
        if "ByteLevel" in str(copy.pre_tokenizer):
            # The library looks at the decoder alone, which converted tokenizers write in other
            # ways, and would read their tokens as plain text.
            copy.decoder = decoders.ByteLevel()
        try:
            made = library.LLTokenizer(copy.to_str(), n_vocab=vocabulary, eos_token=chat.stop)
            ids = core.encode(_PROBE, add_special_tokens=False).ids
            if made.decode_bytes(ids) == core.decode(ids).encode():
                return made
            why = "its tokens stand for other bytes than the library reads in them"
        except ValueError as error:
            why = str(error)
    raise UserError(
        f"answers by a schema (response_format) are not possible with this model's tokenizer: {why}"
    )


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


@dataclass(frozen=True)
class Completion:
    """One answer. `prompt`, `completion`: tokens. `end`: why it ended, and the log-probabilities
    if they are asked for, in OpenAI's shape."""

    message: Message
    end: Mapping[str, Any]
    prompt: int
    completion: int


@dataclass(frozen=True)
class AnswerShape:
    """The constant parts of one answer's JSON."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        choices = [{"index": i, "message": a.message, **a.end} for i, a in enumerate(answers)]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(answers)}

    def delta(self, index: int, **delta: Any) -> bytes:
        return self._event({"index": index, "delta": delta, "finish_reason": None})

    def last(self, index: int, answer: Completion) -> list[bytes]:
        """A choice's tool calls, log-probabilities and the reason of its end."""
        calls: Sequence[Mapping[str, Any]] = answer.message.get("tool_calls", ())
        called = [self.delta(index, tool_calls=[{"index": i, **c}]) for i, c in enumerate(calls)]
        return [*called, self._event({"index": index, "delta": {}, **answer.end})]

    def end(self, answers: Sequence[Completion], with_usage: bool) -> list[bytes]:
        head = {**self._head("chat.completion.chunk"), "choices": []}
        used = [event({**head, "usage": usage(answers)})] if with_usage else []
        return [*used, DONE]

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(answers: Sequence[Completion]) -> dict[str, int]:
    """The tokens of the prompt, which all answers to a request share, and of the answers."""
    prompt, completion = answers[0].prompt, sum(a.completion for a in answers)
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def answer_of(turn: Turn, prompt: int, ask: ChatRequest, chat: Chat) -> Completion:
    """`prompt`: tokens before the turn. Calls get new ids: the conversation may hold the others."""
    text = turn.reply["content"].strip()
    message: Message = {**turn.reply, "content": before(text, ask.stops)}
    cut = message["content"] != text
    end: dict[str, Any] = {"finish_reason": "length" if turn.truncated and not cut else "stop"}
    if message.get("tool_calls"):
        message["tool_calls"] = [{**c, "id": f"call_{uuid4().hex}"} for c in message["tool_calls"]]
        end["finish_reason"] = "tool_calls"
    if ask.logprobs:
        end["logprobs"] = {"content": _logprobs(turn, ask, chat)}
    return Completion(message, end, prompt, len(turn.token_ids))


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
