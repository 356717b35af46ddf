"""What a world outside sends, checked where it arrives: a failure of the environment, never of the
agent, for what is no JSON or too large, a reward that is no number, a tool without a schema."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from trace_bench.core.chat import tool_json
from trace_bench.core.decode import MESSAGES, shown
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.limits import fault_of, fits
from trace_bench.core.types import Boundary, Tool

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Answer:
    """What came back for a call. `reward`: None if none came with it; `over`: the world has ended
    the episode."""

    text: str
    reward: float | None = None
    over: bool = False


def refuse(what: str) -> NoReturn:
    """Raises the failure of the environment."""
    raise EpisodeError(Boundary.ENVIRONMENT.value, what)


def answer_of(value: Any, reward: Any = None, over: Any = False) -> Answer:
    """An answer from outside, checked. What is no text is shown as JSON. Raises EpisodeError."""
    if fault := fault_of([value], MESSAGES):
        refuse(f"the world's answer cannot be used: {fault}")
    if not isinstance(over, bool):
        refuse(f"the world says {shown(over)} where true or false is due (is the episode over?)")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Answer(text, reward_of(reward), over)


def reward_of(reward: Any) -> float | None:
    """A reward from outside. Raises EpisodeError unless it is a finite number."""
    if reward is None:
        return None
    if not isinstance(reward, bool | int | float) or not fits(reward):
        refuse(f"the world's reward is {shown(reward)}; allowed: a finite number")
    return float(reward)


def tool_of(name: Any, description: Any, schema: Any) -> Tool:
    """A tool from outside, checked. Raises EpisodeError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"a tool is called {shown(name)}; allowed: up to 64 letters, digits, _, . and -")
    if fault := fault_of([description, schema], MESSAGES):
        refuse(f"the tool {name} cannot be used: {fault}")
    given = dict(schema) if isinstance(schema, dict) else {"type": shown(schema)}
    kind = given.setdefault("type", "object")
    properties = given.setdefault("properties", {})
    if kind != "object" or not isinstance(properties, dict):
        refuse(f"the arguments of the tool {name} are of type {kind}; allowed: an object")
    needed = given.setdefault("required", [])
    if not isinstance(needed, list) or any(one not in properties for one in needed):
        refuse(f"the tool {name} requires {shown(needed)}, which it does not describe")
    return tool_json(name, description if isinstance(description, str) else "", given)


def digest(value: Any) -> str:
    """A name for plain data, by which a change is noticed."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain_name(text: Any, otherwise: str) -> str:
    """A world's name of itself, as a part of a suite's name."""
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:60] if type(text) is str else ""
    return found or otherwise


def asked(what: str, ask: Callable[[], T], setting: str) -> T:
    """What a world says before there are episodes. Raises UserError that names the setting."""
    try:
        return ask()
    except EpisodeError as error:
        raise UserError(f"{what}: {error}. Change `{setting}`.") from error
