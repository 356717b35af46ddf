"""What the suites of other people's standards share: an episode whose tools are called elsewhere.

The agent's calls are passed on one by one. An episode ends when the world says so, after `steps`
calls, and with a message without a call, since no user answers in between. What a world sends is
checked here before it is used: what is no JSON or too large, a reward that is no number, a tool
without a schema are failures of the environment, never of the agent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from trace_bench.core.chat import answer_call, arguments_of, read_call, tool_json
from trace_bench.core.checked import PLACE
from trace_bench.core.decode import MESSAGES, brief, fault_of, fits
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import Env
from trace_bench.core.text import described
from trace_bench.core.types import (
    Boundary,
    Message,
    Meta,
    Positive,
    Score,
    Step,
    StopReason,
    Task,
    Tool,
)

T = TypeVar("T")
SUCCESS = 1.0 - 1e-6
MOST_TOOLS = 500  # of a world
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every world outside."""

    reward: Literal["last", "sum"] = "last"
    """What an episode earned: the last reward that came, or the sum of all. None: 0."""
    full: Annotated[float, Meta(ge=1e-9)] = 1.0
    """The reward that is success: it counts as 1, less than 0 as 0. More is a failure of the
    environment, since the scale is then another one."""
    steps: Positive = 30
    """The most calls of an episode."""
    deadline: Annotated[float, Meta(ge=0.01)] = field(default=30.0, metadata=PLACE)
    """Seconds for one answer of the world. Less than sandbox.deadline."""


@dataclass(frozen=True)
class Answer:
    """What came back for a call. `reward`: None if none came; `over`: the episode has ended."""

    text: str
    reward: float | None = None
    over: bool = False


class Episode(Env):
    """An episode; a standard says how it begins, what a call is there, and how it ends."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings  # the standard's own
        self._tools: dict[str, Tool] | None = None

    @abstractmethod
    def begin(self, task: Task) -> tuple[Answer | Sequence[Message], Sequence[Tool]]:
        """The task as the world tells it, or its messages, and the tools."""

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer: ...

    def stopped(self) -> bool:
        """Whether the world ends the episode after the answers to a message, in `talk`."""
        return False

    def ended(self) -> float | None:
        """The reward that comes at the end, of the conversation in `talk`, if one does."""
        return None

    def reset(self, task: Task) -> Step:
        self.close()
        self._rewards, self._calls, self._over = list[float](), 0, False
        opening, tools = self.begin(task)
        if len(tools) > MOST_TOOLS:
            refuse(f"the world has more than {MOST_TOOLS} tools")
        self._tools = {tool["function"]["name"]: tool for tool in tools}
        if len(self._tools) < len(tools):
            refuse("the world has two tools of one name")
        if isinstance(opening, Answer):
            self._take(opening)
            opening = [{"role": "user", "content": opening.text}]
        if self._over:
            refuse("the episode is over at its start")
        self.talk: list[Message] = list(opening)
        return Step(tuple(opening), tools=tuple(tools))

    def step(self, action: Message) -> Step:
        if self._tools is None or self._over:
            refuse("step without a running episode; reset first")
        calls = action.get("tool_calls") or ()
        self.talk.append(action)
        for call in calls:
            self.talk.append(answer_call(call, self._answer(call, self._tools)))
        answers = tuple(self.talk[len(self.talk) - len(calls) :])
        self._over = self._over or (bool(calls) and self.stopped())
        if calls and not self._over and self._calls < self._settings.steps:
            return Step(answers)
        stop = StopReason.DONE if self._over or not calls else StopReason.TURN_LIMIT
        self._over = True
        return Step(answers, done=True, score=self.score(), stop=stop)

    def score(self) -> Score:
        """What the rewards so far amount to, and the one that comes at the end."""
        late = self.ended()
        rewards = self._rewards if late is None else [*self._rewards, late]
        if not rewards:
            return Score(0.0, False, {"rewards": 0})
        earned = rewards[-1] if self._settings.reward == "last" else sum(rewards)
        share = earned / self._settings.full
        if share > 1 / SUCCESS:
            refuse(f"the reward is {earned:g}, more than env.full={self._settings.full:g}")
        details = {"rewards": len(rewards), "earned": earned}
        return Score(min(1.0, max(0.0, share)), share >= SUCCESS, details)

    def _answer(self, call: Any, tools: Mapping[str, Tool]) -> str:
        self._calls += 1  # also one that cannot be read
        try:
            name, arguments = read_call(call)
            if self._over or self._calls > self._settings.steps:
                raise ValueError("the episode is over")
            _allow(name, arguments, tools)
        except ValueError as error:
            return f"ValueError: {error}"
        try:
            answer = self.call(name, arguments)
        except EpisodeError:
            self.close()  # no later call may reach a world that is in another state
            self._tools = None
            raise
        self._take(answer)
        return answer.text

    def _take(self, answer: Answer) -> None:
        self._over = answer.over
        self._rewards += [] if answer.reward is None else [answer.reward]


def _allow(name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool]) -> None:
    """Raises ValueError for a call that no tool takes; the world judges the arguments' values."""
    if name not in tools:
        raise ValueError(f"unknown tool {name[:64]!r}; allowed: {', '.join(tools)}")
    taken = arguments_of(tools[name]["function"]["parameters"])
    allowed = f"allowed: {', '.join(taken.schemas) or 'none'}"
    for argument in () if taken.others else arguments:
        if argument not in taken.schemas:
            raise ValueError(f"unknown argument {argument[:64]!r}; {allowed}")
    for argument in taken.required:
        if argument not in arguments:
            raise ValueError(f"the argument {argument} is missing; {allowed}")


class Loop:
    """An event loop in a thread of its own: asynchronous libraries for environments that are not,
    with connections that live between calls."""

    def __init__(self) -> None:
        self.events = asyncio.new_event_loop()
        threading.Thread(target=self.events.run_forever, daemon=True).start()

    def run(self, work: Awaitable[T], deadline: float) -> T:
        """The result. Raises EpisodeError past the deadline and for any error of the work."""

        async def awaited() -> T:
            return await work

        running = asyncio.run_coroutine_threadsafe(awaited(), self.events)
        try:
            return running.result(deadline)
        except TimeoutError:
            running.cancel()
            refuse(f"no answer within {deadline:g} s (env.deadline)")
        except EpisodeError:
            raise
        except Exception as error:
            refuse(described(cause_of(error)))


def cause_of(error: BaseException) -> Exception:
    """The error itself, of groups in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else ConnectionError("it was given up")


# -- what a world sends, checked where it arrives ------------------------------------------------


def refuse(what: str) -> NoReturn:
    """Raises the failure of the environment."""
    raise EpisodeError(Boundary.ENVIRONMENT.value, what)


def answer_of(value: Any, reward: Any = None, over: Any = False) -> Answer:
    """An answer from outside, checked. What is no text is shown as JSON. Raises EpisodeError."""
    if fault := fault_of([value], MESSAGES):
        refuse(f"the world's answer cannot be used: {fault}")
    if not isinstance(over, bool):
        refuse(f"the world says {brief(over)} where true or false is due (is the episode over?)")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Answer(text, reward_of(reward), over)


def reward_of(reward: Any) -> float | None:
    """A reward from outside. Raises EpisodeError unless it is a finite number."""
    if reward is None:
        return None
    if not isinstance(reward, bool | int | float) or not fits(reward):
        refuse(f"the world's reward is {brief(reward)}; allowed: a finite number")
    return float(reward)


def result_of(answered: Any) -> Any:
    """What an MCP tool answered, as data or as the SDK has it: its texts, also those of embedded
    resources, one below the other, and of what is no text the kind and the address; without any
    content, the structured content."""
    result = answered if isinstance(answered, dict) else answered.model_dump(mode="json")
    parts, texts = result.get("content") or [], []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        refuse(f"a tool's answer is {brief(parts)}; allowed: a list of objects")
    for part in parts:
        holder = part["resource"] if isinstance(part.get("resource"), dict) else part
        text, kind = holder.get("text"), filter(None, (part.get("type"), holder.get("uri")))
        texts.append(text if isinstance(text, str) else f"[{' '.join(map(str, kind))}]")
    structured = result.get("structured_content", result.get("structuredContent"))
    failed = result.get("is_error", result.get("isError"))
    if not parts and structured is not None:
        return f"Error: {json.dumps(structured)}" if failed else structured
    return ("Error: " if failed else "") + "\n".join(texts)


def tool_of(name: Any, description: Any, schema: Any) -> Tool:
    """A tool from outside, checked. Raises EpisodeError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"a tool is called {brief(name)}; allowed: up to 64 letters, digits, _, . and -")
    if fault := fault_of([description, schema], MESSAGES):
        refuse(f"the tool {name} cannot be used: {fault}")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        refuse(f"the arguments of the tool {name} are {brief(schema)}; allowed: an object's schema")
    shapes = {"properties": dict, "required": list}
    if wrong := [k for k, kind in shapes.items() if not isinstance(schema.get(k, kind()), kind)]:
        refuse(f"the tool {name} has {wrong[0]} that are {brief(schema[wrong[0]])}")
    if undescribed := arguments_of(schema).undescribed:
        refuse(f"the tool {name} requires {brief(undescribed)}, which it does not describe")
    shape = {"type": "object", "properties": {}, "required": [], **schema}
    if arguments_of(schema).others:
        shape.setdefault("additionalProperties", True)
    return tool_json(name, description if isinstance(description, str) else "", shape)


def digest(value: Any) -> str:
    """A name for plain data, by which a change is noticed."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain_name(text: Any, otherwise: str) -> str:
    """A world's name of itself, as a part of a suite's name."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:60] if type(text) is str else ""
    return plain or otherwise


def asked(what: str, ask: Callable[[], T], setting: str) -> T:
    """What a world says before there are episodes. Raises UserError that names the setting."""
    try:
        return ask()
    except EpisodeError as error:
        raise UserError(f"{what}: {error}. Change `{setting}`.") from error
