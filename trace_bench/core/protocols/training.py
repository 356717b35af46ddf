"""Trainers, methods, the lab that a method works with, trackers, and the facts of a run that a
factory may ask for."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from trace_bench.core.protocols.episodes import Part, Prompt, State, Suite, Typical
from trace_bench.core.types import (
    CHARGED,
    AdapterRef,
    AgentSpec,
    Message,
    Purpose,
    Task,
    Trajectory,
)

T = TypeVar("T")


class Ask(Protocol):
    """Asks the model that plays a role, such as the simulated user. `schema`: of the answer's JSON,
    to which a server holds it where it can; so the answer is read with care all the same."""

    def __call__(
        self,
        role: str,
        messages: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None = None,
    ) -> str: ...


@dataclass(frozen=True)
class TrainingJob:
    """One adapter to train. `reward`: the field of the score that is the reward ("similarity" or
    "success"). `assignment`: how advantages are taken from the checklists of the scores instead
    (the settings of `checklists.rewards.Assignment`; see `Trainer.check_assignment`). `whole` maps
    the agent with the partly trained adapter to the one that the method would return if training
    ended now, which is evaluated for the curve."""

    name: str  # adapter base name; the trainer appends the version
    agent: AgentSpec
    tasks: Sequence[Task]
    rollouts: int  # the most rollouts that this job may spend
    seed: int
    reward: str = "similarity"
    assignment: Mapping[str, Any] | None = None  # None: one advantage for the whole trajectory
    whole: Callable[[AgentSpec], AgentSpec] | None = None  # None: the agent as it is


class Trainer(Part):
    """Trains one adapter from (agent, training tasks, reward) and returns the agent with it. All
    rollouts go through `lab.rollouts`. `weights_here`: it reads the weights from a folder on this
    machine even if servers generate the turns. `settings`: with a `learner`, those of a
    `trainers.algorithms.Recipe`."""

    settings: Any = None
    weights_here: bool = False

    @abstractmethod
    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec: ...

    def plan_training(self, rollouts: int, name: str, points: Sequence[int]) -> str | None:
        """Checks a job before it starts. Raises UserError if `rollouts` are too few for it.
        Returns why an agent at one of the rollout counts `points` differs from the agent of a run
        with that smaller budget; None if it does not differ."""
        return None

    def preflight(self, new: bool) -> None:
        """Checks installation and settings first, slowly only for a `new` run. Raises UserError."""

    def machines(self, billions: float | None) -> tuple[list[str], list[str]]:
        """Its hardware needs for a model of so many `billions` of parameters (None: unknown), as
        lines of text, and what is missing on this machine."""
        return [], []

    def outlook(
        self, adapters: int, rollouts: int, others: int, typical: Typical | None, /
    ) -> list[str]:
        """Optimizer steps and hours in lines: of adapters from `rollouts` in all, and `others`."""
        return []

    def check_start(self, start: AdapterRef) -> None:
        """Overridden by a trainer that trains on from the only adapter of a job's agent: it acts in
        the first iteration, and the new adapter starts as a copy of it and replaces it. Raises
        UserError for an adapter that its settings cannot hold."""
        raise NotImplementedError

    def check_assignment(self, assignment: Mapping[str, Any]) -> None:
        """Overridden by a trainer that heeds `TrainingJob.assignment`: it takes advantages from the
        checklists of the scores, for a trajectory, a turn or a step; one without would train on
        `reward` instead. Raises UserError for an assignment with which its settings can learn
        nothing."""
        raise NotImplementedError

    def learner(self, model: str) -> Any:
        """The base model with LoRA layers (`trainers.model.Learner`), for methods that train it."""
        raise NotImplementedError


class Method(Part):
    """Takes the base agent and returns the trained agent, within `lab.budget_left()` rollouts. Its
    settings are the parameters of its factory."""

    @abstractmethod
    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec: ...

    def plan(self, run: PlannedRun) -> MethodPlan:
        """What it will do and needs, said before anything is run; the run then refuses what cannot
        be paid. Raises UserError for settings that do not fit together. By default: spend the
        whole budget."""
        return MethodPlan(phases=(Phase("method", run.budget, most=True),))


@dataclass(frozen=True)
class Need:
    """An ability that a method needs, such as `Suite.reference`. `group`: which part must have it
    ("env", "policy" or "trainer"); `page`: its documentation; `hint`: a sentence with an
    alternative, for the error message."""

    group: Literal["env", "policy", "trainer"]
    ability: Callable[..., Any]
    page: str
    hint: str = ""


@dataclass(frozen=True)
class Phase:
    """The rollouts of one phase. `most`: at most so many; `trains`: they are the trainer's own.
    `least`: the fewest with which it makes sense, by the `setting` of that name; a budget that
    leaves it fewer is refused."""

    name: str
    rollouts: int
    most: bool = False
    trains: bool = False
    least: int = 0
    setting: str = ""


@dataclass(frozen=True)
class Yardstick:
    """Another method that the run also trains, for a comparison row in the closing table. It has
    its own ledger, in the folder `name`. `title`: the row's label."""

    name: str
    title: str
    method: Method


@dataclass(frozen=True)
class PlannedRun:
    """What a method knows of the run when it makes its plan. `tasks`: number of training tasks, 0
    if unknown; `points`: the curve's rollout counts; `models`: the roles played by models."""

    budget: int
    tasks: int
    trainer: Trainer
    points: Sequence[int] = ()
    charged: frozenset[Purpose] = CHARGED["strict"]
    models: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MethodPlan:
    """What a method will do in a run.

    phases: its rollouts by phase. needs: abilities that other parts must have. adapters: the most
    it trains. questions: the most questions to models, by role. routed: whether every episode of
    its agent first asks the base model to choose an adapter. learns: False for a method whose
    rollouts do not change the agent; it may then run with a scripted policy, and its curve has no
    points. trains: whether it uses the trainer. demonstrations: the most of them that it learns
    from, which cost no rollouts and are named with what it cost. caveat: why a point of its curve
    differs from a run with that smaller budget. marks: remarks that every table must show beside
    this run. yardsticks: see `Yardstick`."""

    phases: tuple[Phase, ...] = ()
    needs: tuple[Need, ...] = ()
    adapters: int = 0
    questions: Mapping[str, int] = field(default_factory=dict)
    routed: bool = False
    learns: bool = True
    trains: bool = False
    demonstrations: int = 0
    caveat: str | None = None
    marks: tuple[str, ...] = ()
    yardsticks: tuple[Yardstick, ...] = ()

    def then(self, after: MethodPlan) -> MethodPlan:
        """This, and then `after`: what both do, need, train, ask and mark."""
        asked = Counter(self.questions) + Counter(after.questions)
        return MethodPlan(
            phases=(*self.phases, *after.phases),
            needs=tuple(dict.fromkeys((*self.needs, *after.needs))),
            adapters=self.adapters + after.adapters,
            questions=dict(asked),
            routed=self.routed or after.routed,
            learns=self.learns or after.learns,
            trains=self.trains or after.trains,
            demonstrations=self.demonstrations + after.demonstrations,
            caveat=self.caveat or after.caveat,
            marks=(*self.marks, *after.marks),
            yardsticks=(*self.yardsticks, *after.yardsticks),
        )


OnEpisode = Callable[[int, Trajectory], None]
"""Called when an episode ends, with its index and trajectory."""


class PlayElsewhere(Part):
    """Runs the episodes with these indices in other processes, and reports each as it ends."""

    @abstractmethod
    def __call__(self, which: Sequence[int], ended: OnEpisode) -> None: ...

    @abstractmethod
    def take_back(self, missing: Sequence[int]) -> None:
        """Goes back to before the call, so that lost episodes are run again after too many of them
        have stopped the run. `missing`: the indices of which the run has no episode any more; what
        is kept elsewhere of their failures, and whatever was learned from the call, must be
        forgotten. May be called twice for the same call."""


@dataclass(frozen=True)
class Source:
    """The source code of a generated suite. `given`: names that it may use, with JSON values."""

    name: str
    text: str
    given: Mapping[str, Any]


class Lab(Protocol):
    """Everything that a method may use. Each call has a name, unique in the run and the same when
    the run is repeated: finished calls are answered from the run folder. `rollouts` raises
    BudgetExceeded before anything is run if the budget does not pay for it, and ValueError for a
    call name that was used before. `ask` raises LLMError if no answer can be used. `prompt_states`
    are the policy's (`Policy.prompt_states`, a `Need` of the method's plan), without charge."""

    folder: Path
    seed: int
    suite: Suite
    trainer: Trainer

    def budget_left(self) -> int: ...
    def leave(self, why: str) -> None: ...  # why rollouts stay unspent, for the summary
    def charges(self, purpose: Purpose) -> bool: ...  # whether the budget pays for it
    def rollouts(
        self,
        call: str,
        agent: AgentSpec,
        tasks: Sequence[Task],
        *,
        purpose: Purpose,
        temperature: float = 1.0,
        route: Sequence[str | None] | None = None,
        by: PlayElsewhere | None = None,  # None: run them in this process
    ) -> list[Trajectory]: ...  # one episode per entry of `tasks`, in order; repeat for groups
    def prompt_states(self, prompts: Sequence[Prompt]) -> Sequence[State]: ...
    def checkpoint(self, agent: AgentSpec) -> None: ...  # the current agent, for the curve
    def metric(self, **values: Any) -> None: ...
    def log(self, text: str) -> None: ...  # a line of progress, on stderr
    def step(self, name: str, done: int, total: int) -> None: ...  # shown, between rollouts
    def write(self, name: str, value: Any) -> None: ...  # JSON file in the run folder, atomic
    def write_text(self, name: str, text: str) -> None: ...  # the same for a text

    # Models in roles. `prompt_limit`: characters of a question; None if a program plays the role.
    def prompt_limit(self, role: str) -> int | None: ...
    # `schema`: as for `Ask`.
    def ask(
        self,
        role: str,
        call: str,
        messages: Sequence[Message],
        read: Callable[[str], T],
        schema: Mapping[str, Any] | None = None,
    ) -> T: ...
    def retract(self, role: str, calls: str) -> None: ...  # discards stored answers, by name prefix

    # A suite from source code that a model wrote, in a sandbox; `rollouts` then takes its tasks.
    def generated_suite(self, name: str, source: str, given: Mapping[str, Any]) -> Suite: ...
    def drop_suite(self, name: str) -> None: ...
    def suite_of(self, task: Task) -> Suite: ...
    def sources(self) -> Sequence[Source]: ...  # of the generated suites in use


class Tracker(Part):
    """Receives a run's metrics, in order and each once. Results never depend on it."""

    @abstractmethod
    def log(self, values: Mapping[str, Any]) -> None: ...

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Told of the result, once the run is finished."""

    def close(self) -> None:
        """Gives back what it holds."""


@dataclass(frozen=True)
class RunContext:
    """The facts of the run, for a factory with a parameter of this type.

    fingerprint: the run's fingerprint. folder: the run folder; in another process, a folder in it.
    model: the base model's weights, a folder or a hub name; served_model: its name on the servers.
    batch (live episodes), context (tokens of an episode; None: as the policy decides), threads,
    device, dtype, max_turns, max_tokens, thinking, thoughts: the settings of that name in `policy`.
    dev_split: the development split. general_demonstrations: the suite's. settings: the run's
    settings as plain data; identity: the data behind the fingerprint.
    ask: asks the model that plays the simulated user; None if a program plays it. judge: asks the
    model that judges statements about a conversation, simulator: the model that plays tools; None
    without one. suite: the run's suite, for
    a policy. elsewhere: "module:function" that builds the run's suites in another process.
    at_servers: whether the policy's turns come from servers. clean_up: removes containers that
    ended processes left behind."""

    fingerprint: str = "unnamed"
    folder: Path = Path()
    seed: int = 0
    budget: int = 0
    model: str = ""
    served_model: str = ""
    batch: int = 128
    context: int | None = None
    threads: int | None = None
    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_turns: int = 20
    max_tokens: int = 96
    thinking: bool | None = None
    thoughts: Literal["own", "keep"] = "own"
    dev_split: str = "dev"
    general_demonstrations: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    judge: Ask | None = None
    simulator: Ask | None = None
    suite: Suite | None = None
    elsewhere: str = ""
    at_servers: bool = False
    clean_up: Callable[[], None] = lambda: None
