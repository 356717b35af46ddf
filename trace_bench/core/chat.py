"""Helpers for your own environments: each writes or reads one message or tool of the OpenAI chat
format.

    @tool                                  # on a function or method with annotations
    Toolbox(self)                          # its tools: .schemas, .answer(message["tool_calls"])
    make_tool("search_stock", "Look up a share.", query="string")
    name, arguments = read_call(call)      # of message["tool_calls"]; ValueError for a bad one
    answer_call(call, "204.97")            # the message that answers it
    make_call("search_stock", query="IBM") # an assistant message with one call
    ask_until(ask, "judge", ...)           # a model's answer, asked for until it can be read

And what a tool's JSON Schema says, wherever it says so: behind references, and in the schemas that
it combines. One walk for all that read the schemas of tools, also in a worker, which has no
packages.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shorter
from types import MethodType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import unquote

from trace_bench.core.checked import parameters
from trace_bench.core.decode import fits
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.text import described
from trace_bench.core.types import Message, Tool, boundary_of

T = TypeVar("T")
_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
KINDS = _KINDS | {list: "array", dict: "object"}
_LATER = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# What a tool raises to say something to the agent; any other exception is a fault of its code.
_SAID = (ValueError, ConnectionError, FileNotFoundError, PermissionError, TimeoutError)


class tool:
    """Makes a function or method a tool. Its parameters are annotated with str, int, float, bool,
    Literal, list[X] or X | None, and those with a default may be left out. The docstring's first
    line describes the tool, its lines "name: text" the parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is no function, which a tool must be")
        if function.__code__.co_flags & _LATER:
            raise TypeError(f"the tool {function.__name__} is async or yields; needed: def, return")
        self.function = function
        about = (inspect.getdoc(function) or "").splitlines() or [""]
        texts = dict(re.findall(r"^(\w+): (.+)$", "\n".join(about[1:]), re.MULTILINE))
        arguments = dict(parameters(function))
        taken = inspect.signature(function).parameters.values()
        owner = function.__qualname__.rpartition(".")[0]
        if owner and not owner.endswith("<locals>"):
            arguments.pop(next(iter(arguments), ""), None)  # self
        if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in taken):
            raise TypeError(f"the tool {function.__name__} has a parameter without a name")
        properties: dict[str, dict[str, Any]] = {}
        for name, parameter in arguments.items():
            try:
                properties[name] = _schema(parameter.hint)
            except TypeError as error:
                raise TypeError(f"the tool {function.__name__}: `{name}` is {error}") from None
            properties[name] |= {"description": texts[name]} if name in texts else {}
        self.schema: Tool = make_tool(function.__name__, about[0], **properties)
        required = [name for name, parameter in arguments.items() if parameter.required]
        self.schema["function"]["parameters"]["required"] = required

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


class Toolbox:
    """The tools among `parts`: decorated functions, and objects with decorated methods. `schemas`
    is what an environment's `reset` offers."""

    def __init__(self, *parts: Any) -> None:
        self._tools: dict[str, tuple[Tool, Callable[..., Any]]] = {}
        for part in parts:
            members = {n: m for c in reversed(type(part).__mro__) for n, m in vars(c).items()}
            methods = [(m, MethodType(m, part)) for m in members.values() if isinstance(m, tool)]
            for one, called in [(part, part)] if isinstance(part, tool) else methods:
                name = one.schema["function"]["name"]
                if name in self._tools:
                    raise TypeError(f"two tools are called {name}")
                self._tools[name] = (one.schema, called)
        self.schemas = tuple(schema for schema, _ in self._tools.values())

    def answer(self, calls: Sequence[Any]) -> tuple[Message, ...]:
        """One message for each call, in order. A result that is no text is given as JSON; a bad
        call, and a tool that raises ValueError (or ConnectionError, FileNotFoundError,
        PermissionError, TimeoutError), is answered by an error for the agent to read."""
        return tuple(answer_call(call, self._run(call)) for call in calls)

    def _run(self, call: Any) -> str:
        try:
            name, arguments = read_call(call)
            if name not in self._tools:
                raise ValueError(f"unknown tool {shorter(name)}; allowed: {', '.join(self._tools)}")
            schema, called = self._tools[name]
            _check(schema["function"]["parameters"], arguments)
            result = called(**arguments)
        except _SAID as error:
            return described(error)
        return result if isinstance(result, str) else json.dumps(result)


def _schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of an annotation. Raises TypeError for one that has none."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return {"anyOf": [_schema(one) for one in inner]}
    if get_origin(hint) is Literal and len(kinds := {type(value) for value in inner}) == 1:
        return {**_schema(kinds.pop()), "enum": list(inner)}
    if get_origin(hint) is list:
        return {"type": "array", "items": _schema(inner[0])}
    if hint not in _KINDS:
        raise TypeError(f"{hint}; allowed: str, int, float, bool, Literal, list[X], X | None")
    return {"type": _KINDS[hint]}


def _check(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments that a schema does not allow."""
    properties = schema["properties"]
    allowed = f"allowed: {', '.join(properties) or 'none'}"
    for name in arguments:
        if name not in properties:
            raise ValueError(f"unknown argument {shorter(name)}; {allowed}")
    for name, kind in properties.items():
        if name in schema["required"] and name not in arguments:
            raise ValueError(f"the argument {name} is missing; {allowed}")
        if name in arguments and not _fits(arguments[name], kind):
            wanted = json.dumps({k: kind[k] for k in kind if k != "description"})
            value = shorter(arguments[name])
            raise ValueError(f"{name}={value} is not allowed; allowed: {wanted}")


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_fits(value, one) for one in schema["anyOf"])
    if schema["type"] == "array":
        return isinstance(value, list) and all(_fits(one, schema["items"]) for one in value)
    kind = _KINDS.get(type(value))
    if schema["type"] == "number" and kind in ("integer", "number"):
        kind = "number" if fits(value) else None
    return kind == schema["type"] and value in schema.get("enum", [value])


def make_tool(name: str, description: str, /, **arguments: str | Mapping[str, Any]) -> Tool:
    """A tool's schema. Each argument is the name of its JSON type ("string", "number", "integer",
    "boolean", followed by "?" if the argument is optional) or its whole JSON schema."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument, kind in arguments.items():
        properties[argument] = {"type": kind.rstrip("?")} if isinstance(kind, str) else dict(kind)
        if not (isinstance(kind, str) and kind.endswith("?")):
            required.append(argument)
    parameters = {"type": "object", "properties": properties, "required": required}
    return tool_json(name, description, parameters)


def tool_json(name: str, description: str, parameters: Any) -> Tool:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def make_call(name: str, /, **arguments: Any) -> Message:
    """An assistant message with one tool call, for instance for a reference trajectory."""
    return call_message(name, arguments)


def call_message(name: str, arguments: Mapping[str, Any], identity: str = "call_0") -> Message:
    """The same, for arguments of any name."""
    return text_message("", [call_json(identity, name, arguments)])


def text_message(text: str, calls: Sequence[Mapping[str, Any]] = ()) -> Message:
    message: Message = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(calls)} if calls else message


def opening_of(system: str, user: str) -> list[Message]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def with_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The messages with the agent's prompt: "\\nGuidance: <prompt>" is added to the first system
    message, or becomes one if there is none. Nothing else inserts the prompt."""
    if not guidance:
        return tuple(messages)
    out = list(messages)
    for i, message in enumerate(out):
        if message["role"] == "system":
            out[i] = {**message, "content": f"{message['content']}\nGuidance: {guidance}"}
            return tuple(out)
    return ({"role": "system", "content": f"Guidance: {guidance}"}, *out)


def call_json(identity: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """A tool call as a message has it, with its id."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def read_call(call: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the agent's tool call. Raises ValueError if the call names no function
    or its arguments are not a JSON object; the error's text may be shown to the agent."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("the call names no function")
    text = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        raise ValueError("the arguments are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return function["name"], arguments


def answer_call(call: Any, content: str) -> Message:
    """The tool message that answers a call, well-formed or not."""
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else ""
    identity = str(call.get("id") or "call_0")
    return {"role": "tool", "tool_call_id": identity, "name": str(name or ""), "content": content}


def ask_until(
    ask: Ask,
    role: str,
    messages: Sequence[Message],
    schema: Mapping[str, Any],
    read: Callable[[str], T],
    *,
    tries: int,
    longest: int,
) -> T:
    """The answer of the model in a role, as `read` reads it. After a ValueError of `read` the model
    is asked again with the error's text and the first `longest` characters of its answer, `tries`
    times in all. Raises EpisodeError at the role's boundary if no answer is usable."""
    asked, why = list(messages), ""
    for _ in range(tries):
        answer = ask(role, asked, schema)
        try:
            return read(answer)
        except ValueError as error:
            why = str(error)
        asked = [
            *messages,
            {"role": "assistant", "content": answer[:longest]},
            {"role": "user", "content": f"This cannot be used: {why}. Answer again."},
        ]
    raise EpisodeError(
        boundary_of(role).value, f"the {role} gave no usable answer in {tries} tries: {why}"
    )


_SHAPES = {"properties": "object", "additionalProperties": "object", "items": "array"}
_SHAPES |= {"minimum": "number", "maximum": "number"}
"""What a schema is about that names no type."""
_ONE_OF = ("anyOf", "oneOf", "if", "then", "else")
_OPEN = {"patternProperties", "unevaluatedProperties", "dependentSchemas", *_ONE_OF}


@dataclass(frozen=True)
class Arguments:
    """What a tool takes. `schemas`: of each argument that has a name; `others`: whether it takes
    more, or it cannot be told."""

    schemas: Mapping[str, Any]
    required: tuple[str, ...]
    others: bool

    @property
    def undescribed(self) -> list[str]:
        """What is required and cannot be passed."""
        return [] if self.others else [n for n in self.required if n not in self.schemas]


def arguments_of(parameters: Any, root: Any = None) -> Arguments:
    """Those of a tool whose `parameters` have this schema. `root`: of which it is a part."""
    every, always = (list(parts(parameters, root or parameters, every)) for every in (True, False))
    schemas: dict[str, list[Any]] = {}
    for part in every:
        named = part.get("properties")
        for name, one in named.items() if isinstance(named, Mapping) else ():
            schemas.setdefault(name, []).append(one)
    required = [n for part in always for n in _list(part.get("required")) if isinstance(n, str)]
    said = [part["additionalProperties"] for part in always if "additionalProperties" in part]
    free = not any("properties" in part for part in every) or any(_OPEN & p.keys() for p in always)
    others = any("patternProperties" in part for part in always) or (
        not any(one is False for one in said) if said else free
    )
    one_each = {n: all_[0] if len(all_) == 1 else {"anyOf": all_} for n, all_ in schemas.items()}
    return Arguments(one_each, tuple(dict.fromkeys(required)), others)


def types_of(schema: Any, root: Any) -> tuple[set[str], list[Any]]:
    """(the types of JSON, as far as the schema says so, that a value may have; the values that it
    lists, whose types are not among those)."""
    types: set[str] = set()
    listed: list[Any] = []
    for part in parts(schema, root):
        if part.get("enum") or "const" in part:
            listed += [*_list(part.get("enum")), *([part["const"]] if "const" in part else [])]
        elif kind := part.get("type"):
            types |= {str(one) for one in (kind if isinstance(kind, list) else [kind])}
        else:
            types |= {kind for key, kind in _SHAPES.items() if key in part}
    return types, listed


def parts(schema: Any, root: Any, every: bool = True) -> Iterator[Mapping[str, Any]]:
    """The schema and all others that speak of the same value, each once. `every`: also those that
    hold in one case of several."""
    waiting, seen = [schema], set[int]()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [_target(one.get("$ref"), root), *_list(one.get("allOf"))]
        for key in _ONE_OF if every else ():
            waiting += _list(one.get(key)) or [one.get(key)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _target(reference: Any, root: Any) -> Any:
    """What a reference leads to (`#/$defs/A`, `#/oneOf/0`); None if to nothing here."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for step in filter(None, unquote(reference[1:]).split("/")):
        root = root if isinstance(root, Mapping) else {f"{n}": v for n, v in enumerate(_list(root))}
        root = root.get(step.replace("~1", "/").replace("~0", "~"))
    return root
