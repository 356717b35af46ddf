"""Sampling that is held to a JSON schema: which tokens may come next, as llguidance computes it.

JSON is written in the layout of `json.dumps`, with one space after a comma and a colon. White space
without end, in which a weak model can lose itself, is thereby ruled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trace_bench.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from trace_bench.policies.chat import Chat

LAYOUT: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
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

    def __init__(self, tokenizer: Any, vocabulary: int, chat: Chat) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise UserError(
                "answers by a schema (response_format) need the package llguidance: pip install "
                "'.[serve]'"
            ) from error
        self._matcher: Any = llguidance.LLMatcher
        self._stop, self._around, self._opened = chat.stop, chat.calls.around, chat.opened
        self._tags = tokenizer.get_added_vocab()  # texts that are tokens, which grammars name
        self._tokenizer = _readable(llguidance, tokenizer, vocabulary, chat.stop)

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
        shapes = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": f["name"]},
                    key: f.get("parameters") or {"type": "object"},
                },
                "required": ["name", key],
                "additionalProperties": False,
            }
            for f in functions
        ]
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


def _readable(library: Any, tokenizer: Any, vocabulary: int, stop: int) -> Any:
    """The tokenizer as the library's own. Raises UserError if it reads other bytes in tokens than
    those they stand for."""
    from tokenizers import Tokenizer, decoders

    why = "it has no tokenizer of the package tokenizers"
    if (core := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        copy = Tokenizer.from_str(core.to_str())
        copy.no_padding()
        copy.no_truncation()
        if "ByteLevel" in str(copy.pre_tokenizer):
            # The library looks at the decoder alone, which converted tokenizers write in other
            # ways, and would read their tokens as plain text.
            copy.decoder = decoders.ByteLevel()
        try:
            made = library.LLTokenizer(copy.to_str(), n_vocab=vocabulary, eos_token=stop)
            ids = core.encode(_PROBE, add_special_tokens=False).ids
            if made.decode_bytes(ids) == core.decode(ids).encode():
                return made
            why = "its tokens stand for other bytes than the library reads in them"
        except ValueError as error:
            why = str(error)
    raise UserError(
        f"answers by a schema (response_format) are not possible with this model's tokenizer: {why}"
    )
