"""A memory in the prompt in place of weights: lines that a writer adds and removes after each round
of rollouts, all of which act under the lines of the rounds before.

`training_free_grpo` (Cai et al. 2025, arXiv 2510.08191): in each group whose rewards differ the
writer edits the memory by what tells better from worse attempts at the same task. `ace` (Zhang et
al. 2025, arXiv 2510.04618): of single attempts the writer says which lines helped and which did
harm, and adds new ones; where there are too many, the lines with the worst balance go.

The writer is the model in the role `reflector`, asked once a group (once a round for `ace`), where
the papers ask several times; or the program in its place, which knows GEPA's symptoms and pool of
lines (`methods.reflectors`). No rollout is kept for comparing memories: the last one is the result,
as in the papers.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trace_bench.core.chat import opening_of
from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Purpose, Task, Trajectory, grouped
from trace_bench.llm.client import LLMError
from trace_bench.llm.structured import read_json
from trace_bench.methods.reflectors import ANY, MOST, POOL, ROLE, symptoms, under
from trace_bench.methods.transcript import compact, conversation, feedback
from trace_bench.play.suites import needed

RULES = """\
You keep the memory of an agent that works with tools: numbered lines of general advice, which it
reads before every task. You see {what}, with what came of them. {task} Advice is one sentence,
general, about no single task; at most {lines} lines in all.
Answer with JSON: {{"add": ["a new line", ...], "remove": [numbers], "helped": [numbers],
"harmed": [numbers]}}."""
_NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 1}}
SCHEMA = {
    "type": "object",
    "properties": {
        "add": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": MOST}},
        **dict.fromkeys(("remove", "helped", "harmed"), _NUMBERS),
    },
    "required": ["add"],
}


@dataclass(frozen=True)
class MemorySettings:
    """`method.*` of `method=ace`."""

    tasks: int = field(default=32, metadata=number(1))
    """Training tasks of a round."""
    lines: int = field(default=6, metadata=number(1))
    """Most lines of the memory."""
    reward: Literal["similarity", "success"] = "similarity"
    """Which number of the score tells better attempts from worse."""
    group_size: int = field(default=1, metadata=number(1))
    """Attempts at each task of a round."""

    @property
    def round(self) -> int:
        return self.tasks * self.group_size


@dataclass(frozen=True)
class TrainingFreeSettings(MemorySettings):
    """`method.*` of `method=training_free_grpo`."""

    tasks: int = field(default=8, metadata=number(1))
    """Training tasks of a round (the paper has 100 in one)."""
    group_size: int = field(default=5, metadata=number(2))
    """Attempts at each task (the paper's 5)."""


@dataclass(frozen=True)
class Lesson:
    text: str
    helped: int = 0
    harmed: int = 0


@dataclass(frozen=True)
class Rated:
    """An attempt that was not lost, and its reward."""

    trajectory: Trajectory
    reward: float

    @property
    def symptoms(self) -> frozenset[str]:
        return symptoms(conversation(self.trajectory))


Memory = tuple[Lesson, ...]


class Remembering(Method):
    """The rounds, and the agent under a memory."""

    def __init__(self, settings: MemorySettings) -> None:
        self.settings = settings

    @abstractmethod
    def shown(self, seen: Sequence[Rated]) -> list[list[Rated]]:
        """The attempts of a round, as they are shown to the writer together."""

    @abstractmethod
    def program(self, memory: Memory, seen: Sequence[Rated], rng: random.Random) -> dict[str, Any]:
        """What the program in the writer's place answers."""

    rules: tuple[str, str]  # what the writer sees, and what it is to do

    @property
    def asked(self) -> int:
        """The most questions to the writer in a round."""
        return 1

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        memory: Memory = ()
        budget = lab.budget_left()
        order: list[Task] = []
        rounds: list[dict[str, Any]] = []
        while lab.budget_left() >= self.settings.round:
            place = len(rounds)
            while len(order) < self.settings.tasks:
                rng = random.Random(stable_seed(lab.seed, "memory", place, len(order)))
                order += rng.sample([*needed(tasks)], len(tasks))
            now, order = order[: self.settings.tasks], order[self.settings.tasks :]
            played = lab.rollouts(
                f"memory/{place:04d}",
                self.agent(base, memory),
                [task for task in now for _ in range(self.settings.group_size)],
                purpose=Purpose.PROMPT,
            )
            seen = [
                Rated(t, float(getattr(t.score, self.settings.reward)))
                for t in played
                if t.score is not None and t.failure is None
            ]
            for n, group in enumerate(self.shown(seen)):
                answer = self._written(lab, f"{place:04d}/{n:02d}", memory, group)
                memory = edited(memory, answer, self.settings.lines)
            mean = sum(s.reward for s in seen) / max(1, len(seen))
            rounds.append({"reward": mean, "memory": [line.text for line in memory]})
            lab.write("memory.json", rounds)
            lab.metric(phase="prompt", round=place, reward=mean, lines=len(memory))
            lab.checkpoint(self.agent(base, memory))
        unspent = f"{lab.budget_left()} of {budget} rollouts unspent"
        lab.log(f"{len(rounds)} rounds, {len(memory)} lines; {unspent}")
        return self.agent(base, memory)

    def agent(self, base: AgentSpec, memory: Memory) -> AgentSpec:
        """The base agent with the memory in its prompt."""
        lines = [base.prompt, *(line.text for line in memory)]
        return under(base, "\n".join(filter(None, lines)), "memory")

    def plan(self, run: PlannedRun) -> MethodPlan:
        size = self.settings.round
        if run.budget < size:
            raise UserError(
                f"budget={run.budget} is too small for a round of {size} rollouts (method.tasks, "
                "method.group_size). Raise `budget`, or lower one of these."
            )
        rounds = run.budget // size
        return MethodPlan(
            phases=(Phase("prompts", rounds * size),),
            questions={ROLE: rounds * self.asked} if ROLE in run.models else {},
        )

    def _written(
        self, lab: Lab, call: str, memory: Memory, seen: Sequence[Rated]
    ) -> Mapping[str, Any]:
        limit = lab.prompt_limit(ROLE)
        if limit is None:
            return self.program(memory, seen, random.Random(stable_seed(lab.seed, "memory", call)))
        what, task = self.rules
        rules = RULES.format(what=what, task=task, lines=self.settings.lines)
        lines = "\n".join(f"{n}. {line.text}" for n, line in enumerate(memory, 1)) or "(none)"
        each = max(200, (limit - len(rules) - len(lines)) // len(seen) - 100)
        talks = (f"-- {feedback(s.trajectory)}\n{compact(s.trajectory, each)}" for s in seen)
        asked = f"Memory:\n{lines}\n\n" + "\n\n".join(talks)
        messages = opening_of(rules, asked)
        try:
            return lab.ask(ROLE, call, messages, lambda text: read_json(text, SCHEMA), SCHEMA)
        except LLMError as error:
            if not error.outage:
                lab.log(f"the memory stays as it is: {error}")
                return {"add": []}
            lab.retract(ROLE, f"{call}/")  # asked again by the same command
            raise error.ending(ROLE, "writer of the memory") from error


class TrainingFreeGrpo(Remembering):
    """Training-Free GRPO: what tells better from worse attempts at a task becomes lines of the
    prompt, group by group."""

    rules = (
        "its attempts at one task",
        "Find out what the better attempts do that the worse do not, add advice that says so, and "
        "remove lines that are wrong or said twice.",
    )

    def __init__(self, settings: TrainingFreeSettings) -> None:
        super().__init__(settings)

    @property
    def asked(self) -> int:
        return self.settings.tasks

    def shown(self, seen: Sequence[Rated]) -> list[list[Rated]]:
        """The groups whose rewards differ, the best attempt first."""
        groups = grouped(seen, lambda one: one.trajectory.task)
        return [
            sorted(group, key=lambda s: -s.reward)
            for group in groups.values()
            if len({s.reward for s in group}) > 1
        ]

    def program(self, memory: Memory, seen: Sequence[Rated], rng: random.Random) -> dict[str, Any]:
        """Adds a line about what is seen in the worse attempts alone, and keeps the lines about it:
        where there are too many, those go that were seldom about what tells attempts apart."""
        middle = sum(s.reward for s in seen) / len(seen)
        better = frozenset().union(*(s.symptoms for s in seen if s.reward > middle))
        apart = frozenset().union(*(s.symptoms for s in seen if s.reward <= middle)) - better
        kept = [n for n, line in enumerate(memory, 1) if about(line.text) & apart]
        return {"add": drawn(memory, [apart], rng), "helped": kept}


class Ace(Remembering):
    """ACE: a playbook in the prompt whose lines are counted as helpful or harmful, round by
    round."""

    rules = (
        "its attempts at several tasks",
        "Name the lines that helped and those that did harm, and add advice about what is still "
        "done wrong.",
    )

    def shown(self, seen: Sequence[Rated]) -> list[list[Rated]]:
        """All of a round, the worst first."""
        return [sorted(seen, key=lambda s: s.reward)] if seen else []

    def program(self, memory: Memory, seen: Sequence[Rated], rng: random.Random) -> dict[str, Any]:
        """Counts a line as helpful where more than half of the attempts that it is about went well,
        and adds one about what is seen in failed attempts."""
        noticed = [(s.symptoms, s.reward) for s in seen]
        found: dict[str, list[int]] = {"helped": [], "harmed": []}
        for n, line in enumerate(memory, 1):
            rewards = [reward for there, reward in noticed if about(line.text) & there]
            good = sum(reward >= 1.0 for reward in rewards)
            if rewards:
                found["helped" if 2 * good > len(rewards) else "harmed"].append(n)
        failed = [there for there, reward in noticed if reward < 1.0]
        return {"add": drawn(memory, failed, rng), **found}


def edited(memory: Memory, answer: Mapping[str, Any], most: int) -> Memory:
    """The memory after an answer (`SCHEMA`). Beyond `most` lines the (oldest) worst ones go."""
    kept = [
        replace(
            line,
            helped=line.helped + answer.get("helped", ()).count(n),
            harmed=line.harmed + answer.get("harmed", ()).count(n),
        )
        for n, line in enumerate(memory, 1)
        if n not in answer.get("remove", ())
    ]
    texts = {line.text for line in kept}
    new = dict.fromkeys(" ".join(text.split()) for text in answer["add"])
    kept += [Lesson(text) for text in new if text and text not in texts]
    while len(kept) > most:
        kept.remove(min(kept, key=lambda line: line.helped - line.harmed))
    return tuple(kept)


def about(line: str) -> frozenset[str]:
    return frozenset(POOL.get(line, ())) - {ANY}


def drawn(memory: Memory, noticed: Sequence[frozenset[str]], rng: random.Random) -> list[str]:
    """A new line of the pool, drawn by how often its symptoms were noticed; none if never."""
    there = {line.text for line in memory}
    weights = {
        line: sum(len(about(line) & seen) for seen in noticed) for line in POOL if line not in there
    }
    return rng.choices([*weights], [*weights.values()]) if any(weights.values()) else []
