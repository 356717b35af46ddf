"""What the members of a person's class are to the pipeline: the contract read from the class."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from trace_bench.core.protocols import abilities, members, required, written

ALIKE = 0.85  # difflib's ratio; `referense` and `reference` have 0.89
_ABSENT = object()


def faults(part: object, kind: type) -> list[str]:
    """Members of a class that inherits `kind` which cannot be what they should be, or look like a
    misspelt one."""
    part = written(part)
    if not isinstance(part, kind):
        return []
    own, where = _own(type(part)), _homes(kind)
    found = []
    for name in dict.fromkeys([*own, *vars(part)]):
        home = where.get(name)
        if home is not None and isinstance(part, home):
            if why := _misshapen(getattr(part, name, _ABSENT), home, name):
                found.append(f"{type(part).__name__}.{name} {why}")
        elif home is None and name in own:
            alike = [n for n in get_close_matches(name, where, 1, ALIKE) if n not in own]
            if alike and callable(own[name]) is callable(getattr(where[alike[0]], alike[0], None)):
                found.append(
                    f"{type(part).__name__}.{name} looks like `{alike[0]}` of "
                    f"trace_bench.{where[alike[0]].__name__}; give it another name if it is not"
                )
    return found


def notes(part: object, kind: type) -> list[str]:
    """Members that are named like those of a class which this one does not inherit."""
    part = written(part)
    where = {n: home for n, home in _homes(kind).items() if not isinstance(part, home)}
    needed = required(kind)
    return [
        f"{type(part).__name__}.{name} is not used: its class does not inherit "
        f"trace_bench.{where[name].__name__}"
        for name in _own(type(part))
        if name in where and name not in needed
    ]


def _own(cls: type) -> dict[str, Any]:
    """The public members that are not the protocols'."""
    theirs = [c for c in reversed(cls.__mro__) if c is not object and not _is_protocol(c)]
    return {n: v for c in theirs for n, v in vars(c).items() if not n.startswith("_")}


def _homes(kind: type) -> dict[str, type]:
    """What declares each member of a kind and of its abilities."""
    return {name: home for home in (*abilities(kind), kind) for name in members(home)}


def _is_protocol(cls: type) -> bool:
    return cls.__module__.startswith("trace_bench.core.protocols")


def _misshapen(value: object, home: type, name: str) -> str | None:
    """Why a member is not what `home` declares; None if it is."""
    declared = getattr(home, name, None)
    if not callable(declared):
        hint = get_type_hints(home)[name]
        return None if _fits(value, hint) else f"is {value!r:.80}; {home.__name__} wants {hint}"
    wanted = list(inspect.signature(declared).parameters)[1:]
    call = f"{home.__name__} wants {name}({', '.join(wanted)})"
    if not callable(value):
        return f"is no method; {call}"
    try:
        inspect.signature(value).bind(*wanted)
    except TypeError:
        return f"takes other arguments; {call}"
    except ValueError:  # built in: it does not say
        return None
    return None


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if hint is NoneType or hint is None:
        return value is None
    return hint is Any or isinstance(value, get_origin(hint) or hint)
