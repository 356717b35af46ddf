"""The messages between host and worker: one JSON object per line, nothing else.

    worker  {"greeting": 1, "code": hash, "version": "0.1.0", "env": name}
    host    {"id": 7, "calls": [{"episode": 3, "do": "step", "action": {...}}, ...], "close": [1]}
    worker  {"id": 7, "results": [{"step": {...}}, ...]}

A call's `do` is reset (with `task`), step (with `action`) or score; `replay` holds earlier calls
of the episode to make first, if it has moved from a lost worker. Calls to the suite have `do`
about, tasks, task, reference or synthetic. While calls are open the worker may ask the host for the
simulated user's answer, {"ask": 5, "episode": 3, "role": "user", "messages": [...]}, with the
answer's `schema` where it is JSON, and the host answers {"answer": 5, "text": "..."}; the same
question in the same episode gets the same answer. An exception of an environment is returned as
{"error": "ValueError: ..."} in place of the call's result.

Every message of a worker is checked here before it is used, since the worker may run untrusted
code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.limits import Limits, Unreadable, fits, read
from trace_bench.core.types import (
    ROLES,
    Check,
    Message,
    Milestone,
    Score,
    Step,
    StopReason,
    Task,
    Tool,
    to_json,
)

PROTOCOL = 1
MAX_LINE = 16 * 2**20  # bytes; a step of 20 messages has some tens of kilobytes
LINE = Limits(MAX_LINE, depth=80)
MOST_MILESTONES = 1000  # in one score
MOST_TOOL_SETS = 2000  # of one worker
LONGEST_NAME = 300  # characters of a task's id, and of other names


class Violation(Exception):
    """The other side sent a message that violates the protocol."""


def encode(value: Mapping[str, Any]) -> bytes:
    """A message as a line; dataclasses in it become objects."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=to_json)
    return text.encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """A line as a message. Raises Violation."""
    try:
        value = read(line, LINE)
    except Unreadable as error:
        raise Violation(f"not JSON ({error}): {_short(line[:500])}") from error
    if not isinstance(value, dict):
        raise Violation(f"not a JSON object: {_short(line)}")
    return value


def step_to_json(step: Step, known: MutableMapping[str, bool]) -> dict[str, Any]:
    """A step as plain data. Sets of tools are long and few, so a step refers to them by a hash, and
    includes them only if `known` does not have them yet."""
    out: dict[str, Any] = {"messages": step.messages}
    if step.tools:
        digest = _digest(step.tools)
        out["tools"] = digest
        if digest not in known:
            known[digest] = True
            out["new_tools"] = step.tools
    if step.done:
        out |= {"done": True, "stop": step.stop.value if step.stop else None}
    if step.score is not None:
        out["score"] = step.score
    return out


def learn_tools(result: Mapping[str, Any], known: MutableMapping[str, tuple[Tool, ...]]) -> None:
    """Stores the tools that a result includes. Call it for results in the order in which the worker
    sent them. Raises Violation."""
    step = result.get("step")
    if isinstance(step, dict) and "new_tools" in step:
        tools = tuple(map(_tool, _list(step["new_tools"], "tools")))
        _need(step.get("tools") == _digest(tools), "the hash of the tools", step.get("tools"))
        known[_digest(tools)] = tools
        _need(len(known) <= MOST_TOOL_SETS, f"at most {MOST_TOOL_SETS} sets of tools", len(known))


def step_from_json(data: Any, known: Mapping[str, tuple[Tool, ...]]) -> Step:
    """The inverse of `step_to_json`; every value's type is checked. Raises Violation."""
    _need(isinstance(data, dict), "a step", data)
    _need(isinstance(data.get("messages"), list), "a list of messages", data.get("messages"))
    tools: tuple[Tool, ...] = ()
    if (digest := data.get("tools")) is not None:
        _need(isinstance(digest, str), "the tools' hash", digest)
        _need(digest in known, "the hash of tools that were sent", digest)
        tools = known[digest]
    done = data.get("done", False)
    _need(isinstance(done, bool), "true or false for done", done)
    stop = data.get("stop")
    _need(stop is None or stop in list(StopReason), "a stop reason", stop)
    score = data.get("score")
    _need(stop != StopReason.ERROR or score is None, "no score where the stop is error", score)
    return Step(
        messages=tuple(map(message_from_json, data["messages"])),
        tools=tools,
        done=done,
        score=None if score is None else score_from_json(score),
        stop=None if stop is None else StopReason(stop),
    )


def score_from_json(data: Any) -> Score:
    """A score, checked: similarity is a number in [0, 1], success a boolean, and milestones and
    minefields are alike. Raises Violation."""
    _need(isinstance(data, dict), "a score", data)
    success, details = data.get("success"), data.get("details", {})
    _need(isinstance(success, bool), "true or false for success", success)
    _need(isinstance(details, dict), "an object for details", details)
    milestones, minefields = (
        milestones_from_json(data.get(kind, []), kind) for kind in ("milestones", "minefields")
    )
    similarity = _similarity(data.get("similarity"))
    checks = tuple(map(_check, _list(data.get("checks", []), "checks", MOST_MILESTONES)))
    return Score(similarity, success, details, milestones, minefields, checks)


def milestones_from_json(data: Any, kind: str = "milestones") -> tuple[Milestone, ...]:
    """Milestones, checked. Raises Violation."""
    return tuple(map(_milestone, _list(data, kind, MOST_MILESTONES)))


def task_from_json(data: Any, envs: Collection[str], prefix: str = "") -> Task:
    """A task of a suite in a worker, checked: `env` is one of `envs`, so that no suite makes tasks
    of another, and the id starts with `prefix`. Raises Violation."""
    _need(isinstance(data, dict) and data.keys() == _TASK, "a task", data)
    for key in ("id", "env", "split"):
        _need(is_name(data[key]), f"a printable text for a task's {key}", data[key])
    parts = data["id"].split("/")
    _need(".." not in parts, "a task's id without ..", data["id"])
    _need(data["env"] in envs, f"{' or '.join(map(repr, envs))} for a task's env", data["env"])
    _need(data["id"].startswith(prefix), f"a task's id that starts with {prefix}", data["id"])
    seed = data["seed"]
    _need(type(seed) is int and abs(seed) < 2**63, "a seed of 63 bits", seed)
    _need(isinstance(data["data"], dict), "an object for a task's data", data["data"])
    return Task(**data)


_TASK = {"id", "env", "split", "seed", "data"}


def is_name(value: Any) -> bool:
    """Whether it is a short text without control characters."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def _milestone(data: Any) -> Milestone:
    _need(isinstance(data, dict), "a milestone", data)
    name, hit, place, tells = (data.get(key) for key in ("name", "hit", "place", "tells"))
    _need(isinstance(name, str), "a text for a milestone's name", name)
    _need(isinstance(hit, bool), "true or false for a milestone's hit", hit)
    _need(place is None or _is_index(place), "an index or null for a milestone's place", place)
    _need(tells is None or isinstance(tells, str), "a text or null for tells", tells)
    return Milestone(name, _similarity(data.get("similarity")), hit, place, tells)


def _check(data: Any) -> Check:
    _need(isinstance(data, dict), "a check", data)
    turn, item, after, step = (data.get(key) for key in ("turn", "item", "after", "step"))
    _need(_is_index(turn), "an index for a check's turn", turn)
    _need(is_name(item), "a printable text for a check's item", item)
    names = _list(after, "items", MOST_MILESTONES)
    _need(all(map(is_name, names)), "printable texts for a check's items before it", after)
    _need(step is None or _is_index(step), "an index or null for a check's step", step)
    return Check(int(turn), str(item), _similarity(data.get("weight")), tuple(names), step)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _similarity(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    _need(number and fits(value), "a number for similarity", value)
    _need(0 <= value <= 1, "a similarity from 0 to 1", value)
    return float(value)


def message_from_json(data: Any) -> Message:
    """A message, with its role, content and calls checked. Raises Violation."""
    _need(isinstance(data, dict) and data.get("role") in ROLES, "a message with a role", data)
    content = data.get("content")
    _need(content is None or isinstance(content, str), "a text for content", content)
    _need(isinstance(data.get("tool_calls", []), list), "a list of tool calls", data)
    return dict(data)


def _tool(data: Any) -> Tool:
    named = isinstance(data, dict) and isinstance(data.get("function"), dict)
    _need(named and isinstance(data["function"].get("name"), str), "a tool with a name", data)
    return dict(data)


def _list(value: Any, what: str, most: int | None = None) -> list[Any]:
    _need(isinstance(value, list), f"a list of {what}", value)
    _need(most is None or len(value) <= most, f"at most {most} {what}", len(value))
    return list(value)


def _need(condition: object, what: str, given: Any) -> None:
    if not condition:
        raise Violation(f"{what} was expected, got {_short(given)}")


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)[:400]
    return repr(text if len(text) <= 120 else text[:120] + "...")


def _digest(tools: Sequence[Tool]) -> str:
    return hashlib.sha256(encode({"tools": tools})).hexdigest()[:16]


IN_WORKER = ("protocol.py", "worker.py", "suite.py")
"""The files of this folder that a worker imports."""


def code_hash() -> str:
    """Hash of the code that host and worker must share: what a worker imports, and the data of the
    environments."""
    package = Path(__file__).resolve().parents[1]
    files = [*package.glob("core/**/*.py"), *package.glob("checklists/*.py")]
    files += package.glob("envs/**/*.py")
    files += [package / "sandbox" / name for name in IN_WORKER]
    files += [package / "settings" / name for name in ("registry.py", "schema.py", "origin.py")]
    files += package.glob("envs/**/*.json")
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
