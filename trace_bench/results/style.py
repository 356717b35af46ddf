"""How results show methods: order, names, colours, markers, from style.json beside this file."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OTHER = "#000000"


@dataclass(frozen=True)
class Style:
    """`control`: the method that every other is compared with; `focus`: the one that tables look
    at most closely; `level`: those that do not look at training tasks, drawn as level lines."""

    control: str
    focus: str
    level: tuple[str, ...]
    order: tuple[str, ...]
    labels: Mapping[str, str]
    colours: Mapping[str, str]
    markers: Mapping[str, str]

    def place(self, method: str) -> tuple[int, str]:
        """Where a method stands in tables."""
        return (self.order.index(method) if method in self.order else len(self.order), method)

    def label(self, method: str) -> str:
        """A method's name in a figure."""
        return self.labels.get(method, method.replace("_", " "))

    def colour(self, method: str) -> str:
        return self.colours.get(method, OTHER)

    def marker(self, method: str) -> str:
        return self.markers.get(method, ".")


@functools.lru_cache(maxsize=1)
def style() -> Style:
    data = json.loads(Path(__file__).with_name("style.json").read_text(encoding="utf-8"))
    methods = data["methods"]
    return Style(
        data["control"],
        data["focus"],
        tuple(data["level"]),
        tuple(m["name"] for m in methods),
        {m["name"]: m["label"] for m in methods},
        {m["name"]: m["colour"] for m in methods},
        {m["name"]: m["marker"] for m in methods},
    )
