"""A request for a chat completion, checked at one boundary with limits. Fields that would change
the answer and that are not honoured here are refused by name.

Conversations arrive whole with each request. A request goes on with an earlier answer if all up to
that answer is as before; then the prompt only grows, by the tokens that were sampled."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from trace_bench.core.chat import call_json
from trace_bench.core.checked import number
from trace_bench.core.decode import convert, shaped
from trace_bench.core.limits import Limits, Unreadable, fault_of, read
from trace_bench.core.protocols import Router, RoutesTurns
from trace_bench.core.store import canonical
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import Message, Tool
from trace_bench.play.steps import with_guidance

SHAPES = Limits(2**18, depth=64, items=20_000)
"""Of a request's tools, and of the schema of its answer."""
_ARGUMENTS = Limits(2**20)
Zero = Annotated[float, Meta(ge=0, le=0)]
Text = Annotated[str, Meta(min_length=1, max_length=1000)]


@dataclass(frozen=True)
class ServeSettings:
    """What a server allows."""

    name: str = "agent"
    """the agent's name for clients"""
    body: int = field(default=2**20, metadata=number(1024, 2**30))
    """bytes of a request"""
    tokens: int = field(default=512, metadata=number(1, 2**20))
    """the most tokens of an answer, and what it gets if the request names no number"""
    requests: int = field(default=256, metadata=number(1, 100_000))
    """the most answers in flight, those that wait for the engine included"""
    patience: float = field(default=30.0, metadata=number(0.1))
    """seconds that a client may take for a head, for a body, for a part of an answer"""
    grace: float = field(default=30.0, metadata=number(0))
    """seconds for answers under way when it is stopped"""


@dataclass(frozen=True)
class Model:
    """What a client may ask for by name. `routed`: the agent's router chooses the adapter; else it
    is `adapter` (None: the base model). `prompted`: the agent's prompt is added."""

    routed: bool = False
    adapter: str | None = None
    prompted: bool = True


class Refused(Exception):
    """A request that is answered with an error. `status`: of HTTP; `param`: the field at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        """In OpenAI's shape."""
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
class ResponseFormat:
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class _StreamOptions:
    include_usage: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A checked request. `messages` are the whole conversation, `seed` is reduced to 64 bits, and
    `tools` are none where the choice of a tool is. Fields without effect here: what the client
    notes for itself, and numbers with the only value that is honoured."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | _RequestTool = "auto"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    n: Annotated[int, Meta(ge=1, le=16)] = 1
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: Text | Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    seed: Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)] | None = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    response_format: ResponseFormat = ResponseFormat("text")
    presence_penalty: Zero = 0.0
    frequency_penalty: Zero = 0.0
    logit_bias: Annotated[dict[str, float], Meta(max_length=0)] = field(default_factory=dict)
    user: Any = None
    metadata: Any = None
    store: Any = None
    parallel_tool_calls: Any = None
    service_tier: Any = None

    @property
    def most(self) -> int | None:
        """The most tokens of the answer, if the request says so."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of the answer; None for text."""
        if self.response_format.type == "text":
            return None
        named = self.response_format.json_schema or {}
        return named.get("schema", {"type": "object"})  # type: ignore[no-any-return]

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools of which the answer must be a call; empty if it need be none."""
        if isinstance(self.tool_choice, str):
            return self.tools if self.tool_choice == "required" else ()
        name = self.tool_choice.function.name
        return tuple(t for t in self.tools if t["function"]["name"] == name)


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
        for name, shape in (("tools", ask.tools), ("response_format", ask.schema)):
            if shape and (fault := fault_of(shape, SHAPES)):
                raise Unreadable(f"`{name}`: {fault}")
    except Unreadable as error:
        field = re.match(r"`(\w+)", str(error))
        raise Refused(400, str(error), param=field[1] if field else None) from error
    ask = replace(ask, messages=_plain(ask.messages))
    _check(ask, most)
    return replace(ask, tools=()) if ask.tool_choice == "none" else ask


def _check(ask: ChatRequest, most: int) -> None:
    """Raises Refused for what each field alone does not show."""
    roles = [m["role"] for m in ask.messages]
    form = ask.response_format
    has_schema = form.json_schema is not None and isinstance(form.json_schema.get("schema"), dict)
    forced = ask.tool_choice == "required" or not isinstance(ask.tool_choice, str)
    wrong = {
        "messages must be a list with at least one message": not roles,
        "messages: the first message must be the system's or the user's":
            roles[:1] in (["assistant"], ["tool"]),
        "messages: the last message must not be the assistant's own": roles[-1:] == ["assistant"],
        f"max_tokens is {ask.most}; allowed: 1 to {most}": (ask.most or 1) > most,
        "response_format.json_schema must have a `schema`, an object":
            form.type == "json_schema" and not has_schema,
        f"response_format of type {form.type} has no json_schema":
            form.type != "json_schema" and form.json_schema is not None,
        "tool_choice asks for a call of a tool that is not in tools": forced and not ask.callable,
        "top_logprobs needs logprobs": ask.top_logprobs > 0 and not ask.logprobs,
    }  # fmt: skip
    for text, true in wrong.items():
        if true:
            raise Refused(400, text, param=re.split(r"\W", text)[0])


def _plain(given: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages as an episode has them: with a text, whole calls, and the names of tools."""
    names: dict[str, str] = {}  # id of a call -> the name of the tool
    out = []
    for one in given:
        content = one.get("content") or ""
        text = content if isinstance(content, str) else "".join(p["text"] for p in content)
        role = "system" if one["role"] == "developer" else one["role"]
        message: Message = {"role": role, "content": text}
        if role == "assistant" and one.get("tool_calls"):
            made = [(call.get("id", ""), call["function"]) for call in one["tool_calls"]]
            message["tool_calls"] = [
                call_json(identity, f["name"], f.get("arguments") or "{}") for identity, f in made
            ]
            names |= {c["id"]: c["function"]["name"] for c in message["tool_calls"]}
        if role == "tool":
            message["tool_call_id"] = made_for = one.get("tool_call_id") or ""
            message["name"] = one.get("name") or names.get(made_for, "")
        out.append(message)
    return tuple(out)


# -- which conversation a request goes on with -----------------------------------------------------


def choose(router: Router, ask: ChatRequest, prompt: str) -> Any:
    """The router's choice for the next turn, under the agent's prompt: from the conversation's
    first messages, or from all of them if it chooses anew at every turn."""
    if isinstance(router, RoutesTurns) and _answered(ask):
        return router.next(with_guidance(ask.messages, prompt), ask.tools)
    roles = [m["role"] for m in ask.messages]
    opening = roles.index("assistant") if "assistant" in roles else len(roles)
    return router.route(with_guidance(ask.messages[:opening], prompt), ask.tools)


def new_messages(ask: ChatRequest) -> tuple[Message, ...]:
    return ask.messages[_answered(ask) :]


def key_before(ask: ChatRequest) -> str | None:
    """The key of the conversation that the request goes on with; None if it is its first."""
    end = _answered(ask)
    return _key(ask, ask.messages[:end]) if end else None


def key_after(ask: ChatRequest, answer: Message) -> str:
    """The key of the conversation that ends with an answer to the request."""
    return _key(ask, [*ask.messages, answer])


def _answered(ask: ChatRequest) -> int:
    """How many messages there are up to the agent's last turn, this included."""
    places = [i for i, m in enumerate(ask.messages) if m["role"] == "assistant"]
    return places[-1] + 1 if places else 0


def _key(ask: ChatRequest, messages: Sequence[Message]) -> str:
    said = [ask.model, list(ask.tools), [_counts(m) for m in messages]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _counts(message: Message) -> list[Any]:
    """What of a message counts. Clients number calls anew, and write arguments in their own way."""
    content = message["content"]
    if message["role"] != "assistant":
        return [message["role"], content]
    calls = [c["function"] for c in message.get("tool_calls", ())]
    named = [[f["name"], _arguments(f["arguments"])] for f in calls]
    return ["assistant", content.strip(), named]


def _arguments(text: str) -> str:
    try:
        return canonical(read(text, _ARGUMENTS))
    except Unreadable:
        return text
