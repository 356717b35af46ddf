"""The lab: all that a method may touch, over ledger, store and rollouts.

Every `rollouts` call has a name, unique in the run. Its episodes' seeds follow from the run's seed,
the name and the index, so a call that is repeated plays the same episodes. When a run is resumed:

- a call whose lines are all on disk is answered from there,
- a partly written one is played again as a whole, and only the missing lines are appended (with a
  policy that would not repeat itself, such as a server, only the missing episodes are played),
- the budget is counted by the calls made, not by the lines found, so that a method decides the same
  at every point as it would have in an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core.errors import BudgetExceeded, UserError
from trace_bench.core.protocols import By, Ended, Policy, Source, Suite, Trainer
from trace_bench.core.store import Lines, stable_seed, write_json, write_text
from trace_bench.core.types import (
    CHARGED,
    AgentSpec,
    Message,
    Purpose,
    Task,
    Trajectory,
    trajectory_from_json,
)
from trace_bench.llm.roles import Roles
from trace_bench.play.rollouts import play
from trace_bench.play.suites import Several
from trace_bench.runner.ledger import Ledger, entry
from trace_bench.runner.progress import Progress
from trace_bench.trackers.jsonl import Tracker

T = TypeVar("T")
Foreign = Callable[[str, str, Mapping[str, Any], str], Suite]
Checkpoint = Callable[[int, AgentSpec, int], None]
"""(rollouts spent, the agent so far, rollouts spent after the next call): the agent stands for all
budgets from the first number up to, without, the second."""


class RunLab:
    """`protocols.Lab` for one run folder."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        budget: int,
        suite: Suite,
        settings: Mapping[str, Any],
        trainer: Trainer,
        policy: Policy,
        tracker: Tracker,
        progress: Progress,
        max_turns: int,
        max_tokens: int,
        charged: frozenset[Purpose] = CHARGED["strict"],
        on_checkpoint: Checkpoint | None = None,
        shown: bool = True,
        roles: Roles | None = None,
        foreign: Foreign | None = None,
    ) -> None:
        """`charged`: what the budget pays for. `shown`: whether rollouts count as the run's budget
        in the progress display, and whether what the method says is printed. `roles`: who answers
        `ask`; `foreign`: (name, program text, names it is given, image) -> a suite in
        a box."""
        self.folder = folder
        self.seed = seed
        self.suite = suite
        self._suites = Several(suite)
        self._roles, self._foreign = roles, foreign
        self._sources: dict[str, Source] = {}
        self.settings = settings
        self.trainer = trainer
        self.policy = policy
        self.ledger = Ledger(folder / "ledger.jsonl", budget, charged)
        self._trajectories = Lines(folder / "trajectories.jsonl")
        self._stored = _by_call(self._trajectories)
        self._tracker = tracker
        self._progress = progress
        self._shown = shown
        self._limits = {"max_turns": max_turns, "max_tokens": max_tokens}
        self._on_checkpoint = on_checkpoint
        self._latest: tuple[int, AgentSpec] | None = None
        self._budget = budget
        self._spent = 0
        self._calls: set[str] = set()
        self.seconds: dict[str, float] = {}  # wall time in rollouts, by purpose
        self.turns, self.malformed = 0, 0  # of the agent; those whose tool call cannot be read

    def budget_left(self) -> int:
        """Rollouts that the calls made so far have left."""
        return self._budget - self._spent

    def charges(self, purpose: Purpose) -> bool:
        """Whether the budget pays for rollouts of this purpose."""
        return purpose in self.ledger.charged

    @property
    def spent(self) -> int:
        return self._spent

    def rollouts(
        self,
        call: str,
        agent: AgentSpec,
        tasks: Sequence[Task],
        *,
        purpose: Purpose,
        temperature: float = 1.0,
        route: Sequence[str | None] | None = None,
        by: By | None = None,
    ) -> list[Trajectory]:
        """One episode per entry of `tasks`, in order, charged to the budget unless `accounting`
        lets its purpose go free. `by`: who plays those that are missing, instead of this process;
        whoever it is must give them the same seeds.

        Raises BudgetExceeded before anything is played, and ValueError for a call name that was
        used before or the purpose EVALUATION, which is not a method's business.
        """
        if call in self._calls:
            raise ValueError(f"the call {call!r} was made before; names are unique in a run")
        if purpose is Purpose.EVALUATION:
            raise ValueError("held-out evaluation is played outside the lab")
        charge = len(tasks) if purpose in self.ledger.charged else 0
        if charge > self.budget_left():
            raise BudgetExceeded(
                f"{call!r} asks for {len(tasks)} rollouts; {self.budget_left()} of {self._budget} "
                "are left. Change the setting `budget`."
            )
        self._calls.add(call)
        if self._on_checkpoint is not None and self._latest is not None:
            self._on_checkpoint(*self._latest, self._spent + charge)
        self._progress.step(call)
        started = time.monotonic()
        self.ledger.check(call, len(tasks), purpose)
        known, stored = self.ledger.call(call), self._stored.pop(call, {})
        seeds = [stable_seed(self.seed, call, i) for i in range(len(tasks))]
        everything = range(len(tasks))
        there = {i: trajectory_from_json(stored[i]) for i in sorted(stored)}
        for i, trajectory in there.items():
            self._check_same(call, i, trajectory, tasks[i], seeds[i], agent)
        whole = len(known) == len(there) == len(tasks)
        if not whole and by is None and getattr(self.policy, "repeatable", True):
            there = {}  # an episode's rounding may depend on those that were played beside it
        for i in there.keys() - known.keys():  # killed between the two lines of an episode
            self.ledger.record(entry(call, i, purpose, there[i]))
        for trajectory in there.values():
            self._progress.episode(_reward(trajectory), charged=self._shown and charge > 0)
        which = [i for i in everything if i not in there]
        if which:
            ended = self._ended(call, purpose, set(stored))
            if by is None:
                self._play(agent, tasks, seeds, temperature, route, which, there, ended)
            else:
                by(which, _checking(self, call, agent, tasks, seeds, there, ended))
        out = [there[i] for i in everything]
        self._spent += charge
        self.turns += sum(len(t.turns) for t in out)
        self.malformed += sum(turn.malformed is not None for t in out for turn in t.turns)
        self.seconds[purpose.value] = (
            self.seconds.get(purpose.value, 0.0) + time.monotonic() - started
        )
        return out

    def checkpoint(self, agent: AgentSpec) -> None:
        """The agent as it stands after the rollouts spent so far. It is looked at before the next
        rollouts are played, if they lead past a point of the curve."""
        self._latest = (self._spent, agent)

    def metric(self, **values: Any) -> None:
        self._tracker.log({"rollouts": self._spent, **values})

    def say(self, text: str) -> None:
        if self._shown:
            self._progress.say(text)

    def write(self, name: str, value: Any) -> None:
        write_json(self.folder / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_text(self.folder / name, text)

    def room(self, role: str) -> int | None:
        """How many characters a question to the model in that role may have; None when a program
        plays the role."""
        player = self._roles.role(role) if self._roles is not None else None
        return None if player is None else player.characters

    def ask(self, role: str, call: str, messages: Sequence[Message], read: Callable[[str], T]) -> T:
        """What `read` makes of the model's answer; it may raise `Unusable`, and the model is asked
        again. `call` names the question, like the calls of `rollouts`. Raises LLMError."""
        if self._roles is None:
            raise ValueError(f"nobody plays the role {role!r}")
        return self._roles.usable(role, call, messages, read)

    def retract(self, role: str, calls: str) -> None:
        """Forgets the answers to all questions whose name begins so: they will be asked again."""
        if self._roles is not None:
            self._roles.retract(role, calls)

    def suite_of(self, task: Task) -> Suite:
        """The suite that plays a task: the target, or one of a program text."""
        return self._suites.of(task)

    def sources(self) -> list[Source]:
        """The program texts whose suites are in use."""
        return list(self._sources.values())

    def foreign(
        self, name: str, source: str, given: Mapping[str, Any], image: str = "base"
    ) -> Suite:
        """The suite that a program text defines, in a box; its tasks can be played from now on.
        `given`: names that the text may use, with JSON values; `image`: of the box. Raises
        UserError when the text cannot be used, or may not be."""
        if self._foreign is None:
            raise ValueError("this lab has no box for programs of others")
        suite = self._foreign(name, source, given, image)
        self._sources[name] = Source(name, source, dict(given), image)
        self._suites.others[f"generated/{name}"] = suite
        return suite

    def forget(self, name: str) -> None:
        """The suite of that name is not needed any more."""
        self._sources.pop(name, None)
        suite = self._suites.others.pop(f"generated/{name}", None)
        getattr(suite, "close", lambda: None)()

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Tells the tracker that the run is finished."""
        self._tracker.conclude(summary)

    def close(self) -> None:
        self.ledger.close()
        self._trajectories.close()
        self._tracker.close()
        self._suites.close()

    def _ended(self, call: str, purpose: Purpose, written: set[int]) -> Ended:
        """Writes down what was played; trajectories `written` before a kill are there."""

        def ended(index: int, trajectory: Trajectory) -> None:
            # The trajectory first: a ledger line then always has its trajectory.
            if index not in written:
                line = {"call": call, "index": index, "trajectory": trajectory}
                self._trajectories.append(line)
            self.ledger.record(entry(call, index, purpose, trajectory))
            charged = self._shown and purpose in self.ledger.charged
            self._progress.episode(_reward(trajectory), charged=charged)

        return ended

    def _play(
        self,
        agent: AgentSpec,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        temperature: float,
        route: Sequence[str | None] | None,
        which: Sequence[int],
        there: dict[int, Trajectory],
        ended: Ended,
    ) -> None:
        """Plays the episodes `which` here."""
        played = play(
            self.policy,
            self._suites,
            agent,
            [tasks[i] for i in which],
            [seeds[i] for i in which],
            temperature=temperature,
            route=None if route is None else [route[i] for i in which],
            on_episode=lambda place, trajectory: ended(which[place], trajectory),
            **self._limits,
        )
        there |= dict(zip(which, played, strict=True))

    def _check_same(
        self,
        call: str,
        index: int,
        found: Trajectory,
        task: Task,
        seed: int,
        agent: AgentSpec,
    ) -> None:
        """What is on disk must be what would have been played."""
        if (found.task, found.seed, found.agent) != (task.id, seed, agent.version):
            raise UserError(
                f"{self.folder} was written by another version of the program: its call {call!r}, "
                f"episode {index} is {found.task} by {found.agent}, and this version would play "
                f"{task.id} by {agent.version}. Change the setting `run_dir`, or remove the folder."
            )


def _checking(
    lab: RunLab,
    call: str,
    agent: AgentSpec,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    there: dict[int, Trajectory],
    ended: Ended,
) -> Ended:
    """Takes episodes that were played elsewhere, if they are what was asked for."""

    def arrived(index: int, trajectory: Trajectory) -> None:
        lab._check_same(call, index, trajectory, tasks[index], seeds[index], agent)
        there[index] = trajectory
        ended(index, trajectory)

    return arrived


def _by_call(lines: Lines) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Stored trajectories as plain data by call and index; each call is dropped once answered."""
    stored: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines.existing:
        stored.setdefault(line["call"], {})[line["index"]] = line["trajectory"]
    lines.existing.clear()
    return stored


def _reward(trajectory: Trajectory) -> float | None:
    return None if trajectory.score is None else trajectory.score.similarity
