"""From a domain and a seed to a task: rows, requests of a user, and the reference that does them.

The requests of a task are about different rows: find a value, compare two, add, change, remove.
They come in one message or one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from trace_bench.core.chat import make_call, make_tool
from trace_bench.core.errors import unknown
from trace_bench.core.types import Message, Tool

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
        return dict((self.count, self.place))

    def tools(self) -> tuple[Tool, ...]:
        noun, by_id = self.noun, {f"{self.noun}_id": "string"}
        kinds = {self.count[0]: "integer", self.place[0]: "string"}
        setters = []
        for name, kind in kinds.items():
            said = f"Change the {name} of {self.one}."
            setters.append(make_tool(f"set_{noun}_{name}", said, **by_id, **{name: kind}))
        return (
            make_tool(f"find_{noun}", f"Look up {self.one} by its name.", name="string"),
            make_tool(f"add_{noun}", f"Add {self.one}.", name="string", **kinds),
            make_tool(f"remove_{noun}", f"Remove {self.one} by its id.", **by_id),
            *setters,
        )


def _table(noun: str, first: str, second: str, count: str, place: str) -> Domain:
    """A table from words: the lists that names are made of, the two fields with their values."""
    number, low, high = count.split()
    word, *values = place.split()
    names = (tuple(first.split()), tuple(second.split()))
    return Domain(noun, names, (number, range(int(low), int(high))), (word, tuple(values)))


_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday"
_ROOMS = "north south east west upper lower"


@cache
def tables() -> Mapping[str, Domain]:
    """The domains by name."""
    return {
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
    }  # fmt: skip


SYSTEM = "You are an assistant. Use the tools."
_ROWS = 8
_MOST = 3  # requests

Row = dict[str, Any]


@dataclass
class Draft:
    """A task in the making. `free`: rows that no request is about yet. Of every request so far:
    what the user says, and as a turn the reference's calls and what the user is to be told."""

    rng: random.Random
    table: Domain
    rows: list[Row]
    free: list[Row]
    new: list[str]  # names that no row has
    clauses: list[str] = field(default_factory=list)
    turns: list[dict[str, list[Any]]] = field(default_factory=list)

    def request(self, clause: str, *calls: dict[str, Any], tells: Sequence[str] = ()) -> None:
        self.clauses.append(clause)
        self.turns.append({"calls": list(calls), "tells": list(tells)})

    def find(self, row: Row) -> dict[str, Any]:
        return _call(f"find_{self.table.noun}", name=row["name"])


def domain_data(domain: str, seed: int) -> dict[str, Any]:
    """A task's data. Raises UserError for an unknown domain.

    `rows` and `wanted`: the table before and after; `user`: the messages, one after the other;
    `turns`: for each of them the reference's calls and what it asks to be told."""
    if domain not in tables():
        raise unknown("domain", domain, tables(), "domain")
    rng = random.Random(f"domains/{domain}/{seed}")
    table = tables()[domain]
    names = [f"{first} {second}" for first in table.names[0] for second in table.names[1]]
    rng.shuffle(names)
    rows = [_row(rng, table, name) for name in names[:_ROWS]]
    draft = Draft(rng, table, rows, rng.sample(rows, _ROWS), names[_ROWS:])
    for _ in range(rng.randint(1, _MOST)):
        rng.choice(REQUESTS)(draft)
    messages, turns = [[clause] for clause in draft.clauses], draft.turns
    if rng.random() < 0.5:  # all in one message
        messages = [draft.clauses]
        turns = [{key: [x for turn in turns for x in turn[key]] for key in ("calls", "tells")}]
    wanted = [dict(row) for row in rows]
    for call in (call for turn in turns for call in turn["calls"]):
        apply(table, wanted, call["name"], call["arguments"])
    return {
        "domain": domain,
        "rows": rows,
        "wanted": wanted,
        "system": SYSTEM,
        "user": [_sentence(clauses) for clauses in messages],
        "turns": turns,
        "contrast": False,
    }


def reference(data: Mapping[str, Any]) -> list[Message]:
    """The messages that solve a task."""
    out: list[Message] = []
    for turn in data["turns"]:
        out += [make_call(call["name"], **call["arguments"]) for call in turn["calls"]]
        out.append({"role": "assistant", "content": ", ".join(turn["tells"]) or "Done."})
    return out


def apply(table: Domain, rows: list[Row], tool: str, arguments: Mapping[str, Any]) -> Any:
    """Runs a tool on `rows`, which it changes; returns its result. Raises ValueError for a call
    that cannot be carried out."""
    verb, _, rest = tool.partition(f"_{table.noun}")
    if verb == "find":
        return _only([row for row in rows if row["name"] == arguments["name"]], table)
    if verb == "add":
        if any(row["name"] == arguments["name"] for row in rows):
            raise ValueError(f"There is a {table.noun} of that name already")
        rows.append({"id": f"new{len(rows)}", **arguments})
        return rows[-1]["id"]
    identity = arguments[f"{table.noun}_id"]
    row = _only([row for row in rows if row["id"] == identity], table)
    if verb == "remove":
        rows.remove(row)
    else:
        name = rest.removeprefix("_")
        row[name] = arguments[name]
    return None


def _only(found: list[Row], table: Domain) -> Row:
    if not found:
        raise ValueError(f"There is no such {table.noun}")
    return found[0]


def _row(rng: random.Random, table: Domain, name: str) -> Row:
    values = {name: _value(rng, values) for name, values in table.fields.items()}
    return {"id": f"{rng.getrandbits(32):08x}", "name": name, **values}


def _value(rng: random.Random, values: Values, but: Any = None) -> Any:
    """One of the values that is not `but`."""
    while (value := rng.choice(values)) == but:
        pass
    return value


def _call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


def _sentence(clauses: list[str]) -> str:
    text = ", and ".join(clauses)
    return text[0].upper() + text[1:] + "."


# -- requests -------------------------------------------------------------------------------------


def _look_up(draft: Draft) -> None:
    row, name = draft.free.pop(), draft.rng.choice(list(draft.table.fields))
    clause = draft.rng.choice(("tell me the {} of the {}", "find out the {} of the {}"))
    draft.request(clause.format(name, row["name"]), draft.find(row), tells=[str(row[name])])


def _compare(draft: Draft) -> None:
    one, two = draft.free.pop(), draft.free.pop()
    name = draft.table.count[0]
    if one[name] == two[name]:
        _look_up(draft)
        return
    more = max(one, two, key=lambda row: row[name])
    both = f"the {one['name']} or the {two['name']}"
    clause = f"tell me which has the larger {name}, {both}, and how much it is"
    # With its number, which the question does not have: to repeat that is no answer.
    tells = [more["name"], str(more[name])]
    draft.request(clause, draft.find(one), draft.find(two), tells=tells)


def _add(draft: Draft) -> None:
    name = draft.new.pop()
    given = {field: _value(draft.rng, values) for field, values in draft.table.fields.items()}
    listed = " and ".join(f"{field} {value}" for field, value in given.items())
    call = _call(f"add_{draft.table.noun}", name=name, **given)
    draft.request(f"add {draft.table.one} called {name} with {listed}", call)


def _change(draft: Draft) -> None:
    row, table = draft.free.pop(), draft.table
    name = draft.rng.choice(list(table.fields))
    value = _value(draft.rng, table.fields[name], row[name])
    clause = draft.rng.choice(("set the {} of the {} to {}", "change the {} of the {} to {}"))
    given = {f"{table.noun}_id": row["id"], name: value}
    call = _call(f"set_{table.noun}_{name}", **given)
    draft.request(clause.format(name, row["name"], value), draft.find(row), call)


def _remove(draft: Draft) -> None:
    row, noun = draft.free.pop(), draft.table.noun
    clause = draft.rng.choice(("remove the {}", "delete the {} from the list"))
    call = _call(f"remove_{noun}", **{f"{noun}_id": row["id"]})
    draft.request(clause.format(row["name"]), draft.find(row), call)


REQUESTS: tuple[Callable[[Draft], None], ...] = (_look_up, _compare, _add, _change, _remove)
