"""Limits on what comes from outside: a worker, a server, a model or a stranger's environment. What
passes is small, shallow and has numbers that a float can hold, so that nothing behind the boundary
can run out of memory, of recursion or of range."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Unreadable(ValueError):
    """A text that is no JSON, or exceeds a limit. The error's text says why."""


class TooMuch(Unreadable):
    """It exceeds a limit: of size, of depth, of elements, or of what a number can be."""


@dataclass(frozen=True)
class Limits:
    """The most that a value may have. `size`: bytes of its JSON text, or characters of all texts in
    it; `depth`: lists and objects inside each other; `items`: elements of all of them together."""

    size: int
    depth: int = 64
    items: int = 1_000_000


def read(text: str | bytes, limits: Limits) -> Any:
    """The value of a JSON text (UTF-8). Unreadable, also for NaN and what no float can hold."""
    measure(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"), limits)
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=_constant)
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


def _whole(digits: str) -> int:
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
