"""What a server answers, as a value or refused: the message with its calls, token ids and
log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.types import Message
from trace_bench.policies.chat import parse_text

ARGUMENTS = Limits(2**20)  # of one tool call
LARGEST_ID = 2**24  # no vocabulary has as many tokens
LEAST_LOGPROB = -1000.0  # a token with less is never sampled; vLLM writes -9999 for minus infinity


def first_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a chat completion. Raises Unreadable for any other answer."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        said = str(reply.get("text") or json.dumps(reply, ensure_ascii=False))
        raise Unreadable(f"it is no chat completion: {said[:200]!r}")
    found: Mapping[str, Any] = choices[0]
    return found


def read_message(message: Mapping[str, Any], turn: int) -> tuple[Message, str | None]:
    """The assistant message from a server's response, and why a tool call in it could not be
    parsed (None: no error). Calls that the server left in the text are parsed too."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise TypeError(f"the message's content is {type(content).__name__}, not a text")
    content = content.strip()
    calls = message.get("tool_calls") or []
    if not calls:
        return parse_text(content, turn)
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") or {}
        name, arguments = str(function.get("name")), function.get("arguments") or "{}"
        if not isinstance(arguments, str):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        fault = _fault(arguments)
        if fault:
            text = f"{content}<tool_call>{json.dumps(name)} {arguments}</tool_call>"
            return {"role": "assistant", "content": text}, fault
        function = {"name": name, "arguments": arguments}
        out.append({"id": f"call_{turn}_{i}", "type": "function", "function": function})
    return {"role": "assistant", "content": content, "tool_calls": out}, None


def _fault(arguments: str) -> str | None:
    try:
        found = read(arguments, ARGUMENTS)
    except Unreadable as error:
        return f"not JSON: {error}"
    return None if isinstance(found, dict) else '"arguments" is not an object'


def check_ids(ids: Any, whose: str, most: int, vocabulary: int = LARGEST_ID) -> None:
    """Raises Unreadable unless it is a list of at most `most` token ids (or there is none)."""
    if ids is None:
        return
    if not isinstance(ids, list):
        raise Unreadable(f"the token ids of {whose} are {type(ids).__name__}, not a list")
    if len(ids) > most:
        raise Unreadable(f"{len(ids)} token ids for {whose}, which can have at most {most}")
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
