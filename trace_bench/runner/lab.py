"""The lab: everything that a method may use, built on ledger, store and rollouts.

Every `rollouts` call has a name, unique in the run, from which its episodes' seeds follow, so a
repeated call runs the same episodes. When a run is resumed, episodes are answered from disk
(`runner.ledger`). The budget is counted by the calls made, not by the lines found, so that a
method decides as in an uninterrupted run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlayElsewhere, Prompt, Source, State, Suite, Tracker, Trainer
from trace_bench.core.run_files import OWN
from trace_bench.core.store import stable_seed, write_json, write_text
from trace_bench.core.summary import EpisodeCounts, TrainingCounts
from trace_bench.core.types import AgentSpec, Message, Purpose, Task, Trajectory
from trace_bench.llm.roles import Roles
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import generated_key
from trace_bench.runner.evaluation import outcome_of
from trace_bench.runner.ledger import EpisodeFile, Ledger, check, counts, entry
from trace_bench.runner.report import Progress

T = TypeVar("T")
MakeSuite = Callable[[Source], Suite]  # the suite that source code defines, in a sandbox

Checkpoint = Callable[[int, AgentSpec, int], None]
"""(rollouts spent, the current agent, rollouts spent after the next call): the agent represents all
budgets from the first number up to, but not including, the second."""


@dataclass(frozen=True)
class NamedCall:
    """A call of `Lab.rollouts`. `by`: runs missing episodes instead of this process. `there`: the
    episodes so far, in the order in which they ended."""

    name: str
    batch: EpisodeBatch
    purpose: Purpose
    by: PlayElsewhere | None = None
    there: dict[int, Trajectory] = field(default_factory=dict)

    def lost(self, episodes: Mapping[int, Trajectory]) -> list[int]:
        """Which of these episodes count as lost."""
        tasks = self.batch.tasks
        return [i for i, t in episodes.items() if i < len(tasks) and counts(tasks[i], t.failure)]


@dataclass(eq=False)
class RunLab:
    """`ledger`: the lab's own, with its budget. `roles`: the models that answer `ask`. `max_lost`:
    the share of a call's episodes that may be lost. `spent`: by the calls made so far; `seconds`:
    wall time in rollouts, by purpose; `why_unspent`: what the method said of rollouts that it
    leaves."""

    folder: Path
    seed: int
    ledger: Ledger
    player: Player
    trainer: Trainer
    tracker: Tracker
    progress: Progress
    on_checkpoint: Checkpoint | None = None
    roles: Roles | None = None
    make_suite: MakeSuite | None = None
    max_lost: float = 0.5

    def __post_init__(self) -> None:
        self.suite = self.player.suites.target
        self._sources: dict[str, Source] = {}
        self._episodes = EpisodeFile(self.folder / "trajectories.jsonl")
        self._latest: tuple[int, AgentSpec] | None = None
        self._calls_made: set[str] = set()
        self.spent = 0
        self.why_unspent = ""
        self._last_call = ("", 0)  # charged, with its rollouts
        self.seconds: dict[str, float] = {}
        self.episodes, self.training = EpisodeCounts(), TrainingCounts()

    def budget_left(self) -> int:
        return self.ledger.budget - self.spent

    def leave(self, why: str) -> None:
        self.why_unspent = why

    def unspent(self) -> tuple[int, str]:
        """The rollouts that are left when the method has ended, and why."""
        left, (call, count) = self.ledger.left, self._last_call
        if not left or self.why_unspent:
            return left, self.why_unspent if left else ""
        if left < count:
            return left, f"fewer than the {count} of another call such as {call}"
        return left, "the method had ended" if count else "the method plays none"

    def charges(self, purpose: Purpose) -> bool:
        return purpose in self.ledger.charged

    def rollouts(
        self,
        call: str,
        agent: AgentSpec,
        tasks: Sequence[Task],
        *,
        purpose: Purpose,
        temperature: float = 1.0,
        route: Sequence[str | None] | None = None,
        by: PlayElsewhere | None = None,
    ) -> list[Trajectory]:
        """Runs one episode per entry of `tasks`, in order, charged to the budget unless
        `accounting` exempts the purpose. `by`: runs missing episodes with the same seeds instead of
        this process. Raises BudgetExceeded before anything is run, ValueError for a call name that
        was used before or the purpose EVALUATION, and UserError for a held-out task, and as soon as
        too many are lost."""
        if call in self._calls_made:
            raise ValueError(f"the call {call!r} was made before; names are unique in a run")
        if purpose is Purpose.EVALUATION:
            raise ValueError("held-out evaluation is run outside the lab")
        self.player.suites.check_open(tasks)
        self.ledger.check(call, len(tasks), purpose, self.budget_left())
        charge = len(tasks) if self.charges(purpose) else 0
        self._calls_made.add(call)
        if self.on_checkpoint is not None and self._latest is not None:
            self.on_checkpoint(*self._latest, self.spent + charge)
        self.progress.step(call)
        started = time.monotonic()
        seeds = tuple(stable_seed(self.seed, call, i) for i in range(len(tasks)))
        way = None if route is None else tuple(route)
        batch = EpisodeBatch(agent, tuple(tasks), seeds, temperature, way)
        out = self._played(NamedCall(call, batch, purpose, by))
        self.spent += charge
        self._last_call = (call, charge) if charge else self._last_call
        self.episodes.add(outcome_of("", 0, trajectory, 0) for trajectory in out)
        seconds = self.seconds.get(purpose.value, 0.0) + time.monotonic() - started
        self.seconds[purpose.value] = seconds
        return out

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        """The base model's hidden states of prompts, which cost no rollout."""
        return self.player.policy.prompt_states(prompts)

    def checkpoint(self, agent: AgentSpec) -> None:
        """Sets the agent that the curve shows until the next call of this."""
        self._latest = (self.spent, agent)

    def metric(self, **values: Any) -> None:
        self.training.log(values)
        self.tracker.log({"rollouts": self.spent, **values})

    def log(self, text: str) -> None:
        self.progress.log(text)

    def step(self, name: str, done: int, total: int) -> None:
        self.progress.step(name, done, total)

    def write(self, name: str, value: Any) -> None:
        write_json(self._path(name), value)

    def write_text(self, name: str, text: str) -> None:
        write_text(self._path(name), text)

    def _path(self, name: str) -> Path:
        """The file of that name. Raises UserError for the run's own files and places outside."""
        path, folder = (self.folder / name).resolve(), self.folder.resolve()
        if not path.is_relative_to(folder) or str(path.relative_to(folder)) in OWN:
            raise UserError(
                f"the method would write {name!r}; allowed: a file in the run folder other than "
                f"{', '.join(OWN)}. Change `method`."
            )
        return self.folder / name

    def prompt_limit(self, role: str) -> int | None:
        player = None if self.roles is None else self.roles.role(role)
        return None if player is None else player.characters

    def ask(
        self,
        role: str,
        call: str,
        messages: Sequence[Message],
        read: Callable[[str], T],
        schema: Mapping[str, Any] | None = None,
    ) -> T:
        """The model's answer, read by `read`; asked again if that raises `Unusable`. `call` names
        the question; `schema` is of JSON. LLMError; UserError when the model is out of reach."""
        if self.roles is None:
            raise ValueError(f"no model plays the role {role!r}")
        return self.roles.usable(role, call, messages, read, schema)

    def retract(self, role: str, calls: str) -> None:
        if self.roles is not None:
            self.roles.retract(role, calls)

    def suite_of(self, task: Task) -> Suite:
        return self.player.suites.of(task)

    def sources(self) -> list[Source]:
        return list(self._sources.values())

    def generated_suite(self, name: str, source: str, given: Mapping[str, Any]) -> Suite:
        """Builds the suite of source code, in a sandbox; `rollouts` then accepts its tasks.
        `given`: names that the code may use, with JSON values. Raises UserError."""
        if self.make_suite is None:
            raise ValueError("this lab has no sandbox for generated programs")
        program = Source(name, source, dict(given))
        suite = self.make_suite(program)
        self._sources[name] = program
        self.player.suites.add(generated_key(name), suite)
        return suite

    def drop_suite(self, name: str) -> None:
        self._sources.pop(name, None)
        self.player.suites.drop(generated_key(name))

    def close(self) -> None:
        self.ledger.close()
        self._episodes.close()
        self.tracker.close()
        self.player.suites.close()

    def _played(self, call: NamedCall) -> list[Trajectory]:
        """The call's episodes, in order; those that are not on disk are run and written. What was
        lost of a call that an earlier start has passed stays lost, whatever `max_lost` is by now:
        the agent and the calls after it came from what is there."""
        passed, stored = self._episodes.passed(call.name), self._episodes.of(call.name)
        if not passed:
            self._take_back(call, stored)
        for i, trajectory in stored.items():
            self._check_same(call, i, trajectory)
            # Its ledger line is missing if the run was killed between the two writes.
            self._record(call, i, trajectory)
        if not passed:
            self._check_lost(call)
        if missing := [i for i in range(len(call.batch)) if i not in call.there]:
            self._complete(call, missing)
        return [call.there[i] for i in range(len(call.batch))]

    def _record(self, call: NamedCall, index: int, trajectory: Trajectory) -> None:
        self.ledger.record(entry(call.name, index, call.purpose, trajectory))
        call.there[index] = trajectory
        score = trajectory.score
        reward = None if score is None else score.similarity
        self.progress.episode(reward, charged=self.charges(call.purpose))

    def _take_back(self, call: NamedCall, stored: dict[int, Trajectory]) -> None:
        """Forgets the stored lost episodes of a call that lost too many. The file of trajectories
        comes last: while they are there, a start that was cut off is repeated by the next one."""
        lost, count = call.lost(stored), len(call.batch)
        if len(lost) <= self.max_lost * count:
            return
        if call.by is not None:
            kept = stored.keys() - set(lost)
            call.by.take_back([i for i in range(count) if i not in kept])
        self.ledger.take_back(call.name, lost)
        self._episodes.take_back(call.name, lost)
        for index in lost:
            del stored[index]
        self.log(f"{call.name}: {len(lost)} lost episodes are run again")

    def _check_lost(self, call: NamedCall) -> None:
        lost = [call.there[i] for i in call.lost(call.there)]
        causes = [f"{trajectory.failure} ({trajectory.task})" for trajectory in lost]
        check(call.name, causes, len(call.batch), self.max_lost, self.player.faults.where)

    def _complete(self, call: NamedCall, missing: Sequence[int]) -> None:
        """Runs the missing episodes; adds each to `there` and to the files when it ends."""

        def ended(index: int, trajectory: Trajectory) -> None:
            # The trajectory is written first, so every ledger line has its trajectory.
            self._episodes.add(call.name, index, trajectory)
            self._record(call, index, trajectory)
            if trajectory.failure is not None:
                self._check_lost(call)

        def arrived(index: int, trajectory: Trajectory) -> None:
            self._check_same(call, index, trajectory)
            ended(index, trajectory)

        if call.by is not None:
            call.by(missing, arrived)
        else:
            self.player.complete(call.batch, frozenset(call.there), ended)

    def _check_same(self, call: NamedCall, index: int, stored: Trajectory) -> None:
        """Raises UserError unless a stored (or received) episode is the one that this call runs."""
        batch = call.batch
        if index < len(batch):
            due = (batch.tasks[index].id, batch.seeds[index], batch.agent.version)
            if (stored.task, stored.seed, stored.agent) == due:
                return
        raise UserError(
            f"{self.folder} was written by another version of the program: its call "
            f"{call.name!r}, episode {index} is {stored.task} by {stored.agent}, which is another "
            "than this version runs. Change the setting `run_dir`, or remove the folder."
        )
