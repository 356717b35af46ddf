"""The state of an object that was passed in Python, as plain data for the run's identity:
`Suite(size=24)` and `Suite(size=48)` give different runs.

The state is the constructor's arguments if the object keeps all of them in attributes of the same
names (with or without a leading underscore), else all attributes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import pickle
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from trace_bench.core.checked import parameters, takes_any
from trace_bench.core.errors import UserError
from trace_bench.core.store import canonical

DEEPEST = 12  # levels of objects within objects
LONGEST = 4000  # characters; a longer state is stored as a hash


def name_of(target: Any) -> str:
    """ "module:attribute" of a class or function, or of an object's class."""
    if isinstance(target, functools.partial):
        return name_of(target.func)
    named = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    return f"{named.__module__}:{named.__qualname__}"


def state_of(target: Any, where: str) -> Any:
    """The object's state as JSON-safe data, equal for equal arguments. `where`: the setting. Raises
    UserError if the object is nested too deeply."""
    if isinstance(target, PurePath):
        return str(target)
    if not (found := dict(_attributes(target))):
        return {}
    data = {name: _plain(value, where, DEEPEST) for name, value in found.items()}
    text = canonical(data)
    if len(text) > LONGEST:
        return {"sha256": hashlib.sha256(text.encode()).hexdigest()[:16]}
    return data


def _plain(value: Any, where: str, left: int) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)  # JSON has no nan and no inf
    if isinstance(value, Enum | PurePath):
        return str(value)
    if left == 0:
        raise UserError(
            f"the object in `{where}` is nested more than {DEEPEST} levels deep, so that it cannot "
            "be part of the run's identity. Give a class or function instead, and its arguments "
            "as options."
        )
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, where, left - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where, left - 1) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(canonical(_plain(inner, where, left - 1)) for inner in value)
    inner = {name: _plain(v, where, left - 1) for name, v in _attributes(value)}
    named = name_of(value)
    if inner or inspect.isclass(value) or inspect.isroutine(value):
        return {"is": named, **inner} if inner else named
    return {"is": named, "sha256": _pickled(value)}


def _attributes(target: Any) -> Iterator[tuple[str, Any]]:
    """An object's constructor arguments, or else all its attributes; a function's closure; nothing
    for a class."""
    if inspect.isclass(target):
        return
    if isinstance(target, functools.partial):
        yield from {"args": target.args, **target.keywords}.items()
    elif inspect.ismethod(target):
        yield "self", target.__self__
    elif inspect.isfunction(target):
        cells = zip(target.__code__.co_freevars, target.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells)
    elif dataclasses.is_dataclass(target):
        yield from ((f.name, getattr(target, f.name)) for f in dataclasses.fields(target))
    else:
        yield from _arguments(target)


def _arguments(target: Any) -> Iterator[tuple[str, Any]]:
    slots = [n for cls in type(target).__mro__ for n in vars(cls).get("__slots__", ())]
    held = {n: getattr(target, n) for n in slots if n[:2] != "__" and hasattr(target, n)}
    held |= vars(target) if hasattr(target, "__dict__") else {}
    names = parameters(type(target))
    kept = {n: n if n in held else f"_{n}" for n in names}
    if names and not takes_any(type(target)) and held.keys() >= set(kept.values()):
        yield from ((name, held[place]) for name, place in kept.items())
    else:
        yield from held.items()


def _pickled(value: Any) -> str | None:
    """Hash of an object that holds data without attributes, such as an array; None if it cannot be
    pickled."""
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
    except Exception:  # a lock or a file: no run depends on it
        return None
