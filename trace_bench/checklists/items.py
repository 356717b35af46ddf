"""A checklist as typed values, and CM2's JSON for it: [variant][turn][item].

A variant is one whole checklist of a dialogue; several come from several annotations. Whatever is
read is checked: an error names record, variant, turn and item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from trace_bench.core import types
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, fault_of

THINKING, REPLY = "assistant.content.thinking", "assistant.content.user_visible_reply"
CALLS, RESULTS = "assistant.tool_calls", "tool.content"
FOCUSES = (THINKING, REPLY, CALLS, RESULTS)
"""The parts of a step that an item can be about."""
ORIGINS = ("user.content", *FOCUSES)
"""Where evidence can come from."""
SUM = 1e-6  # how far the weights of a turn may be from 1
TEXTS = Limits(2**20, depth=20, items=50_000)  # of one record's checklists


@dataclass(frozen=True, kw_only=True)
class Item:
    """One yes-or-no question about the agent's work in a turn of the user. The fields are CM2's.

    `evidence`: where in the reference it comes from, as {"turn", "step", "from", "snippet"} with
    the agent's step from 0 in each turn. `focus_on`: the part of a step that it is about.
    `required_for_next_turn`: the user goes on only if it is satisfied. `dependence`: ids of items
    of the same turn that must be satisfied first. `weight`: its share of the turn. `extra_info`:
    anything else; "check" is a condition for programs (`judges.py`)."""

    id: str
    evidence: tuple[Mapping[str, Any], ...] = ()
    focus_on: str
    question: str
    pass_condition: str
    failure_examples: tuple[str, ...] = ()
    required_for_next_turn: bool = False
    dependence: tuple[str, ...] = ()
    weight: float = 1.0
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checklist:
    """One variant: the items of each of the user's turns."""

    turns: tuple[tuple[Item, ...], ...]


def read_checklists(data: Any, record: str) -> tuple[Checklist, ...]:
    """All variants of a record, from CM2's JSON. Raises UserError."""
    where = f"record {record}"
    if fault := fault_of(data, TEXTS):
        raise UserError(f"{where}: its checklists cannot be used: {fault}. {FIX}")
    variants = _list(data, where, "a list of variants")
    found = tuple(
        read_checklist(variant, f"{where}, variant {number}")
        for number, variant in enumerate(variants)
    )
    if lengths := {len(checklist.turns) for checklist in found} - {len(found[0].turns)}:
        raise UserError(
            f"{where}: its variants have {len(found[0].turns)} and {min(lengths)} turns; allowed: "
            f"equally many. {FIX}"
        )
    return found


def read_checklist(data: Any, where: str) -> Checklist:
    """One variant. Raises UserError that begins with `where`."""
    turns = enumerate(_list(data, where, "a list of turns"))
    return Checklist(tuple(_turn(turn, f"{where}, turn {number}") for number, turn in turns))


def to_json(checklists: Sequence[Checklist]) -> list[list[list[dict[str, Any]]]]:
    """The inverse of `read_checklists`."""
    return [[[item_to_json(i) for i in turn] for turn in c.turns] for c in checklists]


def item_to_json(item: Item) -> dict[str, Any]:
    return dict(types.to_json(item))


FIX = "docs/checklists.md has the format; correct the file, or take the record out of it."
Wanted = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Of each key: whether a value is allowed, and what is, in words."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _is_id(value: Any) -> bool:
    return _is_text(value) and 0 < len(value) <= 60 and value.isprintable() and ":" not in value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_weight(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 1 + SUM


_ID: Wanted = {"id": (_is_id, "1 to 60 printable characters without a colon")}
_ITEM: Wanted = {
    "focus_on": (lambda value: value in FOCUSES, ", ".join(FOCUSES)),
    "required_for_next_turn": (lambda value: isinstance(value, bool), "true or false"),
    "extra_info": (lambda value: isinstance(value, Mapping), "an object"),
    "evidence": (lambda value: isinstance(value, list | tuple), "a list"),
    "question": (_is_text, "a text"),
    "pass_condition": (_is_text, "a text"),
    "failure_examples": (is_texts, "a list of texts"),
    "dependence": (is_texts, "a list of texts"),
    "weight": (_is_weight, "a number from 0 to 1"),
}
_EVIDENCE: Wanted = {
    "turn": (_is_count, "a whole number from 0"),
    "step": (_is_count, "a whole number from 0"),
    "from": (lambda value: value in ORIGINS, ", ".join(ORIGINS)),
    "snippet": (_is_text, "a text"),
}


def _item(data: Any, where: str, number: int) -> Item:
    name = _checked(data, _ID, f"{where}, item {number}")["id"]
    place = f"{where}, item {name}"
    given = {"required_for_next_turn": False, "evidence": (), **data}
    for key, none in (("extra_info", {}), ("failure_examples", ()), ("dependence", ())):
        given[key] = given.get(key) or none
    found = _checked(given, _ITEM, place)
    listed = enumerate(found["evidence"])
    found["evidence"] = [_checked(e, _EVIDENCE, f"{place}, evidence {n}") for n, e in listed]
    for key in ("evidence", "failure_examples", "dependence"):
        found[key] = tuple(found[key])
    return Item(**found | {"id": name, "weight": min(float(found["weight"]), 1.0)})


def _checked(data: Any, wanted: Wanted, place: str) -> dict[str, Any]:
    """The wanted values of an object. Raises UserError for one that is not allowed."""
    if not isinstance(data, Mapping):
        raise _wrong(place, data, "an object")
    for key, (fits, allowed) in wanted.items():
        if not fits(data.get(key)):
            raise _wrong(f"{place}: {key}", data.get(key), allowed)
    return {key: data[key] for key in wanted}


def _turn(data: Any, where: str) -> tuple[Item, ...]:
    """A turn's items. Raises UserError unless ids are unique, weights sum to 1, and the items can
    be satisfied in some order."""
    listed = enumerate(_list(data, where, "a list of items"))
    items = tuple(_item(item, where, number) for number, item in listed)
    names = [item.id for item in items]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{where}: two items have the id {twice[0]!r}; allowed: each once. {FIX}")
    total = math.fsum(item.weight for item in items)
    if abs(total - 1) > SUM:
        raise UserError(f"{where}: the weights sum to {total:.6g}; allowed: 1. {FIX}")
    for item in items:
        if unknown := [name for name in item.dependence if name not in names]:
            raise UserError(
                f"{where}, item {item.id}: dependence on {unknown[0]!r}, which the turn does not "
                f"have; allowed: {', '.join(names)}. {FIX}"
            )
    try:
        TopologicalSorter({item.id: item.dependence for item in items}).prepare()
    except CycleError as error:
        place = f"{where}, item {min(error.args[1])}"
        raise UserError(f"{place}: its dependences form a circle. {FIX}") from error
    return items


def _list(value: Any, place: str, what: str) -> list[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise _wrong(place, value, f"{what}, at least one")
    return list(value)


def _wrong(place: str, given: Any, allowed: str) -> UserError:
    return UserError(f"{place} is {given!r:.100}; allowed: {allowed}. {FIX}")
