"""What a program can see of a conversation: calls with their results, texts, and where values came
from; one trajectory with its score, also beside its task's reference.

Total: any list of messages gives a `Heard`, however absurd the agent's replies are.

And trajectories as text for a reader who is a language model: whole, shortened to fit, or their
outcome.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from trace_bench.core.protocols import Suite, conversation, performed
from trace_bench.core.types import Message, Milestone, Step, Task, Trajectory

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

    def mended(self, call: Call) -> bool:
        """A later call of the same tool succeeded."""
        return any(g.name == call.name and g.at > call.at for g in self.good)

    def stuck(self) -> bool:
        """Some call failed and no later call of the same tool succeeded."""
        return any(c.error is not None and not self.mended(c) for c in self.calls)


def read(messages: Sequence[Message]) -> Heard:
    """Takes a conversation (OpenAI chat messages) apart. Never raises."""
    calls: list[Call] = []
    said: list[Text] = []
    heard: list[Text] = []
    waiting: list[tuple[object, int]] = []  # ids and places of calls without a result so far
    ends_with_text = False
    ticks = count(1)
    for message in messages:
        role, content = _get(message, "role"), _get(message, "content")
        if role == "user":
            heard.append(Text(str(content or ""), next(ticks)))
        elif role == "assistant":
            text = content if isinstance(content, str) and content.strip() else ""
            if text:
                said.append(Text(text, next(ticks)))
            listed = message.get("tool_calls")
            listed = listed if isinstance(listed, list | tuple) else []
            ends_with_text = bool(text) and not listed
            waiting = [(_get(call, "id"), len(calls) + n) for n, call in enumerate(listed)]
            calls += [_call(call, next(ticks)) for call in listed]
        elif role == "tool" and waiting:
            wanted = message.get("tool_call_id")
            spot = next((i for i, (key, _) in enumerate(waiting) if key == wanted), 0)
            _, place = waiting.pop(spot)
            calls[place] = _answered(calls[place], content)
    return Heard(tuple(calls), tuple(said), tuple(heard), ends_with_text)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _call(call: Any, at: int) -> Call:
    function = _get(call, "function")
    name, arguments = _get(function, "name"), _get(function, "arguments")
    if isinstance(arguments, str):
        arguments = _parse(arguments)
    name = name if isinstance(name, str) else ""
    if not isinstance(arguments, dict):
        return Call(name, {}, at, readable=False)
    return Call(name, {str(k): v for k, v in arguments.items()}, at, readable=bool(name))


def _answered(call: Call, content: Any) -> Call:
    text = content if isinstance(content, str) else json.dumps(content, default=str)
    result = _parse(text)
    # Also {"error": "..."}, as many tools report one.
    if _ERROR.match(text) or (isinstance(result, dict) and [*result] == ["error"]):
        return replace(call, answered=True, error=text)
    return replace(call, answered=True, result=result)


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
    elif (number := as_number(value)) is not None:
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
class Case:
    """One trajectory to be labelled, with the milestones and minefields of its score, and the
    task's reference with its results: that is all the program may know."""

    agent: Heard
    milestones: tuple[Milestone, ...]
    minefields: tuple[Milestone, ...]
    reference: Heard


def heard_of(suite: Suite, task: Task) -> Heard:
    """What a task's reference does; no agent acts, so no rollout is spent."""
    return replayed(suite, task, suite.reference(task))[0]


def replayed(suite: Suite, task: Task, replies: Sequence[Message]) -> tuple[Heard, Step]:
    """The conversation with these replies, and the episode's last step."""
    steps = performed(suite, task, replies)
    return read(conversation(steps, replies)), steps[-1]


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


def invents(case: Case, expected: Set[str]) -> bool:
    """The agent made a call that the reference does not make, with an argument from nowhere."""
    return any(
        made_up(call, key, case.agent)
        for call in case.agent.calls
        if call.name not in expected
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


# -- for a language model -------------------------------------------------------------------------

_FAULT = re.compile(r"^result: \S*(?:Error|Exception)\b")
_KEPT = 6  # lines at the end that are shortened less
_GAP = "\n[cut here]\n"


def lines(trajectory: Trajectory) -> list[str]:
    """A conversation as lines `user:`, `agent:`, `call:`, `result:`, without the system prompt."""
    out: list[str] = []
    for message in trajectory.messages:
        role, content = message["role"], " ".join(str(message.get("content") or "").split())
        if role == "tool":
            out.append(f"result: {content}")
        elif role == "assistant":
            out += [f"agent: {content}"] if content else []
            for call in message.get("tool_calls") or ():
                function = call["function"]
                out.append(f"call: {function['name']} {function['arguments']}")
        elif role == "user":
            out.append(f"user: {content}")
    return out


def as_text(trajectory: Trajectory) -> str:
    """The same as one text."""
    return "\n".join(lines(trajectory))


def feedback(trajectory: Trajectory) -> str:
    """The outcome of an episode, in words, from its score alone."""
    if trajectory.failure is not None:
        return f"lost: {trajectory.failure.error}"
    if trajectory.score is None:
        return "lost: no score"
    score = trajectory.score
    text = f"score {score.similarity:.2f} of 1"
    if score.milestones:
        reached = sum(m.hit for m in score.milestones)
        text += f", {reached} of {len(score.milestones)} milestones reached"
    hit = any(m.hit for m in score.minefields)
    return text + (", something was done that must not be done" if hit else "")


def compact(trajectory: Trajectory, most: int) -> str:
    """At most `most` characters: long lines are cut, ever shorter (calls, errors and the ends less
    than results); where that is not enough, what is in the middle goes."""
    whole = lines(trajectory)
    for width in (None, 400, 120, 60, 30, 15):
        text = "\n".join(_cut(s, n, len(whole), width) for n, s in enumerate(whole))
        if len(text) <= most:
            return text
    head = most // 3
    tail = most - head - len(_GAP)
    return text[:head] + _GAP + text[-tail:] if tail > 0 else text[len(text) - most :]


def _cut(line: str, place: int, count: int, width: int | None) -> str:
    if width is None:
        return line
    telling = line.startswith("call: ") or _FAULT.match(line)
    if telling or place == 0 or place >= count - _KEPT:
        width *= 4
    return line if len(line) <= width else f"{line[:width]}..."
