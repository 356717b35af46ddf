"""Trajectories that are not references, and the package's own verdict on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from trace_bench.core.types import Message, Score, Task
from trace_bench.envs.bfcl.suite import BfclEnv
from trace_bench.envs.bfcl.world import BfclCall, named, parse

Turns = list[list[list[BfclCall]]]  # turns of steps of calls

READS = {
    "GorillaFileSystem": "pwd", "MathAPI": "absolute_value", "MessageAPI": "list_users",
    "TwitterAPI": "posting_get_login_status", "TicketAPI": "ticket_get_login_status",
    "TradingBot": "get_current_time", "TravelAPI": "list_all_airports",
    "VehicleControlAPI": "get_current_speed",
}  # fmt: skip
WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "GorillaFileSystem": ("mkdir", {"dir_name": "one_more"}),
    "MessageAPI": ("add_contact", {"user_name": "Somebody"}),
    "TradingBot": ("fund_account", {"amount": 1.5}),
    "TravelAPI": ("set_budget_limit", {"access_token": "x", "budget_limit": 3.5}),
    "VehicleControlAPI": ("lockDoors", {"unlock": True, "door": ["driver"]}),
    "TicketAPI": ("ticket_login", {"username": "a", "password": "b"}),
    "TwitterAPI": ("authenticate_twitter", {"username": "a", "password": "b"}),
}
KINDS = (
    "dropped call", "wrong argument", "reordered", "extra read", "empty turn", "extra write",
    "unknown tool", "call too early", "several calls a step", "endless",
)  # fmt: skip


def reference(entry: Mapping[str, Any]) -> Turns:
    return [[[named(parse(s), entry["classes"])] for s in turn] for turn in entry["answers"]]


def changed(entry: Mapping[str, Any], kind: str, rng: Random) -> Turns:
    """The reference, changed in one way; where that way does not apply, a call is dropped."""
    turns = reference(entry)
    due = [n for n, turn in enumerate(turns) if turn]
    at = rng.choice(due)
    place = rng.randrange(len(turns[at]))
    call = turns[at][place][0]
    own = [name for name in entry["classes"] if name in WRITES]
    if kind == "wrong argument" and call.arguments:
        key = rng.choice(sorted(call.arguments))
        turns[at][place] = [
            BfclCall(call.name, {**call.arguments, key: _other(call.arguments[key])})
        ]
    elif kind == "reordered" and len(turns[at]) > 1:
        turns[at].reverse()
    elif kind == "extra read":
        name = READS[rng.choice(entry["classes"])]
        turns[at].insert(place, [BfclCall(name, {"number": 3} if name == "absolute_value" else {})])
    elif kind == "empty turn":
        turns[at] = []
    elif kind == "extra write" and own:
        turns[at].insert(place, [BfclCall(*WRITES[rng.choice(own)])])
    elif kind == "unknown tool":
        turns[at].insert(place, [BfclCall("no_such_tool", {"text": "cd (folder='x')"})])
    elif kind == "call too early" and at:
        turns[rng.randrange(at)].append(turns[at].pop(place))
    elif kind == "several calls a step":
        turns[at] = [[call for step in turns[at] for call in step]]
    elif kind == "endless":
        turns[at] += [[call]] * 25
    else:
        turns[at].pop(place)
    return turns


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}s" if isinstance(value, str) else []


def messages(turns: Turns) -> list[Message]:
    """The turns as an agent's messages."""
    out: list[Message] = []
    for turn in turns:
        for step in turn:
            calls = [
                {"id": f"c{n}", "type": "function",
                 "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                for n, call in enumerate(step)
            ]  # fmt: skip
            out.append({"role": "assistant", "content": "", "tool_calls": calls})
        out.append({"role": "assistant", "content": "Next, please."})
    return out


def ours(env: BfclEnv, task: Task, actions: Sequence[Message]) -> Score:
    env.reset(task)
    for action in actions:
        step = env.step(action)
        if step.done:
            assert step.score is not None
            return step.score
    raise AssertionError("the episode does not end")


def theirs(entry: Mapping[str, Any], turns: Turns, name: str) -> str | None:
    """The package's name of the fault; None for a valid entry. As its evaluation does it: a turn of
    more than 20 steps ends the generation, what is missing then fails the entry, and the rest is
    the checker's. `name` must be new: the package keeps its instances by it."""
    answers, played = entry["answers"], []
    for turn in turns:
        played.append([[_source(call) for call in step] for step in turn[:21]])
        if len(turn) > 20:
            break
    if len(played) != len(answers):
        return "multi_turn:force_terminated"
    raw = {"id": f"multi_turn_{entry['id']}", "initial_config": entry["config"]}
    raw["involved_classes"] = entry["classes"]
    category = f"multi_turn_{entry['category']}"
    try:
        found = multi_turn_checker(played, answers, raw, category, name)
    finally:
        for key in [k for k in vars(multi_turn_utils) if k.startswith(name)]:
            delattr(multi_turn_utils, key)
    return None if found["valid"] else str(found["error_type"])


def _source(call: BfclCall) -> str:
    """A call as the package decodes it from a model's JSON."""
    return f"{call.name}({','.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
