"""A request for a chat completion: one parser for what clients send, with a clear refusal of the
rest. Fields that would change the answer and that no backend here honours are refused by name.

Conversations arrive whole with each request. A request goes on with an earlier answer if all up to
that answer is as before; then the prompt only grows, by the tokens that were sampled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.checked import number
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.protocols import Router, RoutesTurns
from trace_bench.core.store import canonical
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import ROLES, Message, Tool
from trace_bench.play.steps import with_guidance

IGNORED = frozenset(("user", "metadata", "store", "parallel_tool_calls", "service_tier"))
FIXED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "top_p": (1,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "stop": ([],), "logprobs": (False,), "logit_bias": ({},), "top_logprobs": (0,),
    "tool_choice": ("auto", "none"),
}  # fmt: skip
"""Fields with the only values that are honoured (null and leaving them out are always fine)."""
_ARGUMENTS = Limits(2**20)
OWN = frozenset(
    ("model", "messages", "tools", "temperature", "max_tokens", "max_completion_tokens", "seed",
     "stream", "stream_options", "response_format")
)  # fmt: skip


@dataclass(frozen=True)
class ServeSettings:
    """What a server allows. name: the agent's name for clients. body: bytes of a request. tokens:
    the most that an answer may have, and what it gets if the request names no number. requests: in
    flight at once, those that wait for the engine included; more are refused. grace: seconds that
    answers under way are given when the server is stopped."""

    name: str = "agent"
    body: int = field(default=2**20, metadata=number(1024, 2**30))
    tokens: int = field(default=512, metadata=number(1, 2**20))
    requests: int = field(default=256, metadata=number(1, 100_000))
    grace: float = field(default=30.0, metadata=number(0))


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


@dataclass(frozen=True)
class ChatRequest:
    """A checked request. `messages` are the whole conversation; `usage`: a stream ends with the
    token counts. `response_format`: as given; None for text."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    stream: bool = False
    usage: bool = False
    response_format: Mapping[str, Any] | None = None

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of the answer; None for text."""
        if self.response_format is None:
            return None
        named: Mapping[str, Any] = self.response_format.get("json_schema", {})
        schema: Mapping[str, Any] = named.get("schema", {"type": "object"})
        return schema


def parse(body: bytes, limits: Limits, most: int) -> ChatRequest:
    """The request in a body. `most`: the most tokens of an answer. Raises Refused."""
    try:
        data = without_surrogates(read(body, limits))
    except Unreadable as error:
        raise Refused(400, f"the body is not usable JSON: {error}") from error
    if not isinstance(data, dict):
        raise Refused(400, "the body must be a JSON object")
    _only_known(data)
    tools = () if data.get("tool_choice") == "none" else _tools(data.get("tools"))
    return ChatRequest(
        model=_typed(data, "model", str, required=True),
        messages=_messages(data.get("messages")),
        tools=tools,
        temperature=_number(data, "temperature", 0, 2, 1.0),
        max_tokens=_most(data, most),
        seed=_seed(data),
        stream=bool(_typed(data, "stream", bool)),
        usage=_usage(data),
        response_format=_format(data),
    )


def _only_known(data: Mapping[str, Any]) -> None:
    for name, value in data.items():
        if name in OWN or name in IGNORED:
            continue
        if name not in FIXED:
            raise Refused(400, f"unknown field {name[:80]!r}", param=name[:80])
        if value is not None and value not in FIXED[name]:
            allowed = " or ".join(map(repr, FIXED[name]))
            raise Refused(400, f"{name} can only be {allowed} here", param=name)


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise Refused(400, "messages must be a list with at least one message", param="messages")
    calls: dict[str, str] = {}  # id -> the name of the tool
    out = tuple(_message(m, f"messages[{i}]", calls) for i, m in enumerate(given))
    if out[0]["role"] in ("assistant", "tool"):
        raise Refused(400, "the first message must be the system's or the user's", param="messages")
    if out[-1]["role"] == "assistant":
        raise Refused(400, "the last message must not be the assistant's own", param="messages")
    return out


def _message(given: Any, where: str, calls: dict[str, str]) -> Message:
    role = given.get("role") if isinstance(given, dict) else None
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise Refused(400, f"{where}.role must be one of {', '.join(ROLES)}", param=where)
    out: Message = {"role": role, "content": _content(given.get("content"), where)}
    if role == "assistant" and given.get("tool_calls"):
        out["tool_calls"] = _calls(given["tool_calls"], where, calls)
    if role == "tool":
        made_for = given.get("tool_call_id")
        out["tool_call_id"] = made_for if isinstance(made_for, str) else ""
        name = given.get("name")
        out["name"] = name if isinstance(name, str) else calls.get(out["tool_call_id"], "")
    return out


def _content(given: Any, where: str) -> str:
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [given]
    texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    if len(texts) < len(parts) or not all(isinstance(t, str) for t in texts):
        raise Refused(400, f"{where}.content must be a text, or text parts", param=where)
    return "".join(map(str, texts))


def _calls(given: Any, where: str, calls: dict[str, str]) -> list[dict[str, Any]]:
    out = []
    for item in given if isinstance(given, list) else [None]:
        call = item if isinstance(item, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(400, f"{where}.tool_calls: each needs a function's name", param=where)
        arguments = function.get("arguments") or "{}"
        if not isinstance(arguments, str):
            raise Refused(400, f"{where}.tool_calls: arguments must be a text", param=where)
        call_id = str(call.get("id") or "")
        calls[call_id] = function["name"]
        named = {"name": function["name"], "arguments": arguments}
        out.append({"id": call_id, "type": "function", "function": named})
    return out


def _tools(given: Any) -> tuple[Tool, ...]:
    if given is None:
        return ()
    for tool in given if isinstance(given, list) else [None]:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(400, "tools must be a list of functions, each with a name", param="tools")
    return tuple(given)


def _most(data: Mapping[str, Any], most: int) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = _typed(data, name, int)
        if value is None:
            continue
        if not 1 <= value <= most:
            raise Refused(400, f"{name} is {value}; allowed: 1 to {most}", param=name)
        return int(value)
    return None


def _seed(data: Mapping[str, Any]) -> int | None:
    value = _typed(data, "seed", int)
    if value is not None and abs(value) >= 2**63:
        raise Refused(400, "seed must fit 64 bits", param="seed")
    return None if value is None else int(value)


def _number(data: Mapping[str, Any], name: str, low: float, high: float, default: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refused(400, f"{name} must be a number from {low} to {high}", param=name)
    return float(value)


def _typed(data: Mapping[str, Any], name: str, kind: type, required: bool = False) -> Any:
    value = data.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refused(400, f"{name} must be {_KINDS[kind]}", param=name)
    return value


def _format(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    given: Mapping[str, Any] = _typed(data, "response_format", dict) or {"type": "text"}
    kind, named = given.get("type"), given.get("json_schema")
    if kind not in ("text", "json_object", "json_schema"):
        text = "response_format.type must be text, json_object or json_schema"
        raise Refused(400, text, param="response_format")
    has_schema = isinstance(named, dict) and isinstance(named.get("schema"), dict)
    if kind == "json_schema" and not has_schema:
        text = "response_format.json_schema must have a `schema`, an object"
        raise Refused(400, text, param="response_format")
    if kind != "json_schema" and named is not None:
        text = f"response_format of type {kind} has no json_schema"
        raise Refused(400, text, param="response_format")
    return None if kind == "text" else given


def _usage(data: Mapping[str, Any]) -> bool:
    options = _typed(data, "stream_options", dict) or {}
    return options.get("include_usage") is True


_KINDS = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}


def opening(ask: ChatRequest) -> tuple[Message, ...]:
    """The messages before the agent's first turn, by which the router decides."""
    roles = [m["role"] for m in ask.messages]
    return ask.messages[: roles.index("assistant")] if "assistant" in roles else ask.messages


def choose(router: Router, ask: ChatRequest, prompt: str) -> Any:
    """The router's choice for the next turn, under the agent's prompt: from the conversation's
    first messages, or from all of them if it chooses anew at every turn."""
    if isinstance(router, RoutesTurns) and _answered(ask):
        return router.next(with_guidance(ask.messages, prompt), ask.tools)
    return router.route(with_guidance(opening(ask), prompt), ask.tools)


def new_messages(ask: ChatRequest) -> tuple[Message, ...]:
    """The messages since the agent's last turn."""
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
    said = [ask.model, list(ask.tools), [_plain(m) for m in messages]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _plain(message: Message) -> list[Any]:
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
