"""The values that travel through the program, and the lines of a run folder's files. Plain, frozen
and JSON-safe.

Messages and tools are dictionaries in the OpenAI chat format, so that every environment, policy
and server shares them unchanged:

    {"role": "system" | "user", "content": str}
    {"role": "assistant", "content": str, "tool_calls": [{"id": str, "type": "function",
                          "function": {"name": str, "arguments": str (JSON)}}]}
    {"role": "tool", "tool_call_id": str, "name": str, "content": str}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

from trace_bench.core.text import is_name

try:
    from msgspec import Meta
except ImportError:  # in a container: these values are decoded and checked outside of it

    def Meta(**_: float) -> None:  # type: ignore[no-redef]
        """A range that nobody reads."""


T = TypeVar("T")
K = TypeVar("K")
Message = dict[str, Any]
Tool = dict[str, Any]
JSON = dict[str, Any]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Name = Annotated[str, Meta(max_length=200)]  # that stands in a table
Amount = Annotated[int, Meta(ge=0, le=2**53)]  # of anything that is counted
Figure = Annotated[float, Meta(ge=-(2**53), le=2**53)]
MOST = Meta(max_length=1000)  # parts of one score
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1)]  # of settings, as the next two
Natural = Annotated[int, Meta(ge=0)]
NotNegative = Annotated[float, Meta(ge=0)]


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # the environment ended the conversation
    TURN_LIMIT = "turn_limit"  # the agent used up its turns (or the conversation its messages)
    CONTEXT_LIMIT = "context_limit"  # the next prompt would not fit the model's context
    ERROR = "error"  # see Trajectory.failure


class Boundary(StrEnum):
    """The part in which an episode failed when the agent was not at fault."""

    ENVIRONMENT = "environment"
    POLICY = "policy"
    SANDBOX = "sandbox"
    USER = "user"
    JUDGE = "judge"  # of a checklist, in the episode
    SIMULATOR = "simulator"  # of tools


IN_EPISODES = ("user", "judge", "simulator")  # the roles that an environment may ask


def boundary_of(role: str) -> Boundary:
    """Where an episode fails if the model in a role that it asks gives no usable answer."""
    return Boundary(role) if role in ("judge", "simulator") else Boundary.USER


class Purpose(StrEnum):
    """What a rollout was spent on. `EVALUATION` is recorded but not charged to the budget."""

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
"""The purposes charged to the budget, by the setting `accounting`: `strict` charges all rollouts of
a method; `paper`, as its authors appear to count, leaves out analysis and calibration."""


def charged(rollouts: Mapping[str, int], accounting: str) -> int:
    """How many of the rollouts (by purpose) are charged to the budget."""
    return sum(rollouts.get(purpose.value, 0) for purpose in CHARGED[accounting])


@dataclass(frozen=True)
class Task:
    """One task as plain data; an environment can be reset from it alone, by `data`. `id` is unique
    over all splits ("toolsandbox/embedded/train/0007")."""

    id: str
    env: str
    split: str
    seed: Seed
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Milestone:
    """One thing that a task rewards, or (as a minefield) forbids, and whether it happened: how well
    (`similarity` in [0, 1]), strictly (`hit`), and at the index of which message (`place`, None:
    nowhere). `tells`: the text that the agent should send to the user, where one is asked for."""

    name: str
    similarity: Share
    hit: bool
    place: Count | None = None
    tells: str | None = None


@dataclass(frozen=True)
class Check:
    """One item of a checklist (`trace_bench.checklists`), and its outcome in an episode. `turn`:
    the user's turn, from 0; `item`: its id, unique in the turn; `weight`: its share of the turn
    (all: 1); `after`: items of the turn that must be satisfied before it; `step`: which of the
    agent's messages that reached the environment satisfied it, from 0 (None: none did)."""

    turn: Count
    item: str
    weight: Share
    after: Annotated[tuple[str, ...], MOST] = ()
    step: Count | None = None

    def __post_init__(self) -> None:
        if not all(map(is_name, (self.item, *self.after))):
            raise ValueError("the name of an item is no short printable text")


@dataclass(frozen=True)
class Score:
    """`similarity` in [0, 1] is the environment's own score; `success` is its strict form.
    `milestones` and `minefields` are its parts, for an environment that has them; methods may read
    them. `checks`: of an environment that scores by a checklist; from them come advantages of turns
    and steps. `details` is for human readers only. JSON-safe."""

    similarity: Share
    success: bool
    details: Mapping[str, Any] = field(default_factory=dict)
    milestones: Annotated[tuple[Milestone, ...], MOST] = ()
    minefields: Annotated[tuple[Milestone, ...], MOST] = ()
    checks: Annotated[tuple[Check, ...], MOST] = ()


@dataclass(frozen=True)
class Step:
    """What an environment returns: new messages for the agent and, at the end, the score."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()  # at reset only
    done: bool = False
    score: Score | None = None
    stop: StopReason | None = None


@dataclass(frozen=True)
class Turn:
    """One turn of the agent. `prompt_ids` are the tokens appended for `messages` (all that arrived
    since the last turn), `token_ids` the exact sampled ids with their log-probabilities (natural
    log, at the sampling temperature). Empty if the policy has none. `kept`: how many of the
    conversation's tokens so far the prompt begins with, where earlier turns were rendered anew,
    such as without their thoughts, so that another stretch of the conversation begins; None: all
    of them."""

    messages: tuple[Message, ...]
    reply: Message
    prompt_ids: tuple[Count, ...] = ()
    token_ids: tuple[Count, ...] = ()
    logprobs: tuple[float, ...] = ()
    adapter: str | None = None  # versioned adapter name that acted; None is the base model
    malformed: str | None = None  # why the reply's tool call could not be parsed
    truncated: bool = False  # the reply hit the token limit
    thoughts: str = ""  # before the reply; only for readers of logs
    kept: Count | None = field(default=None, metadata={"sparse": True})


@dataclass(frozen=True)
class Failure:
    """A failure of the infrastructure, which is never scored as a failure of the agent."""

    boundary: Boundary
    error: str

    def __str__(self) -> str:
        return f"{self.boundary.value}: {self.error}"


@dataclass(frozen=True)
class Trajectory:
    """One complete episode."""

    task: str
    seed: Seed
    agent: str  # AgentSpec.version
    tools: tuple[Tool, ...]
    turns: tuple[Turn, ...]
    closing: tuple[Message, ...]  # messages after the agent's last turn
    stop: StopReason
    score: Score | None
    failure: Failure | None = None
    adapter: str | None = None  # that acted; "a > b" where it changed (each Turn has its own)

    @property
    def tokens(self) -> int:
        """Number of tokens of the episode, prompt and sampled."""
        return sum(len(t.prompt_ids) + len(t.token_ids) for t in self.turns)

    @property
    def facts(self) -> dict[str, Any]:
        """What the lines of a ledger and of an evaluation both say of it."""
        error = None if self.failure is None else str(self.failure)
        facts = {"task": self.task, "adapter": self.adapter, "stop": self.stop, "error": error}
        return {**facts, "tokens": self.tokens, "turns": len(self.turns)}

    @property
    def messages(self) -> list[Message]:
        """The conversation in order, as the agent saw it."""
        said = [m for turn in self.turns for m in (*turn.messages, turn.reply)]
        return [*said, *self.closing]


@dataclass(frozen=True)
class AdapterRef:
    """A LoRA adapter in PEFT format on disk. `name` carries a version and is never used twice."""

    name: str
    path: str
    capability: str = ""


@dataclass(frozen=True)
class AgentSpec:
    """The agent that every method returns; evaluation sees nothing else. `prompt` is the guidance
    section of the system prompt (one line each); `router` is None (no adapter, or one adapter for
    all tasks) or a JSON description that `policies.routing.router` builds a router from."""

    model: str
    version: str = "base"
    prompt: str = ""
    adapters: tuple[AdapterRef, ...] = ()
    router: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """What of a stored line says which episode it is of; the rest is neither built nor checked."""

    call: str
    index: Count


@dataclass(frozen=True, slots=True)
class Charge(Head):
    """What of a line of ledger.jsonl the budget needs."""

    purpose: Purpose


HEADS = (Head, Charge)


@dataclass(frozen=True)
class Stored(Head):
    """A line of trajectories.jsonl and evaluation_trajectories.jsonl: an episode, and which one of
    which call of `Lab.rollouts` (or of the evaluation) it is. `tokens`: of all turns, which have
    none in the file (`core.run_files`)."""

    trajectory: Trajectory
    tokens: str | None = field(default=None, metadata={"sparse": True})


@dataclass(frozen=True)
class Entry(Charge):
    """A line of ledger.jsonl. `similarity`, `success`: None when the infrastructure failed."""

    task: str
    seed: Seed
    agent: str  # AgentSpec.version
    adapter: str | None  # versioned name of the adapter that acted; None is the base model
    similarity: Share | None
    success: bool | None
    tokens: Count
    turns: Count
    stop: StopReason
    error: str | None = None  # "boundary: message"


@dataclass(frozen=True)
class Figures:
    """What of a score is in a line of an evaluation."""

    success: bool
    similarity: Share


@dataclass(frozen=True)
class Outcome:
    """A line of evaluation.jsonl and curve.jsonl: one held-out episode. `score` is None when the
    infrastructure failed."""

    agent: str  # label: base, final, idle, random, reference, adapter:<name>
    version: str  # AgentSpec.version
    adapter: str | None  # the adapter that acted
    task: str
    trial: Count
    score: Figures | None
    stop: StopReason
    error: str | None
    tokens: Count
    attempt: Count = 0  # how often the infrastructure had lost this episode before
    turns: Count = 0  # of the agent
    malformed: Count = 0  # of those, with a tool call that cannot be read

    @property
    def lost(self) -> bool:
        return self.score is None

    @property
    def success(self) -> float:
        return float(self.score.success) if self.score else 0.0

    @property
    def similarity(self) -> float:
        return self.score.similarity if self.score else 0.0


def written(value: Any) -> dict[str, Any]:
    """The fields that a value's JSON has: not those marked `sparse` that are None."""
    fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return {f.name: v for f, v in fields if v is not None or "sparse" not in f.metadata}


_PLAIN = frozenset((str, int, float, bool, type(None)))


def to_json(value: Any) -> Any:
    """Any of the values above as JSON-safe data (enums by value, tuples as lists)."""
    if type(value) in _PLAIN:  # most values by far
        return value
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, dict | Mapping):  # a dict first: to ask an ABC is slow
        return {str(k): to_json(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(v) for name, v in written(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return float(value)  # also of a subclass, such as numpy's
    return str(value) if isinstance(value, PurePath) else value


def grouped(values: Iterable[T], by: Callable[[T], K]) -> dict[K, list[T]]:
    """The values by what `by` gives for each, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for value in values:
        groups.setdefault(by(value), []).append(value)
    return groups


def flat(
    data: Mapping[str, Any], without: Collection[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(name, value) of all that holds no further names, which are joined by dots; `without`: names
    that are left out, with all that is in them."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if name in without:
            continue
        if isinstance(value, Mapping):
            yield from flat(value, without, f"{name}.")
        else:
            yield name, value
