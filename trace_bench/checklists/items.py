"""A checklist as typed values, and CM2's JSON for it: [variant][turn][item].

A variant is one whole checklist of a dialogue; several come from several annotations. Whatever is
read is checked: an error names the record and the place, such as `[0][1][2].weight`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, TypedDict

from trace_bench.core import types
from trace_bench.core.decode import Limits, Unreadable, convert, fault_of
from trace_bench.core.errors import UserError
from trace_bench.core.types import Count, Meta, Share

THINKING, REPLY = "assistant.content.thinking", "assistant.content.user_visible_reply"
CALLS, RESULTS = "assistant.tool_calls", "tool.content"
FOCUSES = (THINKING, REPLY, CALLS, RESULTS)
"""The parts of a step that an item can be about."""
ORIGINS = ("user.content", *FOCUSES)
"""Where evidence can come from."""
SUM = 1e-6  # how far the weights of a turn may be from 1
TEXTS = Limits(2**20, depth=20, items=50_000)  # of one record's checklists
FIX = "docs/checklists.md has the format; correct the file, or take the record out of it."

Evidence = TypedDict(
    "Evidence",
    {"turn": Count, "step": Count, "from": Literal[ORIGINS], "snippet": str},  # type: ignore[valid-type]
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """One yes-or-no question about the agent's work in a turn of the user. The fields are CM2's.

    `evidence`: where in the reference it comes from, with the agent's step from 0 in each turn.
    `focus_on`: the part of a step that it is about. `required_for_next_turn`: the user goes on only
    if it is satisfied. `dependence`: ids of items of the same turn that must be satisfied first.
    `weight`: its share of the turn. `extra_info`: anything else; "check" is a condition for
    programs (`judges.py`)."""

    id: Annotated[str, Meta(min_length=1, max_length=60)]
    evidence: tuple[Evidence, ...] = ()
    focus_on: Literal[FOCUSES]  # type: ignore[valid-type]
    question: str
    pass_condition: str
    failure_examples: tuple[str, ...] = ()
    required_for_next_turn: bool = False
    dependence: tuple[str, ...] = ()
    weight: Share = 1.0
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checklist:
    """One variant: the items of each of the user's turns."""

    turns: tuple[tuple[Item, ...], ...]


def read_checklists(data: Any, record: str) -> tuple[Checklist, ...]:
    """All variants of a record, from CM2's JSON. Raises UserError."""
    where = f"record {record}"
    if fault := fault_of(data, TEXTS):
        raise _refused(where, f"its checklists cannot be used: {fault}")
    variants = _typed(data, tuple[_Turns, ...], where)
    if not variants:
        raise _refused(where, "there is no checklist; needed: at least one variant")
    for number, turns in enumerate(variants):
        _check(turns, f"{where}, variant {number}")
    if lengths := {len(turns) for turns in variants} - {len(variants[0])}:
        several = f"{len(variants[0])} and {min(lengths)}"
        raise _refused(where, f"its variants have {several} turns; allowed: equally many")
    return tuple(map(Checklist, variants))


def read_checklist(data: Any, where: str) -> Checklist:
    """One variant. Raises UserError that begins with `where`."""
    turns = _typed(data, _Turns, where)
    _check(turns, where)
    return Checklist(turns)


def checklists_of(data: Sequence[Sequence[Sequence[Mapping[str, Any]]]]) -> tuple[Checklist, ...]:
    """The inverse of `to_json`, of what was read and checked before."""
    return tuple(Checklist(tuple(tuple(map(_item_of, turn)) for turn in turns)) for turns in data)


def to_json(checklists: Sequence[Checklist]) -> list[list[list[dict[str, Any]]]]:
    """All variants as `read_checklists` reads them."""
    return [[[item_to_json(i) for i in turn] for turn in c.turns] for c in checklists]


def item_to_json(item: Item) -> dict[str, Any]:
    return dict(types.to_json(item))


_Turns = tuple[tuple[Item, ...], ...]
_NULL = ("extra_info", "failure_examples", "dependence")  # may be null in CM2's files


def _refused(where: str, why: str) -> UserError:
    return UserError(f"{where}: {why}. {FIX}")


def _typed(data: Any, kind: Any, where: str) -> Any:
    try:
        return convert(_without_nulls(data), kind)
    except Unreadable as error:
        raise _refused(where, str(error)) from error


def _without_nulls(data: Any) -> Any:
    if isinstance(data, list | tuple):
        return [_without_nulls(part) for part in data]
    if isinstance(data, Mapping):
        return {k: v for k, v in data.items() if v is not None or k not in _NULL}
    return data


def _item_of(data: Mapping[str, Any]) -> Item:
    lists = ("evidence", "failure_examples", "dependence")
    return Item(**{**data, **{name: tuple(data[name]) for name in lists}})


def _check(turns: _Turns, where: str) -> None:
    """Raises UserError unless there are turns, all have items, their ids are unique, their weights
    sum to 1, and they can be satisfied in some order."""
    if not turns:
        raise _refused(where, "there is no turn; needed: at least one")
    for number, items in enumerate(turns):
        if fault := _fault_of_turn(items):
            raise _refused(f"{where}, turn {number}", fault)


def _fault_of_turn(items: Sequence[Item]) -> str | None:
    names = [item.id for item in items]
    odd = [name for name in names if ":" in name or not name.isprintable()]
    twice = sorted({name for name in names if names.count(name) > 1})
    total = math.fsum(item.weight for item in items)
    after = [(item.id, n) for item in items for n in item.dependence if n not in names]
    if not items:
        return "there is no item; needed: at least one"
    if odd:
        return f"an item has the id {odd[0]!r}; allowed: printable characters without a colon"
    if twice:
        return f"two items have the id {twice[0]!r}; allowed: each once"
    if abs(total - 1) > SUM:
        return f"the weights sum to {total:.6g}; allowed: 1"
    if after:
        (item, name), *_ = after
        return f"item {item} depends on {name!r}; allowed: {', '.join(names)}"
    try:
        TopologicalSorter({item.id: item.dependence for item in items}).prepare()
    except CycleError as error:
        return f"item {min(error.args[1])}: its dependences form a circle"
    return None
