"""What a program can see of a conversation: calls with their results, texts, and where values came
from; one trajectory with its score, also beside its task's reference.

Total: any list of messages gives a `Heard`, however absurd the agent's replies are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HasMilestones, HasReference, Suite, conversation, performed
from trace_bench.core.types import Message, Milestone, StopReason, Task

_ERROR = re.compile(r"^(?:[A-Za-z_.]*(?:Error|Exception))\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DEPTH = 8  # nested deeper than this, a value is not looked into


@dataclass(frozen=True)
class Call:
    """A tool call of the agent, with its result. `at` is its place among all events."""

    name: str
    arguments: dict[str, Any]
    at: int
    readable: bool = True
    result: Any = None  # parsed JSON, or the raw text
    error: str | None = None
    answered: bool = False


@dataclass(frozen=True)
class Text:
    text: str
    at: int


@dataclass(frozen=True)
class Heard:
    """A conversation taken apart; all lists in order."""

    calls: tuple[Call, ...] = ()
    said: tuple[Text, ...] = ()  # the agent's texts
    heard: tuple[Text, ...] = ()  # the user's texts
    ends_with_text: bool = False  # the agent's last reply was a text without calls

    def before(self, at: int) -> Heard:
        return Heard(
            tuple(c for c in self.calls if c.at < at),
            tuple(t for t in self.said if t.at < at),
            tuple(t for t in self.heard if t.at < at),
        )

    @property
    def good(self) -> tuple[Call, ...]:
        """Calls that came back without an error."""
        return tuple(c for c in self.calls if c.error is None and c.answered)

    @property
    def questions(self) -> tuple[Text, ...]:
        return tuple(t for t in self.said if "?" in t.text)

    def stuck(self) -> bool:
        """Some call failed and no later call of the same tool succeeded."""
        return any(
            c.error is not None and not any(g.name == c.name and g.at > c.at for g in self.good)
            for c in self.calls
        )


@dataclass
class _Reader:
    """Collects events. `waiting`: calls without a result so far, by id."""

    calls: list[Call] = field(default_factory=list)
    said: list[Text] = field(default_factory=list)
    heard: list[Text] = field(default_factory=list)
    waiting: list[tuple[object, int]] = field(default_factory=list)
    at: int = 0
    ends_with_text: bool = False

    def assistant(self, message: Message) -> None:
        text, calls = message.get("content"), message.get("tool_calls")
        text = text if isinstance(text, str) and text.strip() else ""
        if text:
            self.said.append(Text(text, self.tick()))
        calls = calls if isinstance(calls, list | tuple) else []
        self.ends_with_text = bool(text) and not calls
        self.waiting = []
        for call in calls:
            name, arguments, readable = _call(call)
            self.waiting.append((_get(call, "id"), len(self.calls)))
            self.calls.append(Call(name, arguments, self.tick(), readable))

    def tool(self, message: Message) -> None:
        if not self.waiting:
            return
        wanted = message.get("tool_call_id")
        spot = next((i for i, (key, _) in enumerate(self.waiting) if key == wanted), 0)
        _, index = self.waiting.pop(spot)
        call, content = self.calls[index], message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, default=str)
        result = _parse(text)
        # Also {"error": "..."}, as many tools report one.
        failed = bool(_ERROR.match(text)) or (isinstance(result, dict) and [*result] == ["error"])
        came = {"error": text} if failed else {"result": result}
        self.calls[index] = replace(call, answered=True, **came)

    def tick(self) -> int:
        self.at += 1
        return self.at


def read(messages: Sequence[Message]) -> Heard:
    """Takes a conversation (OpenAI chat messages) apart. Never raises."""
    reader = _Reader()
    for message in messages:
        role = _get(message, "role")
        if role == "assistant":
            reader.assistant(message)
        elif role == "tool":
            reader.tool(message)
        elif role == "user":
            reader.heard.append(Text(str(message.get("content") or ""), reader.tick()))
    spoken = (tuple(reader.said), tuple(reader.heard))
    return Heard(tuple(reader.calls), *spoken, reader.ends_with_text)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _call(call: Any) -> tuple[str, dict[str, Any], bool]:
    function = _get(call, "function")
    name, arguments = _get(function, "name"), _get(function, "arguments")
    if isinstance(arguments, str):
        arguments = _parse(arguments)
    name = name if isinstance(name, str) else ""
    if not isinstance(arguments, dict):
        return name, {}, False
    return name, {str(k): v for k, v in arguments.items()}, bool(name)


def _parse(text: str) -> Any:
    """JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def atoms(value: Any, depth: int = 0) -> Iterator[str | float]:
    """The strings and numbers inside a JSON value; booleans and nulls carry no identity."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if (number := as_number(value)) is not None:
            yield number
    elif depth < _DEPTH and isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from atoms(inner, depth + 1)


def as_number(value: Any) -> float | None:
    """A finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def same(a: Any, b: Any) -> bool:
    """Equal as argument values: numbers within rounding, texts apart from outer blanks."""
    x, y = as_number(a), as_number(b)
    if x is not None and y is not None:
        return abs(x - y) <= 1e-6 * max(1.0, abs(x), abs(y))
    if isinstance(a, str) and isinstance(b, str):
        return a.strip() == b.strip()
    return type(a) is type(b) and bool(a == b)


def in_texts(value: Any, texts: Sequence[Text]) -> bool:
    """Whether one of the texts has the value: a number as such ("05" is 5), a string verbatim."""
    if (number := as_number(value)) is not None:
        return any(same(float(m), number) for t in texts for m in _NUMBER.findall(t.text)[:200])
    return isinstance(value, str) and any(value.casefold() in t.text.casefold() for t in texts)


def in_results(value: Any, calls: Sequence[Call]) -> bool:
    """Whether one of the calls returned this very value (anywhere inside its result)."""
    return any(same(atom, value) for c in calls if c.error is None for atom in atoms(c.result))


def precise(value: Any) -> bool:
    """Values that have to be taken over exactly: numbers but 0 and 1, and words with digits."""
    if (number := as_number(value)) is not None:
        return number not in (0.0, 1.0)
    return isinstance(value, str) and len(value.split()) == 1 and any(c.isdigit() for c in value)


def records(call: Call) -> list[dict[str, Any]]:
    """The records of a search result: a list of objects, else none."""
    rows = call.result if isinstance(call.result, list) else []
    return [row for row in rows if isinstance(row, dict)]


@dataclass(frozen=True)
class Scored:
    """One trajectory to be labelled, with the milestones and minefields of its score."""

    agent: Heard
    stop: StopReason
    milestones: tuple[Milestone, ...]
    minefields: tuple[Milestone, ...]
    malformed: bool

    @property
    def acts(self) -> bool:
        """Whether the task wants more than words."""
        return any(m.tells is None for m in self.milestones)

    @property
    def forbidden(self) -> bool:
        return bool(self.minefields)


@dataclass(frozen=True)
class Case(Scored):
    """With the task's reference and its results: that is all the program may know."""

    reference: Heard

    @property
    def acts(self) -> bool:
        return bool(self.reference.calls)


def check_labels(suite: Suite) -> None:
    """Raises UserError for a suite whose episodes the program cannot label."""
    if not isinstance(suite, HasReference | HasMilestones):
        raise UserError(
            "the labelling program compares episodes with references, or reads the milestones of "
            f"their scores, and {suite.name}/{suite.variant} has neither (HasReference, "
            "HasMilestones, see docs/environments.md). Set llm.analyst.by=endpoint, or another "
            "`env`."
        )


Facts = Heard | tuple[Milestone, ...]
"""What is known of a task: its reference with the results, or its milestones, none of them met."""


def facts_of(suite: Suite, task: Task) -> Facts:
    """Replays the reference, if there is one; no agent acts, so no rollout is spent."""
    if not isinstance(suite, HasReference):
        assert isinstance(suite, HasMilestones)
        return tuple(suite.milestones(task))
    replies = suite.reference(task)
    return read(conversation(performed(suite, task, replies), replies))


def right_call(call: Call, wanted: Sequence[Call]) -> bool:
    """One of the wanted calls has this name and these arguments (long texts aside)."""
    return any(
        w.name == call.name
        and all(same(call.arguments.get(k), v) or is_long(v) for k, v in w.arguments.items())
        for w in wanted
    )


def is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value.split()) > 1


def made_up(call: Call, key: str, agent: Heard) -> bool:
    value, past = call.arguments[key], agent.before(call.at)
    return precise(value) and not in_results(value, past.good) and not in_texts(value, past.heard)


def invents(case: Case, known: Set[str]) -> bool:
    """The agent made a call that the reference does not make, with an argument from nowhere."""
    return any(
        made_up(call, key, case.agent)
        for call in case.agent.calls
        if call.name not in known
        for key in call.arguments
    )


def chosen_record(search: Call, calls: Sequence[Call]) -> tuple[str, str, Any] | None:
    """A later argument that stands in exactly one of the records."""
    for call in calls:
        for key, value in call.arguments.items() if call.at > search.at else ():
            rows = [row for row in records(search) if any(same(a, value) for a in atoms(row))]
            if precise(value) and len(rows) == 1:
                return call.name, key, value
    return None


def parts(reference: Heard) -> list[list[Call]]:
    """The reference's calls in groups that do not feed one another, without those that only mend an
    error (between a failed call and its repetition)."""
    groups: list[list[Call]] = []
    for call in reference.good:
        if mends(call, reference):
            continue
        fed = [g for g in groups if any(feeds(c, call, reference) for c in g)]
        groups = [g for g in groups if g not in fed]
        groups.append([*(c for g in fed for c in g), call])
    return groups


def mends(call: Call, reference: Heard) -> bool:
    return any(
        failed.error is not None
        and failed.at < call.at
        and failed.name != call.name
        and any(g.name == failed.name and g.at > call.at for g in reference.good)
        and not any(g.name == failed.name and failed.at < g.at < call.at for g in reference.good)
        for failed in reference.calls
    )


def feeds(source: Call, call: Call, reference: Heard) -> bool:
    """Whether an argument of `call` came out of `source` and not from the user."""
    return any(
        precise(value)
        and in_results(value, [source])
        and not in_texts(value, [t for t in reference.heard if t.at < call.at])
        for value in call.arguments.values()
    )


def is_converted(value: Any, call: Call, reference: Heard) -> bool:
    """A short value of the reference that stands neither in what the user said nor in a result."""
    if as_number(value) in (None, 0.0) and not (isinstance(value, str) and not is_long(value)):
        return False
    past = reference.before(call.at)
    return not in_texts(value, past.heard) and not in_results(value, past.good)
