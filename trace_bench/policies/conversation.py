"""An episode at a server between its turns: what was said, and its tokens as they are there.

A server renders the conversation anew for every turn, so a prompt may not start with all earlier
tokens: thoughts are dropped, a call is rendered as JSON and not as it was sampled. Then begins
another stretch (`Turn.kept`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trace_bench.core.limits import Unreadable
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import Message, Tool
from trace_bench.policies.answers import check_ids, check_logprobs, read_message, shared
from trace_bench.policies.formats import Reply

if TYPE_CHECKING:
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.talk import Talk

SPARE_IDS = 2**14  # tokens that a template adds to a conversation


@dataclass
class Conversation:
    """The state of an episode between its turns."""

    server: int
    adapter: str | None
    tools: tuple[Tool, ...]
    history: list[Message] = field(default_factory=list)
    spoken: int = 0  # characters of tools and history as JSON
    ids: tuple[int, ...] = ()  # all tokens so far
    talk: Talk | None = None  # where prompts are rendered here
    exact: bool = True  # `ids` are the tokens that the server read and sampled
    rewritten: bool = False  # a prompt did not begin with all earlier tokens
    tight: bool = False  # the context cannot hold the prompt and a whole turn any more
    turns: int = 0
    reloaded: bool = False  # its adapter had to be loaded again

    def add(self, messages: Sequence[Message]) -> None:
        self.history += messages
        self.spoken += len(json.dumps(messages))  # in ASCII: no shorter than in UTF-8

    def said(
        self, choice: Mapping[str, Any], most: int, chat: Chat | None, vocabulary: int
    ) -> Reply:
        """The turn, read by the server's parsers, or by `chat` from its at most `most` ids."""
        if chat is None:
            return read_message(choice["message"], self.turns)
        ids = choice.get("token_ids")
        if ids is None:
            raise Unreadable("it has no token ids, which policy.parse=tokens reads (vLLM's do)")
        check_ids(ids, "the turn", most + 1, vocabulary)
        if self.talk is not None:
            return self.talk.hear(ids, bool(ids) and ids[-1] == chat.stop)
        return chat.parse(ids, self.turns, self.tools)

    def tokens(
        self,
        reply: Mapping[str, Any],
        choice: Mapping[str, Any],
        request: TurnRequest,
        vocabulary: int,
    ) -> tuple[int | None, tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """(how many of the earlier tokens the prompt begins with, if not all; the ids after them;
        sampled ids, their log-probabilities); empty if the server does not return ids. vLLM's
        log-probabilities are at temperature 1, so there are none at other temperatures. Raises
        Unreadable for ids and log-probabilities that no model can have given."""
        whole, sampled = reply.get("prompt_token_ids"), choice.get("token_ids")
        if whole or sampled:
            most = self.spoken + len(self.ids) + SPARE_IDS
            check_ids(whole, "the prompt", most, vocabulary)
            check_ids(sampled, "the turn", request.max_tokens + 1, vocabulary)
        if not self.exact or not whole or sampled is None:
            self.exact = False
            return None, (), (), ()
        kept = min(shared(self.ids, whole), max(0, len(whole) - 1))
        if anew := kept < len(self.ids):
            self.rewritten = True
        prompt = tuple(whole[kept:])
        self.ids = (*whole, *sampled)
        content = (choice.get("logprobs") or {}).get("content") or ()
        logprobs = tuple(entry["logprob"] for entry in content)
        check_logprobs(logprobs)
        known = tuple(map(float, logprobs)) if request.temperature in (0, 1) else ()
        return kept if anew else None, prompt, tuple(sampled), known
