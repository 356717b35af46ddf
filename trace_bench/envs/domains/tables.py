"""The domains: one table each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trace_bench.core.chat import make_tool
from trace_bench.core.types import Tool

Values = tuple[str, ...] | range
"""What a field may hold: words, or whole numbers."""


@dataclass(frozen=True)
class Table:
    """`noun`: what a row is, as tools and users call it. `names`: two lists of words that a row's
    name is made of. `count`, `place`: a field of numbers and one of words, with its values."""

    noun: str
    names: tuple[tuple[str, ...], tuple[str, ...]]
    count: tuple[str, range]
    place: tuple[str, tuple[str, ...]]

    @property
    def one(self) -> str:
        """A row, with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    @property
    def fields(self) -> dict[str, Values]:
        """The values of each field, by its name."""
        return dict((self.count, self.place))

    def tools(self) -> tuple[Tool, ...]:
        """What an agent can do with the table."""
        noun, by_id = self.noun, {f"{self.noun}_id": "string"}
        kinds = {self.count[0]: "integer", self.place[0]: "string"}
        return (
            make_tool(f"find_{noun}", f"Look up {self.one} by its name.", name="string"),
            make_tool(f"add_{noun}", f"Add {self.one}.", name="string", **kinds),
            make_tool(f"remove_{noun}", f"Remove {self.one} by its id.", **by_id),
            *(
                make_tool(
                    f"set_{noun}_{field}",
                    f"Change the {field} of {self.one}.",
                    **by_id,
                    **{field: kind},
                )
                for field, kind in kinds.items()
            ),
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday")
_ROOMS = _words("north south east west upper lower")

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "calendar": Table(
            "event",
            (_words("budget design launch board spring sales"), _words("review lunch call visit")),
            ("length", range(10, 240)),
            ("day", _DAYS),
        ),
        "shop": Table(
            "article",
            (_words("oak steel linen glass wool clay"), _words("chair lamp basket mirror rug")),
            ("price", range(5, 400)),
            ("department", _words("furniture lighting textiles outdoor")),
        ),
        "files": Table(
            "document",
            (_words("annual draft signed old final"), _words("report contract invoice memo plan")),
            ("size", range(10, 900)),
            ("folder", _words("inbox archive shared private")),
        ),
        "library": Table(
            "book",
            (_words("silent broken golden hidden last"), _words("harbor winter orchard compass")),
            ("stock", range(1, 300)),
            ("shelf", _words("history fiction travel science poetry")),
        ),
        "kitchen": Table(
            "recipe",
            (_words("lentil pumpkin barley mushroom leek"), _words("soup stew pie salad curry")),
            ("duration", range(10, 180)),
            ("course", _words("starter main dessert side")),
        ),
        "garden": Table(
            "plant",
            (_words("dwarf climbing wild purple early"), _words("rose maple fern iris thyme")),
            ("height", range(10, 250)),
            ("bed", _ROOMS),
        ),
        "garage": Table(
            "vehicle",
            (_words("delivery rescue tour school farm"), _words("van truck bus wagon")),
            ("mileage", range(1000, 90000)),
            ("bay", _words("alpha bravo delta echo")),
        ),
        "cinema": Table(
            "film",
            (_words("midnight paper crimson distant velvet"), _words("train island letter circus")),
            ("length", range(70, 200)),
            ("hall", _words("ruby emerald amber pearl")),
        ),
        "parcels": Table(
            "parcel",
            (_words("striped sealed flat heavy round"), _words("crate tube box envelope")),
            ("weight", range(1, 60)),
            ("city", _words("Lyon Turin Ghent Porto Malmo Graz")),
        ),
        "museum": Table(
            "exhibit",
            (_words("bronze painted carved woven gilded"), _words("mask vase shield clock globe")),
            ("age", range(80, 900)),
            ("wing", _ROOMS),
        ),
        "school": Table(
            "course",
            (_words("basic evening summer weekend"), _words("pottery algebra rowing chess")),
            ("capacity", range(6, 80)),
            ("weekday", _DAYS),
        ),
        "energy": Table(
            "meter",
            (_words("cellar roof barn workshop pool"), _words("heater pump charger boiler")),
            ("reading", range(100, 9000)),
            ("tariff", _words("day night peak green")),
        ),
    }
)  # fmt: skip
"""The domains by name."""
