"""τ²-bench's tasks in splits. Variant: the domain, or several of them.

One episode is agent, user and two sets of tools, as a state machine without threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from trace_bench.checklists.talk import ToolCall
from trace_bench.core.chat import answer_call, call_message, opening_of, read_call, text_message
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Ask, RunContext, Suite, Typical
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import EitherEnv, LiveEnv, task_named
from trace_bench.envs.tau2.domains import AGENT, DOMAINS, USER
from trace_bench.envs.tau2.score import SCORING, gold_changes, score
from trace_bench.envs.tau2.user import PROMPT_VERSION, STOPS, AskedUser, ScriptedCustomer
from trace_bench.envs.tau2.world import DomainTools, Tau2World, failed

Name = Literal["airline", "retail", "telecom", "banking_knowledge"]
MOST_ERRORS = 10  # failed calls of agent and user; the benchmark then ends the episode

_TEXT = (
    "You are a customer service agent. Help the user within the policy below. In each turn either "
    "send the user a message or make tool calls, not both."
)


class Tau2Env(LiveEnv):
    """`ask`: asks the model that plays the user; None: a script does.

    Departures from the benchmark's loop: the agent's turns are limited (`policy.max_turns`) instead
    of all messages, and a message without text or calls is passed on instead of ending the run."""

    def __init__(self, toolbox: DomainTools, gold: Callable[[str], str], ask: Ask | None) -> None:
        self._toolbox, self._gold, self._ask = toolbox, gold, ask

    def reset(self, task: Task) -> Step:
        self._record = task.data["record"]
        self._world: Tau2World = self._toolbox.world(self._record)
        self._calls: list[ToolCall] = []
        self._said: list[str] = []
        self._errors = 0
        self._stopped = False
        self._live = True
        self._user: AskedUser | ScriptedCustomer = ScriptedCustomer(self._record)
        if self._ask is not None:
            self._user = AskedUser(self._record, self._toolbox.of_user(self._record), self._ask)
        messages = opening_of(f"{_TEXT}\n\n{self._toolbox.policy}", self._user.opening())
        return Step(tuple(messages), self._toolbox.schemas[AGENT])

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        self._said.append(text)
        if calls:
            return self._execute(calls)
        answer = self._user.reply(text, self._user_call)
        said: Message = {"role": "user", "content": answer}
        stopped = any(stop in answer for stop in STOPS)
        return self._goes_on((said,), stopped)

    def score(self) -> Score:
        """The score of the current state: 0 unless the agent or the user has ended the episode."""
        gold, played = self._gold(self._record["id"]), (self._world, self._said, self._calls)
        verdict = score(self._record, gold, *played, self._stopped)
        if not self._user.faults:
            return verdict
        return replace(verdict, details={**verdict.details, "user_faults": self._user.faults})

    def _execute(self, calls: list[Any]) -> Step:
        answers = []
        for call in calls:
            try:
                name, arguments = read_call(call)
            except ValueError as error:
                answer = failed(str(error))
            else:
                self._calls.append(ToolCall(name, arguments))
                answer = self._world.call(AGENT, name, arguments)
            self._errors += answer.failed
            answers.append(answer_call(call, answer.text))
        return self._goes_on(tuple(answers))

    def _user_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._calls.append(ToolCall(name, arguments))
        answer = self._world.call(USER, name, arguments)
        self._errors += answer.failed
        return answer.text

    def _goes_on(self, messages: tuple[Message, ...], stopped: bool = False) -> Step:
        """The next messages for the agent, unless the user stopped or too many calls failed."""
        if not stopped and self._errors < MOST_ERRORS:
            return Step(messages)
        self._stopped = self._errors < MOST_ERRORS
        return self.end(StopReason.DONE, messages)


@dataclass(frozen=True)
class Tau2Settings:
    """`env.*` of `env=tau2`."""

    domain: Name | tuple[Name, ...]
    """airline, retail, telecom or banking_knowledge; [airline,retail]: both as one world, reported
    by domain too."""

    @property
    def domains(self) -> tuple[Name, ...]:
        return self.domain if isinstance(self.domain, tuple) else (self.domain,)


class Tau2Suite(Suite):
    """A domain of the benchmark. The user is `run.ask`'s model, or a script. Raises UserError."""

    name = "tau2"
    image = "tau2"
    # Estimated from the lengths of the benchmark's policies and conversations; policy and tools of
    # airline and retail, at four characters a token, are what all episodes share.
    typical = Typical(14, 8000, 120, 7, 4600)

    def __init__(self, run: RunContext, settings: Tau2Settings) -> None:
        (self.variant,) = settings.domains
        self._user = "scripted" if run.ask is None else "llm"
        self._domain, self._ask = DOMAINS[self.variant](self.variant), run.ask

    def asks_user(self) -> bool:
        return self._ask is not None

    @cached_property
    def _toolbox(self) -> DomainTools:
        return DomainTools(self._domain)

    @cached_property
    def _gold(self) -> Callable[[str], str]:
        """How the task of a record's id should change its database."""
        return cache(lambda name: gold_changes(self._domain.records[name], self._toolbox))

    def about(self) -> dict[str, Any]:
        return {
            "data": self._domain.revision,
            "scoring": SCORING,
            "user": self._user,
            "user_prompt": PROMPT_VERSION,
        }

    def splits(self) -> Sequence[str]:
        """The benchmark's own splits, and its train split in two: `fit` for training, `dev` for
        tuning."""
        return [*self._domain.splits, "fit", "dev"]

    def tasks(self, split: str) -> Sequence[Task]:
        if split in self._domain.splits:
            ids = list(self._domain.splits[split])
        elif split in ("fit", "dev"):
            train = list(self._domain.splits["train"])
            ids = [t for n, t in enumerate(train) if (n % 3 == 2) == (split == "dev")]
        else:
            raise unknown(
                "split", split, self.splits(), "env.train_split, env.dev_split or evaluation.split"
            )
        return [self._task(split, n, name) for n, name in enumerate(ids)]

    def task(self, task_id: str) -> Task:
        return task_named(self, task_id)

    def make(self) -> Tau2Env:
        return Tau2Env(self._toolbox, self._gold, self._ask)

    def reference(self, task: Task) -> Sequence[Message]:
        """The task's own actions in order: the agent's as tool calls, a message to the user where
        the user must act; at the end a message with all information the user needs."""
        criteria = task.data["record"].get("evaluation_criteria") or {}
        out: list[Message] = []
        before = None
        for n, action in enumerate(criteria.get("actions") or ()):
            side = action.get("requestor", "assistant")
            if side == "assistant":
                out.append(call_message(action["name"], action["arguments"], f"gold_{n}"))
            elif before != "user":
                out.append(text_message("Please do what is needed on your side."))
            before = side
        told = " ".join(criteria.get("communicate_info") or ())
        return [*out, text_message(f"That is done. {told}".strip())]

    def _task(self, split: str, number: int, name: str) -> Task:
        data = {"record": self._domain.records[name]}
        return Task(f"tau2/{self.variant}/{split}/{number:04d}", "tau2", split, number, data)


class Tau2Domains(Suite):
    """The domains that `env.domain` lists as one training world: their tasks one domain after the
    other, each in its own, adapters and analysis over all. Raises UserError as `Tau2Suite` does."""

    name = "tau2"
    image = Tau2Suite.image
    typical = Tau2Suite.typical
    world_key = "domain"

    def __init__(self, run: RunContext, settings: Tau2Settings) -> None:
        self._suites: dict[str, Tau2Suite] = {
            domain: Tau2Suite(run, replace(settings, domain=domain)) for domain in settings.domains
        }
        self.variant = "+".join(self._suites)

    def about(self) -> dict[str, Any]:
        """The facts of each domain; those that all share, once."""
        facts = {domain: suite.about() for domain, suite in self._suites.items()}
        first = next(iter(facts.values()))
        return {
            key: value
            if all(one[key] == value for one in facts.values())
            else "; ".join(f"{domain}: {one[key]}" for domain, one in facts.items())
            for key, value in first.items()
        }

    def asks_user(self) -> bool:
        return any(suite.asks_user() for suite in self._suites.values())

    def splits(self) -> Sequence[str]:
        """Those that every domain has."""
        first, *others = (suite.splits() for suite in self._suites.values())
        return [split for split in first if all(split in other for other in others)]

    def tasks(self, split: str) -> Sequence[Task]:
        return [
            _marked(task, domain)
            for domain, suite in self._suites.items()
            for task in suite.tasks(split)
        ]

    def task(self, task_id: str) -> Task:
        for domain, suite in self._suites.items():
            if task_id.startswith(f"{self.name}/{domain}/"):
                return _marked(suite.task(task_id), domain)
        raise UserError(f"no task {task_id!r} in {self.name}/{self.variant}.")

    def make(self) -> EitherEnv:
        return EitherEnv(lambda task: self._suites[task.data["domain"]].make())

    def reference(self, task: Task) -> Sequence[Message]:
        return self._suites[task.data["domain"]].reference(task)


def _marked(task: Task, domain: str) -> Task:
    return replace(task, data={**task.data, "domain": domain})
