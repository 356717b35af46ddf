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
class Domain:
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


def _table(noun: str, first: str, second: str, count: str, place: str) -> Domain:
    """A table from words: the lists that names are made of, the two fields with their values."""
    number, low, high = count.split()
    word, *values = place.split()
    names = (tuple(first.split()), tuple(second.split()))
    return Domain(noun, names, (number, range(int(low), int(high))), (word, tuple(values)))


_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday"
_ROOMS = "north south east west upper lower"

TABLES: Mapping[str, Domain] = MappingProxyType(
    {
        "calendar": _table(
            "event", "budget design launch board spring sales", "review lunch call visit",
            "length 10 240", f"day {_DAYS}",
        ),
        "shop": _table(
            "article", "oak steel linen glass wool clay", "chair lamp basket mirror rug",
            "price 5 400", "department furniture lighting textiles outdoor",
        ),
        "files": _table(
            "document", "annual draft signed old final", "report contract invoice memo plan",
            "size 10 900", "folder inbox archive shared private",
        ),
        "library": _table(
            "book", "silent broken golden hidden last", "harbor winter orchard compass",
            "stock 1 300", "shelf history fiction travel science poetry",
        ),
        "kitchen": _table(
            "recipe", "lentil pumpkin barley mushroom leek", "soup stew pie salad curry",
            "duration 10 180", "course starter main dessert side",
        ),
        "garden": _table(
            "plant", "dwarf climbing wild purple early", "rose maple fern iris thyme",
            "height 10 250", f"bed {_ROOMS}",
        ),
        "garage": _table(
            "vehicle", "delivery rescue tour school farm", "van truck bus wagon",
            "mileage 1000 90000", "bay alpha bravo delta echo",
        ),
        "cinema": _table(
            "film", "midnight paper crimson distant velvet", "train island letter circus",
            "length 70 200", "hall ruby emerald amber pearl",
        ),
        "parcels": _table(
            "parcel", "striped sealed flat heavy round", "crate tube box envelope", "weight 1 60",
            "city Lyon Turin Ghent Porto Malmo Graz",
        ),
        "museum": _table(
            "exhibit", "bronze painted carved woven gilded", "mask vase shield clock globe",
            "age 80 900", f"wing {_ROOMS}",
        ),
        "school": _table(
            "course", "basic evening summer weekend", "pottery algebra rowing chess",
            "capacity 6 80", f"weekday {_DAYS}",
        ),
        "energy": _table(
            "meter", "cellar roof barn workshop pool", "heater pump charger boiler",
            "reading 100 9000", "tariff day night peak green",
        ),
    }
)  # fmt: skip
"""The domains by name."""
