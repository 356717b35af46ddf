"""Every interface of the program, and the values that cross them.

Required members are in the main protocol of each part. Each optional ability is a protocol of its
own below it: a class has the ability if it has the protocol's members. What must be known before
the part is built, such as its container image, is a protocol on the class.

    environments   Env (ScoresAlone), Suite (HasReference, HasChecklist, Synthesizes,
                   SynthesizesPairs, SynthesizesDomains, AsksUser, ActsTogether, Describes,
                   Borrows, Closes; on the class: InImage, ListsTasksHere, LargerSplits,
                   TypicalLengths, Tagged)
    policies       Policy (Wakes, ReadsPrompts, TriesTurns, KnowsTask, CountsUsage, RanksLabels,
                   ShowsState, PlaysSums; on the class: Scripted, AtServers), Router (RoutesTurns)
    trainers       Trainer (PlansTraining, ContinuesAdapters, AssignsAdvantages, Preflight,
                   NeedsMachines, FineTunes; of what plays its episodes elsewhere: TakesBack)
    methods        Method (PlansItself), Lab
    trackers       Tracker (AwaitsResult, TakesReport)

Every part that is found by name (`settings.registry`) is built by its factory, whose parameters are
the part's settings; a parameter annotated `RunContext` receives the facts of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from trace_bench.core.types import (
    CHARGED,
    AdapterRef,
    AgentSpec,
    Message,
    Purpose,
    Score,
    Step,
    Task,
    Tool,
    Trajectory,
    Turn,
)

T = TypeVar("T")

State = Sequence[float]
"""A hidden state of the base model [hidden size]."""


class Ask(Protocol):
    """Asks the model that plays a role, such as the simulated user. `schema`: the JSON schema of
    the answer, to which a server holds it where it can; so the answer is read with care all the
    same."""

    def __call__(
        self,
        role: str,
        messages: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None = None,
    ) -> str: ...


# -- environments -------------------------------------------------------------------------------


@runtime_checkable
class Env(Protocol):
    """Runs one episode of one task. Synchronous, deterministic given the task, no torch.

    `step` takes the agent's assistant message. A bad tool call is answered with an error message
    to the agent; an exception raised here is a failure of the environment, not of the agent.
    """

    def reset(self, task: Task) -> Step: ...
    def step(self, action: Message) -> Step: ...
    def close(self) -> None: ...


@runtime_checkable
class ScoresAlone(Protocol):
    """An environment that can score an episode that was cut off at the turn or context limit.
    Without this ability such an episode scores 0."""

    def score(self) -> Score: ...


@runtime_checkable
class Suite(Protocol):
    """A named set of tasks in splits, and their environment. Every score is reported with `name`
    and `variant`. `task` returns a task of `tasks` by its id."""

    name: str  # "toolsandbox"
    variant: str  # "embedded"

    def splits(self) -> Sequence[str]: ...
    def tasks(self, split: str) -> Sequence[Task]: ...
    def task(self, task_id: str) -> Task: ...
    def make(self) -> Env: ...


@runtime_checkable
class HasReference(Protocol):
    """A suite with a reference solution for each task: the agent's messages, in order."""

    def reference(self, task: Task) -> Sequence[Message]: ...


@runtime_checkable
class HasChecklist(Protocol):
    """A suite that says by program what each of the user's turns in a task asks for: [turn][item],
    items as plain data in the form of `trace_bench.checklists.items`. The turns are those of the
    task's reference; a single one if the user's turns are not known in advance."""

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]: ...


@runtime_checkable
class Synthesizes(Protocol):
    """A suite that generates training tasks for a capability, one for each seed.
    `task.data["contrast"]` marks a task in which exercising the capability would be wrong."""

    def capabilities(self) -> Sequence[str]: ...
    def synthetic(self, capability: str, seed: int) -> Task: ...


@runtime_checkable
class SynthesizesPairs(Protocol):
    """A suite that also generates training tasks that need two capabilities at once, one for each
    seed; none of them is a contrast case. `partners` lists what a capability can be paired with."""

    def partners(self, capability: str) -> Sequence[str]: ...
    def synthetic_pair(self, capability: str, second: str, seed: int) -> Task: ...


@runtime_checkable
class SynthesizesDomains(Protocol):
    """A suite that also generates training tasks of other domains, with tools other than its own,
    one for each seed; its environments play them too. `domains` names them."""

    def domains(self) -> Sequence[str]: ...
    def synthetic_in(self, domain: str, seed: int) -> Task: ...


@runtime_checkable
class AsksUser(Protocol):
    """A suite whose episodes may wait for a model that plays the user or judges what was said. If
    `asks_user()` is true, each episode is stepped in its own thread."""

    def asks_user(self) -> bool: ...


@runtime_checkable
class ActsTogether(Protocol):
    """A suite that resets (given a task) or steps (given an action) many episodes at once. Returns
    one result per call, in order; for an episode that failed, the exception."""

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> Sequence[Step | Exception]: ...


@runtime_checkable
class Describes(Protocol):
    """A suite with facts that every table should report, such as the revision of its data or tasks
    that were left out. JSON-safe."""

    def about(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Lender:
    """The suite that a split's tasks are borrowed from. `env`, `variant`: the settings `env` and
    `env.suite` that choose it; `split`: the split's name there."""

    suite: Suite
    env: str
    variant: str | None
    split: str


@runtime_checkable
class Borrows(Protocol):
    """A suite with splits whose tasks are another suite's, played and scored as they are there.
    With it a run that is evaluated on such a split can stand in a table with runs of the lender.
    None for a split of its own."""

    def lender(self, split: str) -> Lender | None: ...


@runtime_checkable
class Closes(Protocol):
    """Holds resources outside this process, such as containers, until it is closed."""

    def close(self) -> None: ...


@runtime_checkable
class InImage(Protocol):
    """On a suite's class: the container image for sandbox=docker."""

    image: str


@runtime_checkable
class ListsTasksHere(Protocol):
    """On a suite's class: with `lists_tasks_here = True` the suite needs no extra packages, so its
    tasks can be listed in this process even when its episodes run in a sandbox."""

    lists_tasks_here: bool


@runtime_checkable
class LargerSplits(Protocol):
    """On a suite's class: maps a training split to one with more tasks of the same kind."""

    larger: Mapping[str, str]


@runtime_checkable
class Tagged(Protocol):
    """On a suite's class: the keys of a task's data under which it lists what the task needs or is
    about, as words. A report filters by them; nothing is computed from them."""

    tag_keys: tuple[str, ...]


@dataclass(frozen=True)
class Typical:
    """A typical episode: the agent's turns, prompt and completion tokens per turn, user turns."""

    turns: float
    prompt: int
    completion: int
    user: float


@runtime_checkable
class TypicalLengths(Protocol):
    """On a suite's class: typical episode lengths, for the estimates of `dry_run=true`."""

    typical: Typical


# -- policies -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TurnRequest:
    """Asks for the next turn of a live episode.

    `messages` are only those that arrived since the episode's last turn; the policy remembers the
    rest. The first request carries `tools` and the opening messages. `seed` is the seed of the
    episode's own random stream, the same in every request of the episode. `adapter` may change
    between requests: the whole conversation is then read with the new one, as if it had played all
    of it.
    """

    episode: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    adapter: str | None = None
    seed: int = 0
    temperature: float = 1.0
    max_tokens: int = 96


@dataclass(frozen=True)
class TurnReply:
    """The answer to a TurnRequest. `turn` is None if no turn could be generated: then either
    `context_full` is true (the prompt exceeds the model's context: a stop reason, not a failure)
    or `error` says what failed."""

    episode: int
    turn: Turn | None
    error: str | None = None
    context_full: bool = False


@runtime_checkable
class Policy(Protocol):
    """Generates the agent's turns, asynchronously across episodes.

    `capacity`: how many live episodes it can use at once. `repeatable`: whether the same requests
    always give the same turns (a server's answers depend on its other load)."""

    capacity: int
    repeatable: bool

    def load(self, agent: AgentSpec) -> None: ...  # make the agent's adapters available by name
    def submit(self, requests: Sequence[TurnRequest]) -> None: ...
    def collect(self) -> list[TurnReply]: ...  # blocks until at least one is ready
    def release(self, episode: int) -> None: ...  # forget an episode
    def close(self) -> None: ...


@runtime_checkable
class Wakes(Protocol):
    """A policy whose blocked `collect` can be interrupted."""

    def wake(self) -> None: ...  # wakes a blocked `collect`; callable from any thread


@runtime_checkable
class ReadsPrompts(Protocol):
    """A policy that can say before anything is played how many tokens an episode's first prompt
    has; with it, a run whose prompts cannot work is refused at its start. `context`: the most
    tokens of an episode. `first_prompt` raises UserError if the tools do not reach the model."""

    context: int

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int: ...


@runtime_checkable
class TriesTurns(Protocol):
    """A policy that can be asked for one turn before anything is played; with it, a run whose
    servers cannot work is refused at its start. The turn is no rollout, and its episode is
    forgotten. Returns what was asked, as a line of text; raises UserError if no turn can be had.
    """

    def try_turn(self, request: TurnRequest) -> str: ...


@runtime_checkable
class KnowsTask(Protocol):
    """A policy that is given each episode's task, as a scripted policy needs."""

    def bind(self, episode: int, task: Task) -> None: ...


@runtime_checkable
class CountsUsage(Protocol):
    """A policy that counts its requests and tokens. The counts, JSON-safe, are kept in summary.json
    under `usage`."""

    def usage(self) -> Mapping[str, Any]: ...


@runtime_checkable
class RanksLabels(Protocol):
    """A policy whose base model can score one-token answers: maps each label to the natural
    logarithm of its probability; None if the server returns no log-probabilities."""

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> Mapping[str, float] | None: ...


@runtime_checkable
class ShowsState(Protocol):
    """A policy that can show what its base model makes of a prompt: the final hidden state at its
    last token, alone in the sequence; with `blocks` the input of each transformer block, averaged
    over the prompt's tokens, in order. Nothing is sampled, so it is no rollout. Of a prompt that is
    longer than the context, its last tokens are read."""

    def prompt_states(
        self, messages: Sequence[Message], tools: Sequence[Tool], blocks: bool = False
    ) -> Sequence[State]: ...


@runtime_checkable
class PlaysSums(Protocol):
    """A policy that plays weighted sums of its loaded adapters as they are, without a file for
    each. A turn may name the sum (`TurnRequest.adapter`) until the next `load`, or longer where an
    episode plays it. `weights`: of the adapters' updates by name, one number for the model or one
    for each transformer block. The same name always has the same weights."""

    def add_sum(self, name: str, weights: Mapping[str, float | Sequence[float]]) -> None: ...


@runtime_checkable
class Scripted(Protocol):
    """On a policy's class: with `scripted = True` the policy has no weights, so nothing can be
    trained on its turns."""

    scripted: bool


@runtime_checkable
class AtServers(Protocol):
    """On a policy's class: with `at_servers = True` its turns come from the servers in its setting
    `base_url`; the setting `key_env` names the environment variable with the API key."""

    at_servers: bool


@runtime_checkable
class Router(Protocol):
    """Chooses the adapter for an episode from its first messages: a name, None for the base model,
    or a weighted sum of adapters (`policies.routing.merge.Mixture`). `waits`: whether the choice
    waits for a model's answer."""

    waits: bool

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...


@runtime_checkable
class RoutesTurns(Protocol):
    """A router that chooses anew before every turn of the agent, from the whole conversation so
    far."""

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...


# -- trainers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingJob:
    """One adapter to train. `reward` names the field of the score that is the reward
    ("similarity" or "success"). `assignment`: how advantages are taken from the checklists of the
    scores instead (the settings of `checklists.rewards.Assignment`), which only a trainer that
    `AssignsAdvantages` can; every trainer heeds the other fields. `whole` maps the agent with
    the partly trained adapter to the agent that the method would return if training ended
    now; that agent is evaluated for the curve."""

    name: str  # adapter base name; the trainer appends the version
    agent: AgentSpec
    tasks: Sequence[Task]
    rollouts: int  # the most rollouts that this job may spend
    seed: int
    reward: str = "similarity"
    assignment: Mapping[str, Any] | None = None  # None: one advantage for the whole trajectory
    whole: Callable[[AgentSpec], AgentSpec] | None = None  # None: the agent as it is


@runtime_checkable
class Trainer(Protocol):
    """Trains one adapter from (agent, training tasks, reward) and returns the agent with it. All
    rollouts go through `lab.rollouts`."""

    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec: ...


@runtime_checkable
class PlansTraining(Protocol):
    """A trainer that can check a job before it starts. Raises UserError if `rollouts` are too few
    for the job. Returns why an agent at one of the rollout counts `points` differs from the agent
    of a run with that smaller budget; None if it does not differ."""

    def plan_training(self, rollouts: int, name: str, points: Sequence[int]) -> str | None: ...


@runtime_checkable
class ContinuesAdapters(Protocol):
    """A trainer that trains on from the only adapter of a job's agent: it acts in the first
    iteration, and the new adapter starts as a copy of it and replaces it. Without this ability no
    agent with an adapter can be trained on. Raises UserError for an adapter that its settings
    cannot hold."""

    def check_start(self, start: AdapterRef) -> None: ...


@runtime_checkable
class AssignsAdvantages(Protocol):
    """A trainer that heeds `TrainingJob.assignment`: it takes advantages from the checklists of the
    scores, for a trajectory, a turn or a step. A method whose jobs have one needs this ability, for
    a trainer without it would train on `reward` instead. Raises UserError for an assignment with
    which its settings can learn nothing."""

    def check_assignment(self, assignment: Mapping[str, Any]) -> None: ...


@runtime_checkable
class Preflight(Protocol):
    """A trainer that checks its installation and settings before the first rollout; slow checks
    only for a `new` run. Raises UserError."""

    def preflight(self, new: bool) -> None: ...


@runtime_checkable
class NeedsMachines(Protocol):
    """A trainer that can list its hardware needs for a model of so many `billions` of parameters
    (None: unknown). Returns (lines of text, what is missing on this machine). `weights_here`: it
    reads the weights from a folder on this machine even if servers generate the turns."""

    weights_here: bool

    def machines(self, billions: float | None) -> tuple[list[str], list[str]]: ...


@runtime_checkable
class FineTunes(Protocol):
    """A trainer whose model a method may train itself, in this process. `learner` returns the base
    model with LoRA layers (`trainers.model.Learner`); `settings` are the trainer's, including those
    of `trainers.settings.Recipe`."""

    settings: Any

    def learner(self, model: str) -> Any: ...


# -- methods ------------------------------------------------------------------------------------


@runtime_checkable
class Method(Protocol):
    """Takes the base agent and returns the trained agent, within `lab.budget_left()` rollouts. Its
    settings are the parameters of its factory."""

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec: ...


@dataclass(frozen=True)
class Need:
    """An ability that a method needs. `protocol`: the ability; `group`: which part must have it
    ("env", "policy" or "trainer"); `page`: its documentation; `hint`: a sentence with an
    alternative, for the error message."""

    group: str
    protocol: type
    page: str
    hint: str = ""


@dataclass(frozen=True)
class Phase:
    """The rollouts of one phase. `most`: the number is an upper bound."""

    name: str
    rollouts: int
    most: bool = False


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


@runtime_checkable
class PlansItself(Protocol):
    """A method that states in advance what it will do. Raises UserError if the budget is too small
    for its phases. A method without this ability is assumed to spend the whole budget."""

    def plan(self, run: PlannedRun) -> MethodPlan: ...


OnEpisode = Callable[[int, Trajectory], None]
"""Called when an episode ends, with its index and trajectory."""

PlayElsewhere = Callable[[Sequence[int], OnEpisode], None]
"""Runs the episodes with these indices in other processes, and reports each as it ends."""


@runtime_checkable
class TakesBack(Protocol):
    """A `PlayElsewhere` that can go back to before its call, so that lost episodes are played again
    after too many of them have stopped the run. `missing`: the indices of which the run has no
    episode, once it has taken back the lost ones; what is kept elsewhere of their failures, and
    whatever was learned from the call, must be forgotten. May be called twice for the same call."""

    def take_back(self, missing: Sequence[int]) -> None: ...


Hear = Callable[[Sequence[Task], Sequence[Trajectory]], None]
"""Called after a `rollouts` call with its tasks and its episodes."""


@dataclass(frozen=True)
class Source:
    """The source code of a generated suite (`Lab.generated_suite`)."""

    name: str
    text: str
    given: Mapping[str, Any]
    image: str


class Lab(Protocol):
    """Everything that a method may use. Each call has a name, unique in the run and the same when
    the run is repeated: finished calls are answered from the run folder.

    `rollouts` raises BudgetExceeded before anything is played if the budget does not pay for it,
    and ValueError for a call name that was used before. `ask` raises LLMError if no answer can be
    used. `prompt_states` are the policy's (`ShowsState`, a `Need` of the method's plan), without
    charge. `write` and `write_text` raise UserError for a name that the run itself uses."""

    folder: Path
    seed: int
    suite: Suite
    trainer: Trainer

    def budget_left(self) -> int: ...
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
        hints: Sequence[str] | None = None,  # for each episode, added to the agent's prompt
        by: PlayElsewhere | None = None,  # None: run them in this process
    ) -> list[Trajectory]: ...  # one episode per entry of `tasks`, in order; repeat for groups
    def prompt_states(
        self, messages: Sequence[Message], tools: Sequence[Tool], blocks: bool = False
    ) -> Sequence[State]: ...
    def listening(self, hear: Hear) -> AbstractContextManager[None]: ...  # to whoever calls it
    def checkpoint(self, agent: AgentSpec) -> None: ...  # the current agent, for the curve
    def metric(self, **values: Any) -> None: ...
    def log(self, text: str) -> None: ...  # a line of progress, on stderr
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
    def generated_suite(
        self, name: str, source: str, given: Mapping[str, Any], image: str = "base"
    ) -> Suite: ...
    def drop_suite(self, name: str) -> None: ...
    def suite_of(self, task: Task) -> Suite: ...
    def sources(self) -> Sequence[Source]: ...  # of the generated suites in use


# -- trackers -----------------------------------------------------------------------------------


@runtime_checkable
class Tracker(Protocol):
    """Receives a run's metrics, in order and each once, however often the run is resumed. Results
    never depend on it."""

    def log(self, values: Mapping[str, Any]) -> None: ...
    def conclude(self, summary: Mapping[str, Any]) -> None: ...  # the run is finished
    def close(self) -> None: ...


@runtime_checkable
class AwaitsResult(Protocol):
    """A tracker that may need the stored result of a run that was already finished, for instance
    because a sweep service started the run and waits for its score."""

    def awaits_result(self) -> bool: ...


@runtime_checkable
class TakesReport(Protocol):
    """A tracker that also takes what a reader of the finished run looks at, once after `conclude`.
    `episodes`: the held-out episodes, all with the same keys, those of the trained and the base
    agent first. `page`: the report, an HTML file that is there during the call only."""

    def report(self, episodes: Sequence[Mapping[str, Any]], page: Path) -> None: ...


# -- what a factory may ask for -----------------------------------------------------------------


@dataclass(frozen=True)
class RunContext:
    """The facts of the run, for a factory with a parameter of this type.

    fingerprint: the run's fingerprint. folder: the run folder; in another process, a folder in it.
    model: the base model's weights, a folder or a hub name; served_model: its name on the servers.
    batch (live episodes), context (tokens of an episode; None: as the policy decides), threads,
    device, dtype, max_turns, max_tokens: the settings of that name in `policy`. dev_split: the
    development split. settings: the run's settings as plain data; identity: the data behind the
    fingerprint.
    ask: asks the model that plays the simulated user; None if a program plays it. judge: asks the
    model that judges statements about a conversation, simulator: the model that plays tools; None
    without one. suite: the run's suite, for
    a policy. elsewhere: "module:function" that builds the run's suites in another process.
    at_servers: whether the policy's turns come from servers. clean_up: removes containers that
    ended processes left behind.
    """

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
    dev_split: str = "dev"
    settings: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    judge: Ask | None = None
    simulator: Ask | None = None
    suite: Suite | None = None
    elsewhere: str = ""
    at_servers: bool = False
    clean_up: Callable[[], None] = lambda: None
