"""An episode's conversation as tokens, for policies that render prompts themselves.

A prompt is what came before and the tokens of the new messages: what was sampled is never tokenized
again. Many templates of models that think leave the thoughts of earlier turns out (Qwen3's do once
the user speaks again). Then what came before is not what the model is to read: the prompt is the
template's rendering of the whole conversation, and with it begins another stretch. `Turn.kept` says
how much of the tokens so far it shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Tool, Turn
from trace_bench.policies.answers import remembered, shared
from trace_bench.policies.chat import Chat
from trace_bench.policies.formats import Reply

Thoughts = Literal["own", "keep"]


class Talk:
    """`thoughts`: own: of earlier turns as the template has them; keep: all stay, and the
    conversation is one stretch.

    messages, kept, new: of the latest prompt: what it answers, how many of the tokens before it
    goes on from (None: all), the tokens that it adds. ids: all tokens of the prompt and, once it
    is there, of the turn. adapter: that acts."""

    def __init__(
        self,
        chat: Chat,
        tools: Sequence[Tool],
        thoughts: Thoughts = "own",
        adapter: str | None = None,
    ) -> None:
        self.tools, self.adapter = tuple(tools), adapter
        self.messages: tuple[Message, ...] = ()
        self.kept: int | None = None
        self.new: tuple[int, ...] = ()
        self.ids: tuple[int, ...] = ()
        self.finished = True  # the last turn ended with the stop token
        self._chat, self._turns, self._stretches = chat, 0, 0
        self._anew = chat.drops and thoughts == "own"
        self._history: list[Message] = []  # these three only where prompts are rendered anew
        self._text = ""  # the last prompt, as the template writes it
        self._thought = ""  # in the last turn

    def ask(self, messages: Sequence[Message]) -> None:
        self.messages, kept = tuple(messages), len(self.ids)
        anew = self._rendered(messages) if self._anew else None
        if anew is not None:
            kept = min(shared(self.ids, anew), len(anew) - 1)
            self.new = anew[kept:]
        elif self._turns:
            self.new = self._chat.following(messages, self.finished)
        else:
            self.new = self._chat.first(messages, self.tools)
        self.kept = kept if kept < len(self.ids) else None
        self._stretches += self.kept is not None
        self.ids = (*self.ids[:kept], *self.new)

    def hear(self, sampled: Sequence[int], finished: bool) -> Reply:
        """Adds the sampled turn, which is `finished` if it ended by itself."""
        reply = self._chat.parse(sampled, self._turns, self.tools)
        self.ids = (*self.ids, *sampled)
        self.finished = finished
        self._turns += 1
        if self._anew:
            self._history.append(remembered(reply))
            self._thought = reply.thoughts
        return reply

    def turn(
        self, ids: tuple[int, ...], logprobs: tuple[float, ...], finished: bool, truncated: bool
    ) -> Turn:
        """The turn whose ids were sampled, heard as by `hear`."""
        reply = self.hear(ids, finished)
        return Turn(
            messages=self.messages,
            reply=reply.message,
            prompt_ids=self.new,
            token_ids=ids,
            logprobs=logprobs,
            adapter=self.adapter,
            malformed=reply.malformed,
            thoughts=reply.thoughts,
            truncated=truncated,
            kept=self.kept,
        )

    def seed(self, seed: int) -> int:
        """Of the stretch's random stream: it is read by places, which stretches share."""
        return stable_seed(seed, "stretch", self._stretches) if self._stretches else seed

    def _rendered(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """The ids of the whole prompt; None if it only goes on from what came before."""
        self._history += messages
        before, self._text = self._text, self._chat.render(self._history, self.tools)
        if not self._turns or self._chat.carries(before, self._text, self._thought):
            return None
        return self._chat.encode(self._text)
