"""How results show methods: order, names, colours, markers, from style.json beside this file."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

OTHER = "#000000"


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    label: str
    colour: str
    marker: str


@dataclass(frozen=True)
class Style:
    """`control`: the method that every other is compared with; `focus`: the one that tables look
    at most closely; `level`: those that do not look at training tasks, drawn as level lines;
    `known`: the looks of the methods that style.json names, in the order of tables; `spare`:
    colours and markers for others."""

    control: str
    focus: str
    level: tuple[str, ...]
    known: Mapping[str, Look]
    spare: tuple[tuple[str, str], ...]

    def place(self, method: str) -> tuple[int, str]:
        """Where a method stands in tables."""
        order = list(self.known)
        return (order.index(method) if method in self.known else len(order), method)

    def looks(self, methods: Iterable[str]) -> Mapping[str, Look]:
        """A look for each method of a figure. Those that style.json does not name, such as a
        method's rows by its settings, get a spare one each, of its own colour and
        marker; where there are no more, they are black."""
        names = sorted(set(methods), key=self.place)
        own = [self.known[name] for name in names if name in self.known]
        taken = {look.colour for look in own} | {look.marker for look in own}
        spare = iter([s for s in self.spare if not taken & {*s}])
        return {
            name: self.known.get(name) or Look(name.replace("_", " "), *next(spare, (OTHER, ".")))
            for name in names
        }

    def look(self, method: str) -> Look:
        """The look of a method by itself."""
        return self.looks([method])[method]


@functools.lru_cache(maxsize=1)
def style() -> Style:
    data = json.loads(Path(__file__).with_name("style.json").read_text(encoding="utf-8"))
    return Style(
        data["control"],
        data["focus"],
        tuple(data["level"]),
        {m["name"]: Look(m["label"], m["colour"], m["marker"]) for m in data["methods"]},
        tuple((s["colour"], s["marker"]) for s in data["spare"]),
    )
