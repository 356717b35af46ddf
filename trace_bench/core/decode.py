"""The boundary of values: a text or plain data from outside (a worker, a server, a model, a file, a
stranger's environment) becomes a declared value, or an Unreadable that names the key, what was
given and what is allowed. What a value may hold, the annotations of its dataclass say. What passes
is small, shallow and has numbers that a float can hold, so that nothing behind the boundary can run
out of memory, of recursion or of range.

msgspec reads the annotations. It is imported when something is read, since a worker in a container
has none."""

from __future__ import annotations

import functools
import json
import math
import re
import types as pytypes
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trace_bench.core.run_files import unpacked
from trace_bench.core.types import (
    HEADS,
    Message,
    Score,
    Step,
    StopReason,
    Stored,
    Trajectory,
    to_json,
)

T = TypeVar("T")


class Unreadable(ValueError):
    """A text that is no JSON, or exceeds a limit. The error's text says why."""


class Unsuitable(Unreadable):
    """A value that is not `allowed` in its `place` ("[0].weight"; "" is all that was given).
    `names`: all that are allowed, where it must be one of several."""

    def __init__(self, place: str, value: Any, allowed: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(f"`{place or 'it'}` is {brief(value)}; allowed: {allowed}")
        self.place, self.value, self.allowed, self.names = place, value, allowed, names


class TooMuch(Unreadable):
    """It exceeds a limit: of size, of depth, of elements, or of what a number can be."""


@dataclass(frozen=True)
class Limits:
    """The most that a value may have. `size`: bytes of its JSON text, or characters of all texts in
    it; `depth`: lists and objects inside each other; `items`: elements of all of them together."""

    size: int
    depth: int = 64
    items: int = 1_000_000


FILE = Limits(2**30, depth=100, items=50_000_000)
"""Of a line or a file in a run folder: more than an episode of a million tokens."""
MESSAGES = Limits(2**20)
"""Of a step's messages, and of its tools: more than a context, read by a tokenizer in seconds."""
SCORE = Limits(16 * 2**20)


def read(text: str | bytes, limits: Limits) -> Any:
    """The value of a JSON text (UTF-8). Unreadable, also for NaN and what no float can hold."""
    measure(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"), limits)
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, parse_int=_integer, parse_float=_real, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise Unreadable(f"byte {error.start} is not UTF-8") from error
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def fault_of(value: Any, limits: Limits) -> str | None:
    """The first thing in a value that is no JSON (tuples are) or exceeds a limit, in words."""
    size = items = 0
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        value, depth = left.pop()
        if isinstance(value, str):
            size += str.__len__(value)  # a class of a stranger's may say another
        elif value is None or isinstance(value, int | float):
            if value is not None and not fits(value):
                return "a number in it is not finite, or too large for a float"
        elif isinstance(value, dict | list | tuple | Mapping):
            if depth == limits.depth:
                return f"it is nested more than {limits.depth} deep"
            keyed = value if type(value) is not list and isinstance(value, Mapping) else None
            for part in value:  # counted, as its class may say another length
                items += 1
                if items > limits.items:
                    return f"it has more than {limits.items} elements"
                if keyed is None:
                    left.append((part, depth + 1))
                elif isinstance(part, str):
                    size += str.__len__(part)
                    left.append((keyed[part], depth + 1))
                else:
                    return f"a key is no text but {type(part).__name__}"
        else:
            return f"{type(value).__name__} is no JSON"
        if size > limits.size:
            return f"its texts have more than {limits.size} characters"
    return None


def fits(number: float) -> bool:
    """Whether a whole or a real number is finite and not too large for a float."""
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number without end
        return False


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_MARKS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))


def measure(text: bytes, limits: Limits) -> None:
    """Raises TooMuch for a JSON text with too much in it, before anything is built from it. Few
    passes over the bytes, none of them in Python: it costs a fraction of what reading costs."""
    if len(text) > limits.size:
        raise TooMuch(f"it is longer than {limits.size} bytes")
    text = _ESCAPED.sub(b"", text)  # without escaped quotes, each quote begins or ends a text
    if len(text) > limits.items:
        bare = b"".join(text.split(b'"')[::2])
        if bare.count(b",") + bare.count(b"[") + bare.count(b"{") > limits.items:
            raise TooMuch(f"it has more than {limits.items} elements")
    marks = text.translate(_MARKS, _OTHERS).replace(b'""', b"")
    left, size = b"".join(marks.split(b'"')[::2]), -1
    for _ in range(limits.depth):
        if size == len(left):
            break
        size = len(left)
        left = left.replace(b"[]", b"")  # the innermost ones
    if left.count(b"[") > limits.depth or (size != len(left) and left):
        raise TooMuch(f"it is nested more than {limits.depth} deep")


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) < 400 else None
    if number is None or not fits(number):
        raise TooMuch(f"the number {digits[:20]}... of {len(digits)} digits is too large")
    return number


def _real(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise TooMuch(f"the number {digits[:20]} is too large")
    return number


def _constant(name: str) -> Any:
    raise TooMuch(f"{name} is not JSON")


def decode(text: bytes, kind: type[T], limits: Limits = FILE) -> T:
    """The value of a JSON text. Raises Unreadable."""
    import msgspec

    if kind not in HEADS:  # of which next to nothing is built
        measure(text, limits)
    try:
        value: T = _decoder(kind).decode(text)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, read(text, limits)) from error
    except (ValueError, RecursionError):
        # Half a character, which JSON may hold, or no JSON: the other reader takes it or says why.
        return _converted(read(text, limits), kind)
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
        raise _refusal(error, kind, data) from error
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
        raise _refusal(error, tuple[kind, ...], data, name) from error


def _whole(value: T) -> T:
    """The value, with what its annotations cannot say checked too, and tokens where they belong."""
    if isinstance(value, Stored):
        try:
            if value.tokens is not None:
                value = unpacked(value, value.tokens)  # type: ignore[assignment]
        except (ValueError, zlib.error) as error:
            raise Unreadable(f"`tokens` cannot be read: {error}") from error
        _whole(value.trajectory)
    elif isinstance(value, Trajectory):
        shaped(value.messages, _Message, "messages")
        shaped(value.tools, _Called, "tools")
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
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_WORDS |= {type(None): "null", tuple: "a list", list: "a list", dict: "an object"}
_WORDS |= {Mapping: "an object", Path: "a path"}


def _refusal(error: Exception, kind: Any, data: Any, name: str = "") -> Unreadable:
    """What msgspec says, the value given and what is allowed there."""
    said, place = _PLACE.fullmatch(str(error)).groups("")  # type: ignore[union-attr]
    key = f"{name}{place}".lstrip(".")
    if missing := re.fullmatch("Object missing required field `(.*)`", said):
        return Unreadable(f"`{f'{key}.{missing[1]}'.lstrip('.')}` is missing")
    for part in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", place):  # [...]: of a mapping
        try:
            data, kind = data[part[0] or int(part[1])], _inner(kind, part[0])
        except (LookupError, TypeError, ValueError):
            return Unreadable(f"`{key or 'it'}`: {said}")
    if kind is Any or "length" in said:  # the words of the type would not say it
        allowed = said.removeprefix("Expected ").replace("`", "")
        return Unsuitable(key, data, allowed)
    names = tuple(name for one in alternatives(kind) for name in _names(one))
    allowed = " or ".join(dict.fromkeys(map(_words, alternatives(kind))))
    return Unsuitable(key, data, allowed, names)


def _inner(kind: Any, name: str) -> Any:
    for one in map(_bare, alternatives(kind)):
        if name and isinstance(one, type):
            return get_type_hints(one, include_extras=True).get(name, Any)
        if not name and get_args(one):
            return get_args(one)[0]
    return Any


def _words(kind: Any) -> str:
    """What a value of the type may be. msgspec names of a range the bound that was passed alone."""
    if names := _names(kind):
        return ", ".join(names)
    bare = _bare(kind)
    words = _WORDS.get(get_origin(bare) or bare, "an object" if is_dataclass(bare) else str(bare))
    for meta in getattr(kind, "__metadata__", ()):
        words += f" from {meta.ge}" if meta.ge is not None and meta.ge > -(2**53) else ""
        words += f" to {meta.le}" if meta.le is not None and meta.le < 2**53 else ""
        words += f" to below {meta.lt}" if meta.lt is not None else ""
    return words


def _names(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of another type, itself."""
    union = get_origin(kind) in (Union, pytypes.UnionType)
    return get_args(kind) if union else (kind,)


def brief(value: Any) -> str:
    """The value in a message, shortened; its type if it cannot be shown."""
    try:
        return f"{value!r:.120}"
    except Exception:  # nested without end, a number of many digits, a `__repr__` that raises
        return f"a value of type {type(value).__name__}"
