"""What a server answers, as a value or refused: the message with its calls, token ids and
log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core.chat import call_json, text_message
from trace_bench.core.limits import Unreadable
from trace_bench.core.types import Message
from trace_bench.policies.formats import (
    THINK,
    THOUGHT,
    Malformed,
    Reply,
    apart,
    as_call,
    json_of,
    read_reply,
)
from trace_bench.policies.formats.hermes import Hermes

_HERMES = Hermes()
LARGEST_ID = 2**24  # no vocabulary has as many tokens
LEAST_LOGPROB = -1000.0  # a token with less is never sampled; vLLM writes -9999 for minus infinity


def first_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a chat completion. Raises Unreadable for any other answer."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        said = str(reply.get("text") or json.dumps(reply, ensure_ascii=False))
        raise Unreadable(f"it is no chat completion: {said[:200]!r}")
    return choices[0]


def as_chat(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A completion of a prompt in tokens in the form of a chat completion."""
    choice = first_choice(reply)
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    said = {
        **choice,
        "message": {"role": "assistant", "content": choice["text"]},
        "logprobs": {"content": [{"logprob": value} for value in logprobs]},
    }
    return {**reply, "prompt_token_ids": choice.get("prompt_token_ids"), "choices": [said]}


def read_message(message: Mapping[str, Any], turn: int) -> Reply:
    """The assistant's turn from a server's response. Calls that the server left in the text are
    parsed too, in Hermes' format, and so are thoughts, also those that begin in the prompt."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise TypeError(f"the message's content is {type(content).__name__}, not a text")
    thoughts = message.get("reasoning") or message.get("reasoning_content") or ""
    if not isinstance(thoughts, str):
        raise TypeError(f"the message's reasoning is {type(thoughts).__name__}, not a text")
    first = content.partition(THOUGHT)[0]
    opened = first != content and THINK not in first and Hermes.begin not in first
    reply = read_reply(content, turn, _HERMES, opened=opened)
    thoughts = "\n".join(filter(None, (thoughts.strip(), reply.thoughts)))
    calls = message.get("tool_calls") or []
    if not calls:
        return replace(reply, thoughts=thoughts)
    content = apart(content, Hermes.begin, opened)[1].strip()
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") or {}
        name, arguments = str(function.get("name")), function.get("arguments") or "{}"
        if not isinstance(arguments, str):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        try:
            as_call({"name": name, "arguments": json_of(arguments)})
        except Malformed as error:
            text = f"{content}<tool_call>{json.dumps(name)} {arguments}</tool_call>"
            return Reply(text_message(text), thoughts, str(error))
        out.append(call_json(f"call_{turn}_{i}", name, arguments))
    return Reply(text_message(content, out), thoughts)


def remembered(reply: Reply) -> Message:
    """The turn as servers get it back: with its thoughts, which their template keeps or drops, by
    vLLM's present and former name."""
    if not reply.thoughts:
        return reply.message
    return {**reply.message, "reasoning": reply.thoughts, "reasoning_content": reply.thoughts}


def shared(one: tuple[int, ...], two: Sequence[int]) -> int:
    """How many token ids both begin with."""
    if tuple(two[: len(one)]) == one:
        return len(one)
    pairs = enumerate(zip(one, two, strict=False))
    return next((n for n, (a, b) in pairs if a != b), len(two))


def check_ids(ids: Any, whose: str, most: int, vocabulary: int = LARGEST_ID) -> None:
    """Raises Unreadable unless it is a list of at most `most` token ids (or there is none)."""
    if ids is None:
        return
    if not isinstance(ids, list):
        raise Unreadable(f"the token ids of {whose} are {type(ids).__name__}, not a list")
    if len(ids) > most:
        raise Unreadable(f"{len(ids)} token ids for {whose}, which can have at most {most}")
    if (
        set(map(type, ids)) <= {int}
        and min(ids, default=0) >= 0
        and max(ids, default=0) < vocabulary
    ):
        return
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise Unreadable(f"{str(token)[:40]!r} in {whose} is not the id of a token")


def check_logprobs(logprobs: Sequence[Any]) -> None:
    """Raises Unreadable unless all are numbers, none above zero (but for rounding) and none too low
    to be sampled."""
    for value in logprobs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not LEAST_LOGPROB <= value <= 1e-3:
            raise Unreadable(f"{str(value)[:40]} is not the log-probability of a sampled token")
