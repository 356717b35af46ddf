"""The boundary of values: a text or plain data from outside becomes a declared value, or an
Unreadable that names the key, what was given and what is allowed. What a value may hold, the
annotations of its dataclass say. msgspec reads them; it is imported when something is read, since
a worker in a container has none."""

from __future__ import annotations

import functools
import re
import types as pytypes
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from trace_bench.core.limits import Limits, Unreadable, fault_of, measure, read
from trace_bench.core.types import (
    Message,
    Score,
    Step,
    StopReason,
    Stored,
    Trajectory,
    to_json,
)

T = TypeVar("T")
FILE = Limits(2**30, depth=100, items=50_000_000)
"""Of a line or a file in a run folder: more than an episode of a million tokens."""
MESSAGES = Limits(2**20)
"""Of a step's messages, and of its tools: more than a context, read by a tokenizer in seconds."""
SCORE = Limits(16 * 2**20)


def decode(text: bytes, kind: type[T], limits: Limits = FILE) -> T:
    """The value of a JSON text. Raises Unreadable."""
    import msgspec

    measure(text, limits)
    try:
        value: T = _decoder(kind).decode(text)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        _refuse(error, kind, read(text, limits))
    except (ValueError, RecursionError):
        # Half a character, which JSON may hold, or no JSON: the other reader takes it or says why.
        return convert(read(text, limits), kind)
    return _whole(value)


def convert(data: Any, kind: type[T]) -> T:
    """The value of plain data. Raises Unreadable, also for a key that the kind does not have."""
    if isinstance(data, Mapping) and is_dataclass(kind):
        names = [f.name for f in fields(kind)]
        if others := [str(key) for key in data if key not in names]:
            raise Unreadable(f"`{others[0][:60]}` is no key here; allowed: {', '.join(names)}")
    return _converted(data, kind)


def _converted(data: Any, kind: type[T]) -> T:
    import msgspec

    try:
        value = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        _refuse(error, kind, data)
    return _whole(value)


def step_of(result: Any) -> Step:
    """What a stranger's `reset` or `step` returned. Raises Unreadable."""
    if not isinstance(result, Step):
        raise Unreadable(f"expected a trace_bench.Step, got {type(result).__name__}")
    messages, tools = result.messages, result.tools
    for name, values in (("messages", messages), ("tools", tools)):
        if values and (fault := fault_of(values, MESSAGES)):
            raise Unreadable(f"the {name} cannot be used: {fault}")
    score = None if result.score is None else score_of(result.score)
    data = {"messages": messages, "tools": tools, "done": result.done, "stop": result.stop}
    step = _converted(data, Step)
    return step if score is None else _whole(replace(step, score=score))


def score_of(result: Any) -> Score:
    """An environment's score. Raises Unreadable."""
    import msgspec

    if not isinstance(result, Score):
        raise Unreadable(f"expected a trace_bench.Score, got {type(result).__name__}")
    try:
        try:
            data = msgspec.to_builtins(result, str_keys=True)
        except (TypeError, ValueError):  # such as a number of numpy's
            data = to_json(result)
        score = _converted(data, Score)
        fault = fault_of(data, SCORE)
    except RecursionError:
        fault = "it is nested too deeply"
    if fault is not None:
        raise Unreadable(f"the score cannot be used: {fault}")
    return score


def messages_of(data: Any) -> list[Message]:
    """Messages of any role, as plain data. Raises Unreadable."""
    shaped(data, _Message, "messages")
    return [dict(message) for message in data]


@dataclass(frozen=True)
class _Function:
    name: str


@dataclass(frozen=True)
class _Called:
    """A tool, or a call of one."""

    function: _Function


@dataclass(frozen=True, kw_only=True)
class _Message:
    """What a message has, besides what a policy or an environment adds to it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[_Called, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Said(_Message):
    content: str


def shaped(data: Any, kind: Any, name: str) -> None:
    """Raises Unreadable unless the data are a list of objects with (at least) the kind's fields."""
    import msgspec

    try:
        msgspec.convert(data, tuple[kind, ...])
    except msgspec.ValidationError as error:
        _refuse(error, tuple[kind, ...], data, name)


def _whole(value: T) -> T:
    """The value, with what its annotations cannot say checked too."""
    if isinstance(value, Stored | Trajectory):
        played = value.trajectory if isinstance(value, Stored) else value
        shaped(played.messages, _Message, "messages")
        shaped(played.tools, _Called, "tools")
    elif isinstance(value, Step):
        shaped(value.messages, _Said, "messages")
        if value.tools:
            shaped(value.tools, _Called, "tools")
        if value.stop is StopReason.ERROR and value.score is not None:
            raise Unreadable("a step that stops with an error has no score")
    return value


@functools.lru_cache(maxsize=64)
def _decoder(kind: Hashable) -> Any:
    import msgspec

    return msgspec.json.Decoder(kind)


_PLACE = re.compile(r"(.*?)(?: - at `\$(.*?)`)?", re.DOTALL)
_WANTED = re.compile(r"Expected (.*?)(?:, got .*)?", re.DOTALL)


def _refuse(error: Exception, kind: Any, data: Any, name: str = "") -> NoReturn:
    """Raises Unreadable with what msgspec says, the value given and what is allowed there."""
    parts = _PLACE.fullmatch(str(error))
    said, place = (parts[1], parts[2] or "") if parts else (str(error), "")
    key = f"{name}{place}".lstrip(".") or "it"
    for part in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        try:
            data, kind = data[part[0] or int(part[1])], _inner(kind, part[0])
        except (LookupError, TypeError):
            raise Unreadable(f"`{key}`: {said}") from error
    if said.startswith("Invalid enum value"):
        allowed = ", ".join(_names(kind))
    elif wanted := _WANTED.fullmatch(said):
        allowed = _range(kind) or wanted[1].replace("`", "")
    elif missing := re.fullmatch("Object missing required field `(.*)`", said):
        raise Unreadable(f"`{key}.{missing[1]}` is missing".replace("`it.", "`")) from error
    else:
        raise Unreadable(f"`{key}`: {said}") from error
    raise Unreadable(f"`{key}` is {shown(data)}; allowed: {allowed}") from error


def _inner(kind: Any, name: str) -> Any:
    for one in _alternatives(kind):
        one = get_args(one)[0] if get_origin(one) is Annotated else one
        if name and is_dataclass(one):
            return get_type_hints(one, include_extras=True)[name]
        if not name and get_args(one):
            return get_args(one)[0]
    return Any


def _names(kind: Any) -> Iterable[str]:
    for one in _alternatives(kind):
        if get_origin(one) is Literal:
            return map(str, get_args(one))
        if isinstance(one, type) and issubclass(one, Enum):
            return [str(member.value) for member in one]
    return ()


def _range(kind: Any) -> str:
    """What a number may be, of which msgspec names the bound that was passed alone."""
    for one in _alternatives(kind):
        base, *metas = get_args(one) if get_origin(one) is Annotated else (None,)
        for low, high in [(meta.ge, meta.le) for meta in metas if meta.ge is not None]:
            words = "a whole number" if base is int else "a number"
            words += f" from {low}" if low > -(2**53) else ""
            return words + (f" to {high}" if high is not None and high < 2**53 else "")
    return ""


def _alternatives(kind: Any) -> tuple[Any, ...]:
    union = get_origin(kind) in (Union, pytypes.UnionType)
    return get_args(kind) if union else (kind,)


def shown(value: Any) -> str:
    """The value in a message, shortened; its type if it cannot be shown."""
    try:
        return f"{value!r:.120}"
    except Exception:  # nested without end, a number of many digits, a `__repr__` that raises
        return f"a value of type {type(value).__name__}"
