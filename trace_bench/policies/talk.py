"""An episode's conversation as tokens: as policies render it themselves (`Talk`), and as servers
say that they read and wrote it (`Conversation`), whose answers are read here or refused.

A prompt is what came before and the tokens of the new messages: what was sampled is never tokenized
again. Many templates of models that think leave the thoughts of earlier turns out (Qwen3's do once
the user speaks again). Then what came before is not what the model is to read: the prompt is the
template's rendering of the whole conversation, and with it begins another stretch. `Turn.kept` says
how much of the tokens so far it shares. A server renders the conversation anew for every turn, and
a call as JSON, not as it was sampled: there any turn may begin another stretch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trace_bench.core.chat import call_json, text_message
from trace_bench.core.decode import Limits, Unreadable, fault_of
from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.text import spoken
from trace_bench.core.types import Message, Tool, Turn
from trace_bench.policies import formats
from trace_bench.policies.chat import Chat

LONGEST = 2**18  # tokens of a prompt
MESSAGE = Limits(2**20)  # of the agent's message: more than any turn can hold
LARGEST_ID = 2**24  # no vocabulary has as many tokens
LEAST_LOGPROB = -1000.0  # a token with less is never sampled; vLLM writes -9999 for minus infinity
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

    def hear(self, sampled: Sequence[int], finished: bool) -> formats.Reply:
        """Adds the sampled turn, which is `finished` if it ended by itself."""
        reply = self._chat.parse(sampled, self._turns, self.tools)
        self.ids = (*self.ids, *sampled)
        self.finished = finished
        self._turns += 1
        if self._anew:
            self._history.append(reply.remembered)
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


def shared(one: tuple[int, ...], two: Sequence[int]) -> int:
    """How many token ids both begin with."""
    if tuple(two[: len(one)]) == one:
        return len(one)
    pairs = enumerate(zip(one, two, strict=False))
    return next((n for n, (a, b) in pairs if a != b), len(two))


@dataclass
class Conversation:
    """The state of an episode at a server between its turns."""

    server: int
    adapter: str | None
    tools: tuple[Tool, ...]
    history: list[Message] = field(default_factory=list)
    ids: tuple[int, ...] = ()  # all tokens so far
    exact: bool = True  # `ids` are the tokens that the server read and sampled
    rewritten: bool = False  # a prompt did not begin with all earlier tokens
    tight: bool = False  # the context cannot hold the prompt and a whole turn any more
    reloaded: bool = False  # the server had lost its adapter once
    turns: int = 0

    def turn(self, request: TurnRequest, reply: Mapping[str, Any]) -> Turn:
        """The turn in a server's response. Raises Unreadable for what no model can have said."""
        choice = first_choice(reply)
        if fault := fault_of(choice["message"], MESSAGE):
            raise Unreadable(f"its message cannot be used: {fault}")
        tokens = self._tokens(request, reply, choice)
        said = read_message(choice["message"], self.turns)
        self.history.append(said.remembered)
        self.turns += 1
        return Turn(
            request.messages,
            said.message,
            adapter=self.adapter,
            malformed=said.malformed,
            truncated=choice.get("finish_reason") == "length",
            thoughts=said.thoughts,
            **tokens,
        )

    def _tokens(
        self, request: TurnRequest, reply: Mapping[str, Any], choice: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The turn's tokens by the names of their fields; none if the server does not return ids.
        vLLM's log-probabilities are at temperature 1, so there are none at other temperatures."""
        whole, sampled = reply.get("prompt_token_ids"), choice.get("token_ids")
        check_ids(whole, "the prompt", LONGEST)
        check_ids(sampled, "the turn", request.max_tokens + 1)
        if not self.exact or not whole or sampled is None:
            self.exact = False
            return {}
        kept = min(shared(self.ids, whole), max(0, len(whole) - 1))
        anew = kept < len(self.ids)
        self.rewritten |= anew
        self.ids = (*whole, *sampled)
        content = (choice.get("logprobs") or {}).get("content") or ()
        logprobs = tuple(entry["logprob"] for entry in content)
        check_logprobs(logprobs)
        return {
            "prompt_ids": tuple(whole[kept:]),
            "token_ids": tuple(sampled),
            "logprobs": tuple(map(float, logprobs)) if request.temperature in (0, 1) else (),
            "kept": kept if anew else None,
        }


def first_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a chat completion. Raises Unreadable for any other answer."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        said = str(reply.get("text") or json.dumps(reply, ensure_ascii=False))
        raise Unreadable(f"it is no chat completion: {said[:200]!r}")
    return choices[0]


def read_message(message: Mapping[str, Any], turn: int) -> formats.Reply:
    """The assistant's turn from a server's response. Calls that the server left in the text are
    parsed too, in Hermes' format, and its thoughts are parted (`spoken`)."""
    thoughts, content = spoken(message, formats.CALL_BEGIN)
    calls = message.get("tool_calls") or []
    if not calls:
        return formats.read_calls(thoughts, content, turn, formats.HERMES)
    content = content.strip()
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") or {}
        name, arguments = str(function.get("name")), function.get("arguments") or "{}"
        if not isinstance(arguments, str):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        try:
            formats.as_call({"name": name, "arguments": formats.json_of(arguments)})
        except formats.Malformed as error:
            text = f"{content}<tool_call>{json.dumps(name)} {arguments}</tool_call>"
            return formats.Reply(text_message(text), thoughts, str(error))
        out.append(call_json(f"call_{turn}_{i}", name, arguments))
    return formats.Reply(text_message(content, out), thoughts)


def check_ids(ids: Any, whose: str, most: int) -> None:
    """Raises Unreadable unless it is a list of at most `most` token ids (or there is none)."""
    if ids is None:
        return
    if not isinstance(ids, list):
        raise Unreadable(f"the token ids of {whose} are {type(ids).__name__}, not a list")
    if len(ids) > most:
        raise Unreadable(f"{len(ids)} token ids for {whose}, which can have at most {most}")
    wrong = [token for token in ids if type(token) is not int or not 0 <= token < LARGEST_ID]
    if wrong:
        raise Unreadable(f"{str(wrong[0])[:40]!r} in {whose} is not the id of a token")


def submitted(
    requests: Iterable[TurnRequest], submit: Callable[[TurnRequest], None]
) -> Iterator[tuple[TurnRequest, TurnReply]]:
    """Submits each; the replies of those that fail, each of which fails its episode only."""
    for request in requests:
        try:
            submit(request)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            yield request, TurnReply(request.episode, None, error=text)


def check_logprobs(logprobs: Sequence[Any]) -> None:
    """Raises Unreadable for what is no number, above zero, or too low to be sampled."""
    for value in logprobs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not LEAST_LOGPROB <= value <= 1e-3:
            raise Unreadable(f"{str(value)[:40]} is not the log-probability of a sampled token")
