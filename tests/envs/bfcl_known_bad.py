"""Finds the entries of BFCL whose answer no agent can find out.

An entry is listed if one of its answer's calls has a text of four words or more that
- decides the score: with another text in its place the states or results differ, and
- stands nowhere the agent can look: not in what the user has said so far, not in the initial state,
  not in the tools' schemas, not in an earlier result; also not as a form that the user dictates
  ("the price is XXX"), nor as a list whose parts stand there. Case and punctuation are ignored.

The list is stored (`trace_bench/envs/bfcl/known_bad.json`) with the text of each entry; `find`
makes it again. It is a lower bound: wrong numbers, dates and calls are not looked for.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trace_bench.envs.bfcl.world import BfclCall, BfclWorld, named, parse, tools_of

WORDS = 4
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W_]+")
_FORM = re.compile(r"[^\W\d_]+")  # a placeholder that the user's form has for a number


def find(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The reason by entry, in the entries' order."""
    reasons = {entry["id"]: _reason(entry) for entry in entries}
    return {name: reason for name, reason in reasons.items() if reason}


def _reason(entry: Mapping[str, Any]) -> str:
    """Why the entry is listed; "" if it is not."""
    turns = [[named(parse(s), entry["classes"]) for s in turn] for turn in entry["answers"]]
    world, seen = BfclWorld(entry), [_words(text) for text in _visible(entry)]
    for turn, calls in enumerate(turns):
        seen.append(_words(entry["turns"][turn] or ""))
        for place, call in enumerate(calls):
            for key, text in call.arguments.items():
                if not isinstance(text, str) or _stands(text, seen):
                    continue
                if _matters(entry, turns, turn, place, key):
                    shown = text if len(text) < 150 else f"{text[:147]}..."
                    return f"turn {turn + 1}: {call.name} needs {key}={shown!r}"
            seen += [_words(found) for found in _texts(_parsed(world.call(call)))]
    return ""


def _stands(text: str, seen: Sequence[list[str]]) -> bool:
    """Whether a text is short, or stands in one of the seen ones, or is a list of words that do."""
    words = _words(text)
    if len(words) < WORDS or any(_within(words, other) for other in seen):
        return True
    parts = text.split(", ")
    if any(" " in part for part in parts):
        return False
    return all(any(_within(_words(part), other) for other in seen) for part in parts)


def _within(words: list[str], text: list[str]) -> bool:
    """Whether the words follow one another in the text; a number may stand for a placeholder."""
    width = len(words)
    for at in range(len(text) - width + 1):
        pairs = zip(words, text[at : at + width], strict=True)
        if all(a == b or (a[0].isdigit() and _FORM.fullmatch(b)) for a, b in pairs):
            return True
    return False


def _matters(
    entry: Mapping[str, Any], turns: list[list[BfclCall]], turn: int, place: int, key: str
) -> bool:
    """Whether another text in that argument changes a state or a result."""
    changed = [list(calls) for calls in turns]
    call = changed[turn][place]
    changed[turn][place] = BfclCall(call.name, {**call.arguments, key: f"{call.arguments[key]} x"})
    return _outcome(entry, turns) != _outcome(entry, changed)


def _outcome(entry: Mapping[str, Any], turns: Sequence[Sequence[BfclCall]]) -> list[Any]:
    """Results and public states after each turn."""
    world = BfclWorld(entry)
    out: list[Any] = []
    for calls in turns:
        out.append([world.call(call) for call in calls])
        states = {name: vars(instance) for name, instance in world.instances.items()}
        public = {n: {k: v for k, v in s.items() if k[0] != "_"} for n, s in states.items()}
        out.append(copy.deepcopy(public))
    return out


def _visible(entry: Mapping[str, Any]) -> Iterator[str]:
    """What can be seen from the start: the initial state (with the files that a long context adds)
    and the schemas of all tools."""
    yield from _texts(entry["config"])
    for instance in BfclWorld(entry).instances.values():
        yield from _files(getattr(instance, "root", None))
    tools, later = tools_of(entry)
    yield from _texts([*tools, *later.values()])


def _files(item: Any) -> Iterator[str]:
    """Names and contents of a file or folder of the package's file system."""
    if item is not None:
        yield item.name
        yield getattr(item, "content", "")
        for inner in getattr(item, "contents", {}).values():
            yield from _files(inner)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, keys included."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _parsed(result: str) -> Any:
    try:
        return json.loads(result)
    except ValueError:
        return result


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
