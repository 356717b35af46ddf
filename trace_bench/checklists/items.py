"""A checklist as typed values, and CM2's JSON for it: [variant][turn][item].

A variant is one whole checklist of a dialogue; several come from several annotations. Whatever is
read is checked: an error names record, variant, turn and item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class Evidence:
    """Where in the reference an item comes from. `step`: the agent's, from 0 in each turn."""

    turn: int
    step: int
    origin: str
    snippet: str


@dataclass(frozen=True)
class Item:
    """One yes-or-no question about the agent's work in a turn of the user.

    `focus`: the part of a step that it is about. `required`: the user goes on only if it is
    satisfied. `after`: ids of items of the same turn that must be satisfied first. `weight`: its
    share of the turn. `extra`: anything else; "check" is a condition for programs
    (`judges.py`)."""

    id: str
    question: str
    focus: str
    passes: str
    failures: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    required: bool = False
    after: tuple[str, ...] = ()
    weight: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)


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
    return {
        "id": item.id,
        "evidence": [
            {"turn": e.turn, "step": e.step, "from": e.origin, "snippet": e.snippet}
            for e in item.evidence
        ],
        "focus_on": item.focus,
        "question": item.question,
        "pass_condition": item.passes,
        "failure_examples": list(item.failures),
        "required_for_next_turn": item.required,
        "dependence": list(item.after),
        "weight": item.weight,
        "extra_info": dict(item.extra),
    }


FIX = "docs/checklists.md has the format; correct the file, or take the record out of it."


def _item(data: Any, where: str, number: int) -> Item:
    place = f"{where}, item {number}"
    if not isinstance(data, Mapping):
        raise _wrong(place, data, "an object")
    identity = _text(data, "id", place)
    if not identity or len(identity) > 60 or not identity.isprintable() or ":" in identity:
        raise _wrong(f"{place}: id", identity, "1 to 60 printable characters without a colon")
    place = f"{where}, item {identity}"
    focus = data.get("focus_on")
    if focus not in FOCUSES:
        raise _wrong(f"{place}: focus_on", focus, ", ".join(FOCUSES))
    required = data.get("required_for_next_turn", False)
    if not isinstance(required, bool):
        raise _wrong(f"{place}: required_for_next_turn", required, "true or false")
    extra = data.get("extra_info") or {}
    if not isinstance(extra, Mapping):
        raise _wrong(f"{place}: extra_info", extra, "an object")
    evidence = _list(data.get("evidence", []), f"{place}: evidence", "a list", some=False)
    return Item(
        id=identity,
        question=_text(data, "question", place),
        focus=focus,
        passes=_text(data, "pass_condition", place),
        failures=_texts(data, "failure_examples", place),
        evidence=tuple(_evidence(e, f"{place}, evidence {n}") for n, e in enumerate(evidence)),
        required=required,
        after=_texts(data, "dependence", place),
        weight=_weight(data.get("weight"), place),
        extra=dict(extra),
    )


def _evidence(data: Any, place: str) -> Evidence:
    if not isinstance(data, Mapping):
        raise _wrong(place, data, "an object")
    numbers = []
    for key in ("turn", "step"):
        value = data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _wrong(f"{place}: {key}", value, "a whole number from 0")
        numbers.append(value)
    if data.get("from") not in ORIGINS:
        raise _wrong(f"{place}: from", data.get("from"), ", ".join(ORIGINS))
    return Evidence(numbers[0], numbers[1], data["from"], _text(data, "snippet", place))


def _weight(value: Any, place: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= 1 + SUM:
        raise _wrong(f"{place}: weight", value, "a number from 0 to 1")
    return min(float(value), 1.0)


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
        if unknown := [name for name in item.after if name not in names]:
            raise UserError(
                f"{where}, item {item.id}: dependence on {unknown[0]!r}, which the turn does not "
                f"have; allowed: {', '.join(names)}. {FIX}"
            )
    left, done = {item.id: set(item.after) for item in items}, set[str]()
    while ready := [name for name, after in left.items() if after <= done]:
        done.update(ready)
        for name in ready:
            del left[name]
    if left:
        raise UserError(f"{where}, item {min(left)}: its dependences form a circle. {FIX}")
    return items


def _list(value: Any, place: str, what: str, some: bool = True) -> list[Any]:
    if not isinstance(value, list | tuple) or (some and not value):
        raise _wrong(place, value, f"{what}{', at least one' if some else ''}")
    return list(value)


def _text(data: Mapping[str, Any], key: str, place: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise _wrong(f"{place}: {key}", value, "a text")
    return value


def _texts(data: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = data.get(key) or []
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise _wrong(f"{place}: {key}", value, "a list of texts")
    return tuple(value)


def _wrong(place: str, given: Any, allowed: str) -> UserError:
    return UserError(f"{place} is {given!r:.100}; allowed: {allowed}. {FIX}")
