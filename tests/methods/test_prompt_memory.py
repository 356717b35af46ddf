"""A memory in the prompt, written by the program or a model, for an agent that listens to some
advice in the real embedded world."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from named import method
from test_gepa import ADVICE, HABITS, ListeningLab
from trace_lab import BASE

from trace_bench.core.errors import UserError
from trace_bench.core.types import AgentSpec, Message, Purpose
from trace_bench.llm.client import LLMError, NoUsableAnswer
from trace_bench.methods.memory import Lesson, about, drawn, edited
from trace_bench.methods.reflectors import CONDITION, ERROR, PARTS, POOL


def fit(lab: ListeningLab, **settings: Any) -> AgentSpec:
    agent: AgentSpec = method("ace", **settings).fit(BASE, lab.suite.tasks("train"), lab)
    return agent


def test_the_program_finds_advice_that_helps() -> None:
    lab = ListeningLab(HABITS, 960, seed=0)
    agent = fit(lab)
    lines = agent.prompt.splitlines()
    assert agent.adapters == () and agent.version.startswith("memory-") and len(lines) <= 6
    assert {purpose for _, purpose, _ in lab.calls} == {Purpose.PROMPT}
    rounds = lab.files["memory.json"]
    assert rounds[-1]["memory"] == lines and len(rounds) == 960 // len(lab.calls[0][2])
    assert all(0 < r["reward"] <= 1 for r in rounds)
    useful = [{ADVICE.get(line) for line in r["memory"]} & set(HABITS) for r in rounds]
    assert sum(map(bool, useful)) > len(rounds) / 2


class WritingLab(ListeningLab):
    """A model writes the memory."""

    def __init__(self, answers: list[Any], budget: int) -> None:
        super().__init__(HABITS, budget, seed=0)
        self.answers, self.asked = answers, list[tuple[str, list[Message]]]()

    def prompt_limit(self, role: str) -> int | None:
        return 6000

    def ask(self, role: str, call: str, messages: Any, read: Any, schema: Any = None) -> Any:
        self.asked.append((call, messages))
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return read(f"```json\n{json.dumps(answer)}\n```")


def test_a_playbook_is_asked_for_once_a_round() -> None:
    lab = WritingLab([{"add": ["A.", "B."]}, {"add": ["C."], "harmed": [1], "helped": [2]}], 64)
    agent = fit(lab)
    assert [call for call, _ in lab.asked] == ["0000/00", "0001/00"]
    assert agent.prompt.splitlines() == ["A.", "B.", "C."]


def test_an_answer_that_cannot_be_used_leaves_the_memory_and_an_outage_stops() -> None:
    lab = WritingLab([{"add": ["A."]}, NoUsableAnswer("no JSON")], 64)
    assert fit(lab).prompt == "A."
    assert fit(WritingLab([LLMError("too long", 400)], 64)).prompt == ""
    with pytest.raises(UserError, match="does not answer"):
        fit(WritingLab([UserError("the reflector does not answer")], 64))


def test_rounds_are_whole_where_there_are_few_tasks() -> None:
    lab = ListeningLab(HABITS, 320, seed=0)
    agent = method("ace").fit(BASE, lab.suite.tasks("train")[:10], lab)
    assert agent.prompt and [len(tasks) for *_, tasks in lab.calls] == [32] * 10


def test_edits() -> None:
    others = map(Lesson, ("C.", "D.", "E.", "F."))
    memory = (Lesson("A.", helped=1), Lesson("B.", harmed=1), *others)
    texts = [lesson.text for lesson in edited(memory, {"add": ["G.", "G.", " A. "]})]
    assert texts == ["A.", "C.", "D.", "E.", "F.", "G."]
    assert edited(memory, {"add": [], "remove": [1, 9]}) == memory[1:]
    assert edited(memory, {"add": [], "helped": [2, 2]})[1] == Lesson("B.", 2, 1)


def test_lines_are_drawn_for_what_was_noticed() -> None:
    rng = random.Random(0)
    lines = {line for _ in range(50) for line in drawn((), [frozenset({PARTS})], rng)}
    assert lines == {line for line, signs in POOL.items() if PARTS in signs}
    assert drawn((), [frozenset({"unknown"})], rng) == [] == drawn((), [], rng)
    assert about("Be polite.") == frozenset() and ERROR in about("Try every tool twice.")
    assert CONDITION not in about("My own line.")
