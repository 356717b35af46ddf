"""Checklists by program: from a reference conversation, and what a suite rewards in it.

An item of a call asks for the same call, an item of a reply for about the same words. What depends
on a turn's calls comes after them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trace_bench.checklists.items import CALLS, REPLY, Checklist, Evidence, Item
from trace_bench.checklists.judges import holds
from trace_bench.checklists.talk import ToolCall, UserTurn, is_error
from trace_bench.core.types import Milestone

Place = tuple[int, int]  # (turn, step)
_SNIPPET = 400  # characters


def call_item(name: str, arguments: Mapping[str, Any]) -> Item:
    """That the agent calls a tool with these arguments and gets no error."""
    text = json.dumps(dict(arguments), ensure_ascii=False)
    return Item(
        id="C0",
        question=f"Does the agent call {name} with {text}?",
        focus_on=CALLS,
        pass_condition=f"A call of {name} has these arguments, and its result is no error: {text}",
        failure_examples=("another tool, or other values", "the call is described, but not made"),
        required_for_next_turn=True,
        extra_info={"check": {"call": name, "arguments": dict(arguments)}},
    )


def tell_item(text: str) -> Item:
    """That the agent tells the user something, in about these words."""
    return _reply(
        "Does the agent tell the user what the reference tells?",
        {"tell": text, "likeness": 1.0},
        f"The reply says the same as: {text}",
        failure_examples=("a value in it differs",),
    )


def reply_item(kind: str) -> Item:
    """That the agent answers without a call: `kind` is ask or answer (judges.py)."""
    question, required = _REPLIES[kind]
    passes = question.replace("Does the agent", "The agent does", 1).rstrip("?") + "."
    return _reply(question, {kind: True}, passes, required_for_next_turn=required)


def _reply(question: str, check: Mapping[str, Any], passes: str, **more: Any) -> Item:
    more |= {"question": question, "pass_condition": passes, "extra_info": {"check": check}}
    return Item(id="C0", focus_on=REPLY, **more)


_REPLIES: Mapping[str, tuple[str, bool]] = {
    "ask": ("Does the agent ask the user for what is missing?", True),
    "answer": ("Does the agent answer the user?", False),
}


def of_reference(turns: Sequence[UserTurn], rewarded: Collection[Place] | None = None) -> Checklist:
    """The checklist of a reference. `rewarded`: the steps that count; None: all of them. A turn in
    which nothing counts asks for a question or an answer, whichever the reference gives."""
    checklist = []
    for number, turn in enumerate(turns):
        items: list[Item] = []
        for place, step in enumerate(turn.steps):
            if rewarded is not None and (number, place) not in rewarded:
                continue
            for call, result in zip(step.calls, step.results, strict=False):
                if call is not None and not is_error(result):
                    items.append(_seen(call_item(call.name, call.arguments), number, place, call))
            if reply := step.reply:
                item = reply_item("ask") if "?" in reply else tell_item(reply)
                items.append(_seen(item, number, place, reply))
        checklist.append(finished(items or [_fallback(turn)]))
    return Checklist(tuple(checklist))


def rewarded_in(
    turns: Sequence[UserTurn], first: int, milestones: Sequence[Milestone]
) -> set[Place]:
    """The steps at which a suite's milestones were met. `first`: how many messages stand before the
    first turn; a milestone's `place` counts messages."""
    owner: dict[int, Place] = {}
    index = first
    for number, turn in enumerate(turns):
        index += 1  # the user's message
        for place, step in enumerate(turn.steps):
            for _ in range(1 + len(step.results)):
                owner[index] = (number, place)
                index += 1
    places = [m.place for m in milestones if m.hit and m.place is not None]
    return {owner[place] for place in places if place in owner}


def spread(items: Sequence[Item], turns: Sequence[UserTurn]) -> Checklist:
    """Items of a task whose turns were not known, each in the turn of the reference that first
    satisfies it. What the reference never satisfies is left out."""
    left = list(items)
    checklist = []
    for number, turn in enumerate(turns):
        satisfied: list[Item] = []
        for place in range(len(turn.steps)):
            steps = turn.steps[: place + 1]
            for item in [i for i in left if holds(i.extra_info["check"], steps)]:
                left.remove(item)
                satisfied.append(_seen(item, number, place, steps[-1].reply or steps[-1].calls[0]))
        checklist.append(finished(satisfied or [_fallback(turn)]))
    return Checklist(tuple(checklist))


def finished(items: Sequence[Item]) -> tuple[Item, ...]:
    """A turn's items with ids, equal weights, replies after the calls. Equal items count once."""
    unique: list[Item] = []
    for item in items:
        if all(item.extra_info["check"] != other.extra_info["check"] for other in unique):
            unique.append(item)
    named = [replace(item, id=f"C{n}", weight=1 / len(unique)) for n, item in enumerate(unique)]
    calls = tuple(item.id for item in named if item.focus_on == CALLS)
    return tuple(
        item if item.focus_on == CALLS else replace(item, dependence=calls) for item in named
    )


def _fallback(turn: UserTurn) -> Item:
    """For a turn in which nothing is rewarded."""
    replies = [step.reply for step in turn.steps if step.reply]
    return reply_item("ask" if replies and "?" in replies[-1] else "answer")


def _seen(item: Item, turn: int, step: int, what: ToolCall | str | None) -> Item:
    """The item with its place in the reference."""
    snippet = what.key if isinstance(what, ToolCall) else str(what or "")
    place: Evidence = {
        "turn": turn, "step": step, "from": item.focus_on, "snippet": snippet[:_SNIPPET]
    }  # fmt: skip
    return replace(item, evidence=(place,))
