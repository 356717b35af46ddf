"""A request for a chat completion, checked at one boundary with limits, and what answers it. Fields
that would change the answer and that are not honoured here are refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from trace_bench.core.chat import call_json, with_guidance
from trace_bench.core.decode import Limits, Unreadable, convert, fault_of, read, shaped
from trace_bench.core.protocols import Router
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import Message, Tool

TOOLS = Limits(2**18, depth=64, items=20_000)
"""Of a request's tools."""
Text = Annotated[str, Meta(min_length=1, max_length=1000)]


@dataclass(frozen=True)
class ServeSettings:
    """What a server allows. `name`: the agent's for clients; `tokens`: the most of an answer, and
    what it gets if the request names no number; `requests`: the most answers in flight, those that
    wait for the engine included; `body`: bytes of a request; `patience`: seconds in which a client
    sends a body and reads a part of an answer; `grace`: seconds for answers under way when the
    server is stopped."""

    name: str = "agent"
    tokens: int = 512
    requests: int = 256
    body: int = 2**20
    patience: float = 30.0
    grace: float = 30.0


@dataclass(frozen=True)
class Completion:
    """One answer. `end`: OpenAI's reason of its end; `prompt`, `completion`: tokens; `adapter`:
    that has acted."""

    message: Message
    end: str
    prompt: int
    completion: int
    adapter: str | None

    @property
    def usage(self) -> dict[str, int]:
        total = self.prompt + self.completion
        counts = {"prompt_tokens": self.prompt, "completion_tokens": self.completion}
        return {**counts, "total_tokens": total}


class Refused(Exception):
    """A request that is answered with an error. `status`: of HTTP; `param`: the field at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        other = "invalid_request_error" if self.status < 500 else "api_error"
        said = {"message": str(self), "type": kinds.get(self.status, other)}
        return {"error": {**said, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class _Part:
    type: Literal["text"]
    text: str


@dataclass(frozen=True)
class _RequestFunction:
    name: Text
    arguments: str | None = None


@dataclass(frozen=True)
class _Call:
    function: _RequestFunction
    id: str = ""


@dataclass(frozen=True)
class _RequestMessage:
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class _Named:
    name: Text


@dataclass(frozen=True)
class _RequestTool:
    function: _Named


@dataclass(frozen=True)
class _StreamOptions:
    include_usage: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A checked request. `messages` are the whole conversation, and `tools` are none where the
    choice of a tool is. `top_p` has the only value that is honoured."""

    model: str
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: Text | Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    seed: Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)] | None = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    top_p: Annotated[float, Meta(ge=1, le=1)] = 1.0

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop


def parse(body: bytes, limits: Limits, most: int) -> ChatRequest:
    """The request in a body. `most`: the most tokens of an answer. Raises Refused."""
    try:
        data = without_surrogates(read(body, limits))
    except Unreadable as error:
        raise Refused(400, f"the body is not usable JSON: {error}") from error
    if not isinstance(data, dict):
        raise Refused(400, "the body must be a JSON object")
    try:
        ask = convert({k: v for k, v in data.items() if v is not None}, ChatRequest)
        shaped(ask.messages, _RequestMessage, "messages")
        shaped(ask.tools, _RequestTool, "tools")
        if ask.tools and (fault := fault_of(ask.tools, TOOLS)):
            raise Unreadable(f"`tools`: {fault}")
    except Unreadable as error:
        field = re.match(r"`(\w+)", str(error))
        raise Refused(400, str(error), param=field[1] if field else None) from error
    roles = [one["role"] for one in ask.messages]
    if roles[-1] == "assistant" or not {"system", "developer", "user"} & {*roles}:
        text = "messages: one must be the user's or the system's, the last message no assistant's"
        raise Refused(400, text, param="messages")
    if (ask.most or 1) > most:
        raise Refused(400, f"max_tokens is {ask.most}; allowed: 1 to {most}", param="max_tokens")
    tools = () if ask.tool_choice == "none" else ask.tools
    return replace(ask, messages=_plain(ask.messages), tools=tools)


def _plain(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages as an episode has them: with a text, whole calls, and the names of tools."""
    names: dict[str, str] = {}  # id of a call -> the name of the tool
    out = []
    for one in messages:
        content = one.get("content") or ""
        text = content if isinstance(content, str) else "".join(p["text"] for p in content)
        role = "system" if one["role"] == "developer" else one["role"]
        message: Message = {"role": role, "content": text}
        if role == "assistant" and one.get("tool_calls"):
            functions = [(call.get("id", ""), call["function"]) for call in one["tool_calls"]]
            message["tool_calls"] = [
                call_json(call, f["name"], f.get("arguments") or "{}") for call, f in functions
            ]
            names |= {c["id"]: c["function"]["name"] for c in message["tool_calls"]}
        if role == "tool":
            message["tool_call_id"] = call = one.get("tool_call_id") or ""
            message["name"] = one.get("name") or names.get(call, "")
        out.append(message)
    return tuple(out)


def choose(router: Router, ask: ChatRequest, prompt: str) -> Any:
    """The router's choice, under the agent's prompt, from the conversation's opening, which ends
    with the user's first message (an assistant may have greeted before)."""
    roles = [m["role"] for m in ask.messages]
    first = roles.index("user") if "user" in roles else 0
    opening = roles.index("assistant", first) if "assistant" in roles[first:] else len(roles)
    return router.route(with_guidance(ask.messages[:opening], prompt), ask.tools)
