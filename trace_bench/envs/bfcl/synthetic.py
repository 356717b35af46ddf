"""Training tasks in the benchmark's own tool classes, made by programs: one for each capability and
seed. None of the benchmark's entries is used.

A task is an entry like the benchmark's (see `world.Data`) and is run and scored in the same way.
In a contrast case the user's words are alike, but the capability is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from trace_bench.envs.bfcl.world import BfclCall

CONTRAST = 0.4  # share of seeds that give a contrast case
TEXTS = (
    "The train leaves at seven.", "Lunch is on me today.", "The draft is ready for review.",
    "See you at the station.", "Version two is out.", "The meeting room has changed.",
    "Please bring the signed form.", "All tests have passed.", "The garden gate is open.",
)  # fmt: skip
PEOPLE = ("Ada", "Bruno", "Chiara", "Dmitri", "Esra", "Farid", "Greta", "Hugo", "Ines", "Jonas")
NOUNS = ("budget", "harvest", "lantern", "meadow", "orbit", "pepper", "quartz", "ribbon", "saddle")
CITIES = ("Oakridge", "Elmford", "Pinehollow", "Maplewood", "Birchfield")
COMPANIES = {"Apple": "AAPL", "Tesla": "TSLA", "Nvidia": "NVDA", "Microsoft": "MSFT"}
TITLES = ("Printer out of paper", "Badge does not open", "Screen flickers", "Chair is broken")
DOORS = ("driver", "passenger", "rear_left", "rear_right")


@dataclass
class EntryDraft:
    """A task in the making: the user's texts with the calls that are due after each."""

    config: dict[str, Any]  # the initial state of each tool class
    turns: list[tuple[str, list[BfclCall]]] = field(default_factory=list)
    asks: bool = False  # in a turn without calls something must be asked for


Maker = Callable[[Random, bool], EntryDraft]


def synthetic_data(capability: str, seed: int) -> dict[str, Any]:
    """The data of a task (`record`, `contrast`). Raises KeyError for an unknown capability."""
    rng = Random(f"bfcl {capability} {seed}")
    contrast = rng.random() < CONTRAST
    draft = rng.choice(MAKERS[capability])(rng, contrast)
    record = {
        "id": f"{capability}_{seed}",
        "category": "miss_param" if draft.asks else "base",
        "scenario": None,
        "classes": list(draft.config),
        "config": draft.config,
        "turns": [text for text, _ in draft.turns],
        "withheld": {},
        "answers": [[_source(call) for call in calls] for _, calls in draft.turns],
    }
    return {"record": record, "contrast": contrast}


def _call(name: str, /, **arguments: Any) -> BfclCall:
    return BfclCall(name, arguments)


def _source(call: BfclCall) -> str:
    return f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"


# -- completes_all_parts --------------------------------------------------------------------------


def _several_files(rng: Random, contrast: bool) -> EntryDraft:
    new, empty, old, note, text = (*rng.sample(NOUNS, 4), rng.choice(TEXTS))
    parts = [
        (f"make a folder '{new}'", _call("mkdir", dir_name=new)),
        (f"create an empty file '{empty}.txt'", _call("touch", file_name=f"{empty}.txt")),
        (f"delete '{old}.txt'", _call("rm", file_name=f"{old}.txt")),
        (f"write '{text}' into '{note}.txt'", _call("echo", content=text, file_name=f"{note}.txt")),
    ]
    config = _folder({f"{old}.txt": "Old.", f"{note}.txt": "Nothing yet."})
    return _in_parts(rng, contrast, EntryDraft(config), parts)


def _several_in_the_car(rng: Random, contrast: bool) -> EntryDraft:
    gallons, city, degrees = rng.randint(3, 25), rng.choice(CITIES), rng.randint(17, 27)
    parts = [
        (f"fill in {gallons} more gallons", _call("fillFuelTank", fuelAmount=gallons)),
        ("switch the headlights on", _call("setHeadlights", mode="on")),
        (f"navigate to '{city}'", _call("set_navigation", destination=city)),
        (
            f"set the climate control to {degrees} degrees celsius",
            _call("adjustClimateControl", temperature=degrees),
        ),
    ]
    return _in_parts(rng, contrast, EntryDraft(_car(rng, 4)), parts)


def _in_parts(
    rng: Random, contrast: bool, draft: EntryDraft, parts: Sequence[tuple[str, BfclCall]]
) -> EntryDraft:
    """One request of several parts, or of a single one; sometimes what is left follows later."""
    chosen = rng.sample(list(parts), len(parts))
    size = 1 if contrast else rng.randint(2, len(parts))
    now, later = chosen[:size], chosen[size:][: 1 if contrast else rng.randint(0, 2)]
    for group in (now, later):
        if group:
            words = [text for text, _ in group]
            listed = ", ".join(words[:-1]) + (" and " if words[1:] else "") + words[-1]
            draft.turns.append((f"Please {listed}.", [call for _, call in group]))
    return draft


# -- takes_exact_arguments_from_results -----------------------------------------------------------


def _buys_at_the_price(rng: Random, contrast: bool) -> EntryDraft:
    name, symbol = rng.choice(list(COMPANIES.items()))
    price, amount = round(rng.uniform(20, 400), 2), rng.randint(2, 20)
    stock = {"price": price, "percent_change": 0.1, "volume": 1.5, "MA(5)": price, "MA(20)": price}
    account = {"account_id": 1, "balance": 90000.0, "binding_card": 1974202140965533}
    config = {"stocks": {symbol: stock}, "account_info": account, "authenticated": True,
              "market_status": "Open", "order_counter": rng.randint(100, 999)}  # fmt: skip
    calls = [_call("place_order", order_type="Buy", symbol=symbol, price=price, amount=amount)]
    text = f"Buy {amount} shares of {symbol} at {price} each."
    if not contrast:
        text = f"Buy {amount} shares of {name} at the current price."
        look = _call("get_symbol_by_name", name=name)
        calls = [look, _call("get_stock_info", symbol=symbol), *calls]
    return EntryDraft({"TradingBot": config}, [(text, calls)])


def _writes_to_somebody(rng: Random, contrast: bool) -> EntryDraft:
    ids, (name, *_), text = _users(rng)
    calls = [_call("send_message", receiver_id=ids[name], message=text)]
    asked = f"Send the message '{text}' to the user {ids[name]}."
    if not contrast:
        asked = f"Send the message '{text}' to {name}."
        calls = [_call("get_user_id", user=name), *calls]
    return EntryDraft(_messages(ids), [(asked, calls)])


def _copies_the_last_line(rng: Random, contrast: bool) -> EntryDraft:
    source, target = (f"{noun}.txt" for noun in rng.sample(NOUNS, 2))
    lines = [f"{text} ({rng.randint(1000, 9999)})" for text in rng.sample(TEXTS, 3)]
    calls = [_call("echo", content=lines[-1], file_name=target)]
    text = f"Write '{lines[-1]}' into '{target}'."
    if not contrast:
        text = f"Write the last line of '{source}' into '{target}', just as it is."
        calls = [_call("tail", file_name=source, lines=1), *calls]
    files = {source: "\n".join(lines), target: "Nothing yet."}
    return EntryDraft(_folder(files), [(text, calls)])


# -- recovers_from_errors -------------------------------------------------------------------------


def _starts_the_engine(rng: Random, contrast: bool) -> EntryDraft:
    calls = [_call("startEngine", ignitionMode="START")]
    unlocked = 0 if contrast else rng.randint(1, 4)
    config = _car(rng, unlocked)
    if contrast:
        config["VehicleControlAPI"] |= {"brakePedalStatus": "pressed", "brakePedalForce": 1000.0}
    else:
        doors = [d for d, s in config["VehicleControlAPI"]["doorStatus"].items() if s != "locked"]
        lock = _call("lockDoors", unlock=False, door=doors)
        calls = [lock, _call("pressBrakePedal", pedalPosition=1.0), *calls]
    city = rng.choice(CITIES)
    text = "Start the engine, whatever that takes."
    draft = EntryDraft(config, [(text, calls)])
    if rng.random() < 0.5:
        navigate = _call("set_navigation", destination=city)
        draft.turns.append((f"Now navigate to '{city}'.", [navigate]))
    return draft


def _posts(rng: Random, contrast: bool) -> EntryDraft:
    user, text = rng.choice(PEOPLE).lower(), rng.choice(TEXTS)
    password = f"{rng.choice(NOUNS)}{rng.randint(10, 99)}"
    config = {"username": user, "password": password, "authenticated": contrast, "tweets": {},
              "tweet_counter": rng.randint(3, 50)}  # fmt: skip
    asked = f"Post '{text}' on Twitter. My user name is '{user}' and my password '{password}'."
    calls = [_call("post_tweet", content=text)]
    if not contrast:
        calls = [_call("authenticate_twitter", username=user, password=password), *calls]
    return EntryDraft({"TwitterAPI": config}, [(asked, calls)])


# -- asks_when_information_is_missing -------------------------------------------------------------


def _opens_a_ticket(rng: Random, contrast: bool) -> EntryDraft:
    title, priority = rng.choice(TITLES), rng.randint(2, 5)
    config = {"ticket_queue": [], "ticket_counter": rng.randint(1, 90),
              "current_user": rng.choice(PEOPLE)}  # fmt: skip
    create = _call("create_ticket", title=title, priority=priority)
    draft = EntryDraft({"TicketAPI": config}, asks=True)
    full = f"Open a ticket of priority {priority} without a description, titled '{title}'."
    parts = (f"Open a ticket of priority {priority} without a description.", f"Title it '{title}'.")
    return _told_in(draft, contrast, full, parts, create)


def _sends_a_text(rng: Random, contrast: bool) -> EntryDraft:
    ids, (name, *_), text = _users(rng)
    send = _call("send_message", receiver_id=ids[name], message=text)
    draft = EntryDraft(_messages(ids), asks=True)
    full = f"Send the user {ids[name]} a message that says '{text}'."
    parts = (f"Send the user {ids[name]} a message.", f"'{text}'")
    return _told_in(draft, contrast, full, parts, send)


def _makes_a_folder(rng: Random, contrast: bool) -> EntryDraft:
    name, *others = rng.sample(NOUNS, 3)
    make = _call("mkdir", dir_name=name)
    draft = EntryDraft(_folder({f"{n}.txt": "" for n in others}), asks=True)
    parts = ("Make a new folder here.", f"Call it '{name}'.")
    return _told_in(draft, contrast, f"Make a new folder '{name}' here.", parts, make)


def _told_in(
    draft: EntryDraft, contrast: bool, full: str, parts: Sequence[str], call: BfclCall
) -> EntryDraft:
    """The request in one text, or in two of which the first is not enough."""
    draft.turns = [(full, [call])] if contrast else [(parts[0], []), (parts[1], [call])]
    return draft


# -- initial states -------------------------------------------------------------------------------


def _folder(files: Mapping[str, str]) -> dict[str, Any]:
    contents = {name: {"type": "file", "content": text} for name, text in files.items()}
    root = {"workspace": {"type": "directory", "contents": contents}}
    return {"GorillaFileSystem": {"root": root}}


def _car(rng: Random, unlocked: int) -> dict[str, Any]:
    open_ones = set(rng.sample(DOORS, unlocked))
    status = {door: "unlocked" if door in open_ones else "locked" for door in DOORS}
    fuel = float(rng.randint(5, 20))
    car = {"fuelLevel": fuel, "doorStatus": status, "remainingUnlockedDoors": unlocked}
    return {"VehicleControlAPI": car}


def _users(rng: Random) -> tuple[dict[str, str], list[str], str]:
    """(id by name, the names of everybody but the agent's user, a text)."""
    names = rng.sample(PEOPLE, 5)
    ids = {name: f"USR{rng.randint(0, 99):02d}{n}" for n, name in enumerate(names)}
    return ids, names[1:], rng.choice(TEXTS)


def _messages(ids: Mapping[str, str]) -> dict[str, Any]:
    state = {"user_map": dict(ids), "user_count": len(ids), "inbox": [], "message_count": 0,
             "current_user": next(iter(ids.values()))}  # fmt: skip
    return {"MessageAPI": state}


MAKERS: Mapping[str, Sequence[Maker]] = {
    "completes_all_parts": (_several_files, _several_in_the_car),
    "takes_exact_arguments_from_results": (
        _buys_at_the_price,
        _writes_to_somebody,
        _copies_the_last_line,
    ),
    "recovers_from_errors": (_starts_the_engine, _posts),
    "asks_when_information_is_missing": (_opens_a_ticket, _sends_a_text, _makes_a_folder),
}
