"""Episodes of the phone world to be scored: corner cases, and random ones with guards, references,
minefields and partial scores. tests/official_cases.py gives them to the official scorer,
test_official.py to ours. Needs nothing but Python."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
State = dict[str, list[Row]]
NOW = 1_718_186_400.0
AGENT, USER, SYSTEM, ENVIRONMENT = "AGENT", "USER", "SYSTEM", "EXECUTION_ENVIRONMENT"
DRAWN = Path(__file__).with_name("random_cases.jsonl")


def cases() -> list[dict[str, Any]]:
    """Each is {name, log, states, milestones, edges, minefields, minefield_edges}. The log holds
    [sender, recipient, content, index of the state after it, trace or None]."""
    made = [*corners(), *drawn()]
    assert len({case["name"] for case in made}) == len(made)
    return made


def digest(made: Sequence[dict[str, Any]]) -> str:
    """What the cases are, in short: scores belong to these cases and no others."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


# -- parts of a case -------------------------------------------------------------------------------


def contact(person: str, **more: Any) -> Row:
    row = {"person_id": person, "name": person.title(), "phone_number": f"+1415555{person}"}
    return {**row, "relationship": "good friend", "is_self": False, **more}


def reminder(key: str, **more: Any) -> Row:
    row = {"reminder_id": key, "content": "buy milk at noon", "creation_timestamp": NOW - 60}
    return {**row, "reminder_timestamp": NOW, "latitude": None, "longitude": None, **more}


def message(key: str, **more: Any) -> Row:
    row = {"message_id": key, "sender_person_id": "bo", "sender_phone_number": "+14155550100"}
    row["recipient_phone_number"] = "+14155550199"
    rest = {"recipient_person_id": None, "content": "meet at noon", "creation_timestamp": NOW}
    return {**row, **rest, **more}


def setting(**more: Any) -> Row:
    row: Row = {"device_id": "d", "cellular": True, "wifi": True, "location_service": True}
    return {**row, "low_battery_mode": False, "latitude": 1.0, "longitude": 2.5, **more}


def state(**databases: Any) -> State:
    opening: State = {"SETTING": [setting()], "CONTACT": [contact("bo")], "MESSAGING": []}
    return {**opening, "REMINDER": [reminder("r")], **databases}


def constraint(database: str, kind: str, *rows: Row, **more: Any) -> Row:
    return {"database": database, "kind": kind, "rows": list(rows), **more}


def wants(*constraints: Row, guards: Sequence[Any] = ()) -> Row:
    return {"constraints": list(constraints), "guards": list(guards)}


def says(text: str) -> Row:
    row = {"sender": AGENT, "recipient": USER, "content": text}
    return wants(constraint("SANDBOX", "snapshot", row))


def calls(*rows: Row, **measures: Any) -> Row:
    return wants(constraint("SANDBOX", "tool_trace", *rows, measures=measures))


def call(tool: str, **arguments: Any) -> Row:
    return {"name": tool, "arguments": arguments}


Event = str | tuple[Row, State]  # what the agent says, or a call and the state after it


def episode(opening: State, *events: Event) -> dict[str, Any]:
    """Log and states."""
    states, log = [opening], [[SYSTEM, AGENT, "You are a phone.", 0, None]]
    log.append([USER, AGENT, "please help", 0, None])
    for event in events:
        if isinstance(event, str):
            log.append([AGENT, USER, event, len(states) - 1, None])
            continue
        trace, after = event
        log.append([AGENT, ENVIRONMENT, trace["name"], len(states) - 1, None])
        if after != states[-1]:
            states.append(after)
        log.append([ENVIRONMENT, AGENT, "null", len(states) - 1, trace])
    return {"log": log, "states": states}


def case(name: str, played: dict[str, Any], milestones: Iterable[Row], **more: Any) -> Row:
    rest: Row = {"edges": None, "minefields": [], "minefield_edges": None}
    return {"name": name, **played, "milestones": list(milestones), **rest, **more}


# -- corner cases ----------------------------------------------------------------------------------


def corners() -> Iterator[Row]:
    yield from _values()
    yield from _rows()
    yield from _differences()
    yield from _graphs()
    yield from _mines()


def _values() -> Iterator[Row]:
    """What counts as equal."""
    null, zero = reminder("s"), reminder("s", latitude=0.0)
    work = call("work")
    name: str
    target: Any
    for name, row, target in (
        ("null and null", null, {"latitude": None}),
        ("null and 0.0", null, {"latitude": 0.0}),
        ("0.0 and null", zero, {"latitude": None}),
        ("null and 5.0", null, {"latitude": 5.0}),
        ("1 s later", null, {"reminder_timestamp": NOW + 1}),
        ("1 ms later", null, {"reminder_timestamp": NOW + 0.001}),
        ("an integer", null, {"reminder_timestamp": int(NOW)}),
    ):
        wanted: Row = {"reminder_id": "s", **target}
        played = episode(state(), (work, state(REMINDER=[reminder("r"), row])))
        yield case(f"added: {name}", played, [wants(constraint("REMINDER", "added", wanted))])
        played = episode(state(), (work, state(REMINDER=[row])))
        for what, whole in (("column", target), ("columns", wanted)):
            goal = [wants(constraint("REMINDER", "snapshot", whole))]
            yield case(f"snapshot, {what}: {name}", played, goal)
    for name, target in (
        ("true and 1", {"wifi": 1}),
        ("true and 1.0", {"wifi": 1.0}),
        ("true and 0", {"wifi": 0}),
        ("true and null", {"wifi": None}),
        ("1.0 and true", {"latitude": True}),
        ("1.0 and 1", {"latitude": 1}),
    ):
        yield case(name, episode(state()), [wants(constraint("SETTING", "snapshot", target))])
    friend = contact("cy", relationship=None)
    for name, row, target in (
        ("null and null", friend, None),
        ("null and a text", friend, "boss"),
        ("a text and null", contact("cy"), None),
        ("two of three words", contact("cy", relationship="very good boss"), "good boss"),
        ("stems", contact("cy", relationship="walks"), "walking"),
    ):
        played = episode(state(), (work, state(CONTACT=[contact("bo"), row])))
        wanted = {"name": "Cy", "relationship": target}
        goal = [wants(constraint("CONTACT", "added", wanted))]
        yield case(f"relationship: {name}", played, goal)
        exact = wants(constraint("CONTACT", "added", wanted, measures={"relationship": "exact"}))
        yield case(f"relationship, exact: {name}", played, [exact])
    given = call("look", on=True, days=3, place=None, words=["a", "b"], near={"x": 1})
    measures: Row
    for name, wanted, measures in (
        ("the same", {"on": True, "days": 3, "place": None}, {}),
        ("only some", {"days": 3}, {}),
        ("none", {}, {}),
        ("another value", {"days": 4}, {}),
        ("one more", {"days": 3, "other": 1}, {}),
        ("null and nothing given", {"other": None}, {}),
        ("null and a value", {"days": None}, {}),
        ("true and 1", {"on": 1}, {}),
        ("3 and 3.0", {"days": 3.0}, {}),
        ("3 and a text", {"days": "3"}, {}),
        ("lists", {"words": ["a", "b"]}, {}),
        ("lists, order", {"words": ["b", "a"]}, {}),
        ("objects", {"near": {"x": 1.0}}, {}),
        ("within", {"days": 5}, {"days": {"tolerance": 2}}),
        ("not within", {"days": 6}, {"days": {"tolerance": 2}}),
        ("true within", {"on": 3}, {"on": {"tolerance": 2}}),
        ("null within", {"place": None}, {"place": {"tolerance": 2}}),
    ):
        played = episode(state(), (given, state()))
        yield case(f"arguments: {name}", played, [calls(call("look", **wanted), **measures)])
    played = episode(state(), (given, state()))
    yield case("another tool", played, [calls(call("find"))])
    yield case("either tool", played, [calls(call("find"), call("look", days=3))])


def _rows() -> Iterator[Row]:
    """Pairing rows."""
    contents = ("buy milk", "call home at noon", "bring blue umbrella", "water tomatoes", "meet")
    for count in range(1, 6):
        kept = [reminder(f"r{i}", content=text) for i, text in enumerate(contents[:count])]
        played = episode(state(REMINDER=kept))
        turned = [*contents[1:count], contents[0]]
        near = ["buy blue milk", *(text + " at home" for text in reversed(contents[1:count]))]
        rows: list[Row]
        for name, texts in (("turned", turned), ("nearly", near), ("too few", turned[1:])):
            if texts:
                rows = [{"content": text} for text in texts]
                goal = [wants(constraint("REMINDER", "snapshot", *rows))]
                yield case(f"{count} rows, {name}", played, goal)
    places = [reminder("a", latitude=1.0), reminder("b"), reminder("c", latitude=3.0)]
    for name, latitudes in (("all", (1.0, 2.0, 3.0)), ("another", (1.0, 2.0, 4.0))):
        rows = [{"content": "buy milk at noon", "latitude": value} for value in latitudes]
        goal = [wants(constraint("REMINDER", "snapshot", *rows))]
        yield case(f"a null among rows: {name}", episode(state(REMINDER=places)), goal)
        rows = [{"latitude": value} for value in latitudes]
        goal = [wants(constraint("REMINDER", "snapshot", *rows))]
        yield case(f"a null alone among rows: {name}", episode(state(REMINDER=places)), goal)
    # The pairing with the largest product, 3/4 by 2/3, has not the largest sum, 1 and 4/9.
    said = ("alpha beta gamma delta", "alpha beta gamma six seven", "eins", "zwei")
    kept = [reminder(f"r{i}", content=text) for i, text in enumerate(said)]
    rows = [{"content": t} for t in (said[0], "six beta gamma delta", "eins", "zwei")]
    goal = [wants(constraint("REMINDER", "snapshot", *rows))]
    yield case("the best product", episode(state(REMINDER=kept)), goal)
    both = [constraint("SETTING", "snapshot", {"wifi": True})]
    both.append(constraint("REMINDER", "snapshot", {"content": "buy milk"}))
    yield case("two constraints", episode(state()), [wants(*both)])
    guarded = wants(*both, guards=["CONTACT", "MESSAGING"])
    yield case("guards are no constraints", episode(state()), [guarded])


def _differences() -> Iterator[Row]:
    """Added, removed and updated, where other things changed as well."""
    bo, cy, di = (contact(name) for name in ("bo", "cy", "di"))
    new = contact("cy", phone_number="+14155550111")
    twice = [contact("bo"), contact("bo")]
    for name, before, after in (
        ("one more", [bo, cy], [bo, cy, di]),
        ("one more, one less", [bo, cy], [bo, di]),
        ("one more, one changed", [bo, cy], [bo, new, di]),
        ("one less", [bo, cy], [bo]),
        ("one less, one changed", [bo, cy, di], [bo, new]),
        ("one changed", [bo, cy], [bo, new]),
        ("two changed", [bo, cy], [{**bo, "name": "Bob"}, new]),
        ("order", [bo, cy], [cy, bo]),
        ("null to empty", [{**bo, "relationship": None}], [{**bo, "relationship": ""}, cy]),
        ("twins", twice, [*twice, cy]),
        ("a twin", [bo], [*twice]),
    ):
        played = episode(state(CONTACT=before), (call("work"), state(CONTACT=after)))
        rows = (bo, cy, di, {**cy, "name": "Cyd"})
        for kind, row in itertools.product(("added", "removed", "updated"), rows):
            wanted = constraint("CONTACT", kind, {k: row[k] for k in ("name", "person_id")})
            yield case(f"{kind} {row['name']}: {name}", played, [wants(wanted)])
        guard = wants(constraint("SETTING", "snapshot", {"wifi": False}), guards=["CONTACT"])
        off = state(CONTACT=after, SETTING=[setting(wifi=False)])
        guarded = episode(state(CONTACT=before), (call("work"), off))
        yield case(f"guarded: {name}", guarded, [guard])


def _graphs() -> Iterator[Row]:
    """Order, references and milestones that no edge names."""
    played = episode(state(), "alpha", "beta", "gamma")
    for name, edges in (
        ("chain", None),
        ("the same chain", [[0, 1], [1, 2]]),
        ("no edges", []),
        ("one alone", [[0, 1]]),
        ("another alone", [[1, 2]]),
        ("join", [[0, 2], [1, 2]]),
        ("fork", [[0, 1], [0, 2]]),
    ):
        for said in itertools.permutations(("alpha", "beta", "gamma")):
            yield case(f"{name}: {' '.join(said)}", played, map(says, said), edges=edges)
        missed = [says("alpha"), says("delta"), says("gamma")]
        yield case(f"{name}: one missed", played, missed, edges=edges)
    yield case("one milestone, no edges", played, [says("beta")], edges=[])
    yield case("no milestones", played, [])
    both = [says("alpha"), says("alpha")]
    yield case("two at one message", episode(state(), "alpha"), both)
    add = [(call("work"), state(CONTACT=[contact(n) for n in names])) for names in (
        ("bo", "cy"), ("bo", "cy", "di"))]  # fmt: skip
    first = wants(constraint("CONTACT", "added", {"name": "Cy"}))
    off = [wants(constraint("SETTING", "snapshot", {"wifi": True}))]
    for since in (None, 0):
        second = wants(constraint("CONTACT", "added", {"name": "Di"}, since=since))
        yield case(f"added since {since}", episode(state(), *add), [first, second])
        done = constraint("SANDBOX", "snapshot", {"content": "done"})
        guard = wants(done, guards=[{"database": "CONTACT", "since": since}])
        last = episode(state(), *add, "done")
        yield case(f"guarded since {since}", last, [first, guard])
        yield case(f"guarded since {since}, in time", last, [*off, guard])
        early = episode(state(), add[0], "done", add[1])
        yield case(f"guarded since {since}, early", early, [first, guard])


def _mines() -> Iterator[Row]:
    played = episode(state(), (call("work", days=3), state(SETTING=[setting(wifi=False)])), "alpha")
    goal = [says("alpha")]
    off = constraint("SETTING", "snapshot", {"wifi": False})
    on = constraint("SETTING", "snapshot", {"wifi": True, "cellular": False})
    for name, mines, edges in (
        ("hit", [calls(call("work"))], None),
        ("hit with arguments", [calls(call("work", days=3))], None),
        ("other arguments", [calls(call("work", days=4))], None),
        ("hit in part", [says("alpha beta")], None),
        ("a state", [wants(off)], None),
        ("no state", [wants(on)], None),
        ("guarded", [wants(off, guards=["CONTACT"])], None),
        ("guard broken", [wants(off, guards=["SETTING"])], None),
        ("first of two", [calls(call("work")), says("zeta")], None),
        ("second of two", [says("zeta"), calls(call("work"))], None),
        ("two, no edges", [calls(call("work")), says("alpha")], []),
        ("one, no edges", [calls(call("work"))], []),
        ("one alone hit", [says("zeta"), says("eta"), calls(call("work"))], [[0, 1]]),
    ):
        more = {"minefields": mines, "minefield_edges": edges}
        yield case(f"mine: {name}", played, goal, **more)
        yield case(f"mine, nothing wanted: {name}", played, [], **more)


# -- random cases ----------------------------------------------------------------------------------


def drawn() -> Iterator[Row]:
    """Random episodes with milestones that have to do with them, kept as they were drawn. An event
    is what the agent says, or [tool, its arguments, the databases that it changes]."""
    for number, line in enumerate(DRAWN.read_text().splitlines()):
        kept = json.loads(line)
        opening = now = state(**_databases(kept.pop("opening")))
        events: list[Event] = []
        for event in kept.pop("events"):
            if isinstance(event, str):
                events.append(event)
                continue
            tool, arguments, changed = event
            now = {**now, **_databases(changed)}
            events.append((call(tool, **arguments), now))
        yield case(f"random {number}", episode(opening, *events), **kept)


def _databases(changed: dict[str, list[Any]]) -> State:
    """A row is its key, where it has one, and what differs from the others' values."""
    makers: dict[str, Callable[..., Row]]
    makers = {"SETTING": setting, "CONTACT": contact, "REMINDER": reminder, "MESSAGING": message}
    return {
        name: [makers[name](*key, **more) for *key, more in rows] for name, rows in changed.items()
    }
