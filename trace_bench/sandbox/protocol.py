"""What host and worker say to each other: one JSON object a line, nothing else.

    worker  {"greeting": 1, "code": hash, "version": "0.1.0", "env": name}
    host    {"id": 7, "calls": [{"episode": 3, "do": "step", "action": {...}}, ...], "close": [1]}
    worker  {"id": 7, "results": [{"step": {...}}, ...]}

A call's `do` is reset (with `task`), step (with `action`) or score; `replay` holds earlier calls
of the episode that are to be made first, when it has moved here from a worker that was lost. A
suite is asked with `do` about, tasks or reference. While calls are open the worker may ask back for
the simulated user, {"ask": 5, "episode": 3, "role": "user", "messages": [...]}, and the host
answers {"answer": 5, "text": "..."}; the same question of the same episode is given the same
answer. What an environment raises comes back as {"error": "ValueError: ..."} in the place of the
call's result.

Whatever a worker says is checked here before anything else sees it: the code behind it may be
anybody's.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from trace_bench.core.types import Message, Score, Step, StopReason, Tool, to_json

PROTOCOL = 1
MAX_LINE = 16 * 2**20  # bytes; a step of 20 messages has some tens of kilobytes
ROLES = ("system", "user", "assistant", "tool")


class Violation(Exception):
    """The other side said something that the protocol does not allow."""


def encode(value: Mapping[str, Any]) -> bytes:
    """A message as a line; dataclasses in it become objects."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=to_json)
    return text.encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """A line as a message. Raises Violation."""
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Violation(f"not JSON ({_short(error)}): {_short(line)}") from error
    if not isinstance(value, dict):
        raise Violation(f"not a JSON object: {_short(line)}")
    return value


def step_to_json(step: Step, known: MutableMapping[str, bool]) -> dict[str, Any]:
    """A step as plain data. Tools are long and few: they are named by their hash, and sent along
    only when `known` does not have them yet."""
    out: dict[str, Any] = {"messages": step.messages}
    if step.tools:
        mark = hashlib.sha256(encode({"tools": step.tools})).hexdigest()[:16]
        out["tools"] = mark
        if mark not in known:
            known[mark] = True
            out["new_tools"] = step.tools
    if step.done:
        out |= {"done": True, "stop": step.stop.value if step.stop else None}
    if step.score is not None:
        out["score"] = step.score
    return out


def learn_tools(result: Mapping[str, Any], known: MutableMapping[str, tuple[Tool, ...]]) -> None:
    """Remembers the tools that a result brings along. To be called for results in the order in
    which the worker gave them. Raises Violation."""
    step = result.get("step")
    if isinstance(step, dict) and "new_tools" in step:
        known[str(step.get("tools"))] = tuple(map(_tool, _list(step["new_tools"], "tools")))


def step_from_json(data: Any, known: Mapping[str, tuple[Tool, ...]]) -> Step:
    """The inverse of `step_to_json`; every value's type is checked. Raises Violation."""
    _need(isinstance(data, dict), "a step", data)
    _need(isinstance(data.get("messages"), list), "a list of messages", data.get("messages"))
    tools: tuple[Tool, ...] = ()
    if (mark := data.get("tools")) is not None:
        _need(isinstance(mark, str), "the tools' mark", mark)
        _need(mark in known, "tools that were sent", mark)
        tools = known[mark]
    done = data.get("done", False)
    _need(isinstance(done, bool), "true or false for done", done)
    stop = data.get("stop")
    _need(stop is None or stop in list(StopReason), "a stop reason", stop)
    score = data.get("score")
    return Step(
        messages=tuple(map(_message, data["messages"])),
        tools=tools,
        done=done,
        score=None if score is None else score_from_json(score),
        stop=None if stop is None else StopReason(stop),
    )


def score_from_json(data: Any) -> Score:
    """A score whose similarity is a number in [0, 1] and whose success is a truth value. Raises
    Violation."""
    _need(isinstance(data, dict), "a score", data)
    similarity, success = data.get("similarity"), data.get("success")
    number = isinstance(similarity, int | float) and not isinstance(similarity, bool)
    _need(number and math.isfinite(similarity), "a number for similarity", similarity)
    _need(0 <= similarity <= 1, "a similarity from 0 to 1", similarity)
    _need(isinstance(success, bool), "true or false for success", success)
    details = data.get("details", {})
    _need(isinstance(details, dict), "an object for details", details)
    return Score(float(similarity), success, details)


def _message(data: Any) -> Message:
    _need(isinstance(data, dict) and data.get("role") in ROLES, "a message with a role", data)
    content = data.get("content")
    _need(content is None or isinstance(content, str), "a text for content", content)
    _need(isinstance(data.get("tool_calls", []), list), "a list of tool calls", data)
    return dict(data)


def _tool(data: Any) -> Tool:
    named = isinstance(data, dict) and isinstance(data.get("function"), dict)
    _need(named and isinstance(data["function"].get("name"), str), "a tool with a name", data)
    return dict(data)


def _list(value: Any, what: str) -> list[Any]:
    _need(isinstance(value, list), f"a list of {what}", value)
    return list(value)


def _need(condition: object, what: str, given: Any) -> None:
    if not condition:
        raise Violation(f"{what} was expected, got {_short(given)}")


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)[:400]
    return repr(text if len(text) <= 120 else text[:120] + "...")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def code_hash() -> str:
    """What host and worker must have in common: the environments and this protocol."""
    package = Path(__file__).resolve().parents[1]
    files = [
        package / "core" / "types.py",
        package / "core" / "errors.py",
        Path(__file__).resolve(),
    ]
    files += [package / "sandbox" / "worker.py", *package.glob("envs/**/*.py")]
    files += package.glob("envs/**/*.json")
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
