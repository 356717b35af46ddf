"""The values that travel through the program. Plain, frozen and JSON-safe.

Messages and tools are dictionaries in the OpenAI chat format, so that every environment, policy
and server shares them unchanged:

    {"role": "system" | "user", "content": str}
    {"role": "assistant", "content": str, "tool_calls": [{"id": str, "type": "function",
                          "function": {"name": str, "arguments": str (JSON)}}]}
    {"role": "tool", "tool_call_id": str, "name": str, "content": str}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]
JSON = dict[str, Any]


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # the environment closed the conversation
    TURN_LIMIT = "turn_limit"  # the agent used up its turns (or the conversation its messages)
    CONTEXT_LIMIT = "context_limit"  # the next prompt would not fit the model's context
    ERROR = "error"  # see Trajectory.failure


class Boundary(StrEnum):
    """Where a failure that is not the agent's crossed into the episode."""

    ENVIRONMENT = "environment"
    POLICY = "policy"
    SANDBOX = "sandbox"
    USER = "user"


class Purpose(StrEnum):
    """What a rollout was spent on. `EVALUATION` is written down but not charged to the budget."""

    ANALYSIS = "analysis"
    CALIBRATION = "calibration"
    TRAINING = "training"
    VALIDATION = "validation"
    PROMPT = "prompt"
    EVALUATION = "evaluation"


CHARGED = {
    "strict": frozenset(Purpose) - {Purpose.EVALUATION},
    "paper": frozenset({Purpose.TRAINING, Purpose.PROMPT, Purpose.VALIDATION}),
}
"""What the budget pays for, by the setting `accounting`: everything that a method plays, or, as the
paper's authors appear to count, not its analysis and calibration."""


def charged(rollouts: Mapping[str, int], accounting: str) -> int:
    """How many of the rollouts (by purpose) the budget pays for."""
    return sum(rollouts.get(purpose.value, 0) for purpose in CHARGED[accounting])


@dataclass(frozen=True)
class Task:
    """One task as plain data; an environment can be reset from it alone.

    `id` is unique over all splits ("toolsandbox/embedded/train/0007"), `data` is what the
    environment of that name needs.
    """

    id: str
    env: str
    split: str
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """`similarity` in [0, 1] is the environment's own score; `success` is its strict form.

    `details` holds what a person wants to see (milestones hit and missed) and stays JSON-safe.
    """

    similarity: float
    success: bool
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What an environment gives back: new messages for the agent and, at the end, the score."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()  # at reset only
    done: bool = False
    score: Score | None = None
    stop: StopReason | None = None


@dataclass(frozen=True)
class Turn:
    """One turn of the agent. The prompt only grows: `prompt_ids` are the tokens appended for
    `messages` (all that arrived since the last turn), `token_ids` the exact sampled ids with their
    log-probabilities (natural log, at the sampling temperature). Empty ids: the policy has none.
    """

    messages: tuple[Message, ...]
    reply: Message
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    adapter: str | None = None  # versioned adapter name that acted; None is the base model
    malformed: str | None = None  # why the reply's tool call could not be read
    truncated: bool = False  # the reply hit the token limit


@dataclass(frozen=True)
class Failure:
    """A failure of the infrastructure: never scored as a failure of the agent."""

    boundary: Boundary
    error: str


@dataclass(frozen=True)
class Trajectory:
    """One episode, whole."""

    task: str
    seed: int
    agent: str  # AgentSpec.version
    tools: tuple[Tool, ...]
    turns: tuple[Turn, ...]
    closing: tuple[Message, ...]  # messages after the agent's last turn
    stop: StopReason
    score: Score | None
    failure: Failure | None = None
    adapter: str | None = None

    @property
    def tokens(self) -> int:
        """All tokens of the episode, prompt and sampled."""
        return sum(len(t.prompt_ids) + len(t.token_ids) for t in self.turns)

    @property
    def messages(self) -> list[Message]:
        """The conversation in order, as the agent saw it."""
        out: list[Message] = []
        for turn in self.turns:
            out.extend(turn.messages)
            out.append(turn.reply)
        out.extend(self.closing)
        return out


@dataclass(frozen=True)
class AdapterRef:
    """A LoRA adapter in PEFT format on disk. `name` carries a version and is never used twice."""

    name: str
    path: str
    capability: str = ""


@dataclass(frozen=True)
class AgentSpec:
    """What every method returns, and all that evaluation sees. `prompt` is the guidance section of
    the system prompt (one line each); `router` is None (no adapter, or the only adapter for all
    tasks) or a JSON description that `policies.routed` turns into a router."""

    model: str
    version: str = "base"
    prompt: str = ""
    adapters: tuple[AdapterRef, ...] = ()
    router: Mapping[str, Any] | None = None


def to_json(value: Any) -> Any:
    """Any of the values above as JSON-safe data (enums by value, tuples as lists)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return value


def task_from_json(data: Mapping[str, Any]) -> Task:
    return Task(**data)


def score_from_json(data: Mapping[str, Any] | None) -> Score | None:
    return None if data is None else Score(**data)


def turn_from_json(data: Mapping[str, Any]) -> Turn:
    lists = ("messages", "prompt_ids", "token_ids", "logprobs")
    fields: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in data.items()}
    return Turn(**fields)


def trajectory_from_json(data: Mapping[str, Any]) -> Trajectory:
    """The inverse of `to_json` for a trajectory."""
    fields = dict(data)
    failure = fields["failure"]
    fields["tools"] = tuple(fields["tools"])
    fields["closing"] = tuple(fields["closing"])
    fields["turns"] = tuple(turn_from_json(t) for t in fields["turns"])
    fields["stop"] = StopReason(fields["stop"])
    fields["score"] = score_from_json(fields["score"])
    if failure is not None:
        fields["failure"] = Failure(Boundary(failure["boundary"]), failure["error"])
    return Trajectory(**fields)


def agent_from_json(data: Mapping[str, Any]) -> AgentSpec:
    """The inverse of `to_json` for an agent."""
    return AgentSpec(**{**data, "adapters": tuple(AdapterRef(**a) for a in data["adapters"])})
