"""ACE: a memory in the prompt in place of weights (Zhang et al. 2025, arXiv 2510.04618). After each
round of rollouts a writer says which of its lines helped and which did harm, and adds new ones;
where there are too many, the lines with the worst balance go.

The writer is the model in the role `reflector`, asked once a round, where the paper asks several
times; or the program in its place, which knows GEPA's symptoms and pool of lines
(`methods.reflectors`). No rollout is kept for comparing memories: the last one is the result, as in
the paper.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_bench.core.chat import opening_of
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Positive, Purpose, Task, Trajectory
from trace_bench.llm.client import LLMError
from trace_bench.llm.roles import read_json
from trace_bench.methods.looking.evidence import as_text, compact, feedback
from trace_bench.methods.reflectors import ANY, MOST, POOL, ROLE, symptoms, under
from trace_bench.play.suites import needed

LINES = 6  # of the memory, at most
RULES = """\
You keep the memory of an agent that works with tools: numbered lines of general advice, which it
reads before every task. You see its attempts at several tasks, with what came of them. Name the
lines that helped and those that did harm, and add advice about what is still done wrong. Advice is
one sentence, general, about no single task; at most {lines} lines in all.
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
class AceSettings:
    """`method.*` of `method=ace`."""

    tasks: Positive = 32
    """Training tasks of a round, one rollout each."""


@dataclass(frozen=True)
class Lesson:
    text: str
    helped: int = 0
    harmed: int = 0


Attempts = Sequence[tuple[Trajectory, float]]
"""Those that were not lost, each with its reward."""
Memory = tuple[Lesson, ...]


class Ace(Method):
    """ACE: a playbook in the prompt whose lines are counted as helpful or harmful by rounds."""

    def __init__(self, settings: AceSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        memory: Memory = ()
        budget = lab.budget_left()
        order: list[Task] = []
        rounds: list[dict[str, Any]] = []
        while lab.budget_left() >= self.settings.tasks:
            place = len(rounds)
            while len(order) < self.settings.tasks:
                rng = random.Random(stable_seed(lab.seed, "memory", place, len(order)))
                order += rng.sample([*needed(tasks)], len(tasks))
            now, order = order[: self.settings.tasks], order[self.settings.tasks :]
            agent = with_memory(base, memory)
            played = lab.rollouts(f"memory/{place:04d}", agent, now, purpose=Purpose.PROMPT)
            attempts = [
                (t, t.score.similarity) for t in played if t.score is not None and t.failure is None
            ]
            if attempts:
                worst_first = sorted(attempts, key=lambda attempt: attempt[1])
                answer = self._written(lab, f"{place:04d}/00", memory, worst_first)
                memory = edited(memory, answer)
            mean = sum(reward for _, reward in attempts) / max(1, len(attempts))
            rounds.append({"reward": mean, "memory": [line.text for line in memory]})
            lab.write("memory.json", rounds)
            lab.metric(phase="prompt", round=place, reward=mean, lines=len(memory))
            lab.checkpoint(with_memory(base, memory))
        unspent = f"{lab.budget_left()} of {budget} rollouts unspent"
        lab.log(f"{len(rounds)} rounds, {len(memory)} lines; {unspent}")
        return with_memory(base, memory)

    def plan(self, run: PlannedRun) -> MethodPlan:
        size = self.settings.tasks
        rounds = run.budget // size
        return MethodPlan(
            phases=(Phase("prompts", rounds * size, least=size, setting="method.tasks"),),
            questions={ROLE: rounds} if ROLE in run.models else {},
        )

    def _written(
        self, lab: Lab, call: str, memory: Memory, attempts: Attempts
    ) -> Mapping[str, Any]:
        """The writer's answer (`SCHEMA`) to the attempts of a round."""
        limit = lab.prompt_limit(ROLE)
        if limit is None:
            return by_program(
                memory, attempts, random.Random(stable_seed(lab.seed, "memory", call))
            )
        rules = RULES.format(lines=LINES)
        lines = "\n".join(f"{n}. {line.text}" for n, line in enumerate(memory, 1)) or "(none)"
        each = max(200, (limit - len(rules) - len(lines)) // len(attempts) - 100)
        talks = (f"-- {feedback(t)}\n{compact(t, each)}" for t, _ in attempts)
        messages = opening_of(rules, f"Memory:\n{lines}\n\n" + "\n\n".join(talks))
        try:
            return lab.ask(ROLE, call, messages, lambda text: read_json(text, SCHEMA), SCHEMA)
        except LLMError as error:
            lab.log(f"the memory stays as it is: {error}")
            return {"add": []}


def with_memory(base: AgentSpec, memory: Memory) -> AgentSpec:
    """The base agent with the memory in its prompt."""
    lines = [base.prompt, *(line.text for line in memory)]
    return under(base, "\n".join(filter(None, lines)), "memory")


def by_program(memory: Memory, attempts: Attempts, rng: random.Random) -> dict[str, Any]:
    """What the program in the writer's place answers: it counts a line as helpful where more than
    half of the attempts that it is about went well, and adds one about what is seen in failed
    attempts."""
    noticed = [(symptoms(as_text(t)), reward) for t, reward in attempts]
    counted: dict[str, list[int]] = {"helped": [], "harmed": []}
    for n, line in enumerate(memory, 1):
        rewards = [reward for there, reward in noticed if about(line.text) & there]
        good = sum(reward >= 1.0 for reward in rewards)
        if rewards:
            counted["helped" if 2 * good > len(rewards) else "harmed"].append(n)
    failed = [there for there, reward in noticed if reward < 1.0]
    return {"add": drawn(memory, failed, rng), **counted}


def edited(memory: Memory, answer: Mapping[str, Any]) -> Memory:
    """The memory after an answer (`SCHEMA`). Beyond `LINES` the (oldest) worst ones go."""
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
    while len(kept) > LINES:
        kept.remove(min(kept, key=lambda line: line.helped - line.harmed))
    return tuple(kept)


def about(line: str) -> frozenset[str]:
    """The symptoms that a line of the pool speaks of."""
    return frozenset(POOL.get(line, ())) - {ANY}


def drawn(memory: Memory, noticed: Sequence[frozenset[str]], rng: random.Random) -> list[str]:
    """A new line of the pool, drawn by how often its symptoms were noticed; none if never."""
    there = {line.text for line in memory}
    weights = {
        line: sum(len(about(line) & seen) for seen in noticed) for line in POOL if line not in there
    }
    return rng.choices([*weights], [*weights.values()]) if any(weights.values()) else []
