"""GEPA with a scripted agent in the real embedded world that listens to some advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from trace_lab import BASE, MemoryLab

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.types import AgentSpec, Milestone, Purpose, Score, StopReason, Trajectory
from trace_bench.methods import reflectors as r
from trace_bench.methods.gepa import Gepa, GepaAdapter, GepaSettings
from trace_bench.methods.looking.capabilities import VOCABULARY
from trace_bench.methods.looking.evidence import as_text, feedback

ADVICE = {c.advice: c.name for c in VOCABULARY if c.advice}
HABITS = {"recovers_from_errors": 0.9, "completes_all_parts": 0.9}


class ListeningLab(MemoryLab):
    """Its agent rarely lacks a capability that a line of its prompt speaks of."""

    def rollouts(self, call: str, agent: AgentSpec, tasks: Any, **how: Any) -> list[Trajectory]:
        told = {ADVICE[line] for line in agent.prompt.splitlines() if line in ADVICE}
        self.habits = {name: 0.05 if name in told else p for name, p in HABITS.items()}
        return super().rollouts(call, agent, tasks, **how)


def fit(budget: int = 960, seed: int = 0, **settings: Any) -> tuple[AgentSpec, ListeningLab]:
    lab = ListeningLab(HABITS, budget, seed=seed)
    return Gepa(GepaSettings(**settings)).fit(BASE, lab.suite.tasks("train"), lab), lab  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fitted() -> tuple[AgentSpec, ListeningLab]:
    return fit()


def test_it_finds_advice_that_helps(fitted) -> None:
    agent, lab = fitted
    assert {ADVICE.get(line) for line in agent.prompt.splitlines()} & set(HABITS)
    assert agent.adapters == () and agent.version.startswith("gepa-")
    record = lab.files["gepa.json"]
    first, best = record["candidates"][0], record["best"]
    assert first["prompt"] == [] and best["validation"] > first["validation"] + 0.05
    assert best["prompt"] == agent.prompt.splitlines() and lab.checkpoints[-1] == agent


def test_every_episode_is_charged_and_validation_is_kept_apart(fitted) -> None:
    _, lab = fitted
    of: dict[Purpose, set[str]] = {Purpose.PROMPT: set(), Purpose.VALIDATION: set()}
    spent = 0
    for _, purpose, tasks in lab.calls:
        of[purpose] |= set(tasks)
        spent += len(tasks)
    assert spent == 960 - lab.left and lab.left == lab.files["gepa.json"]["unspent"]
    assert len(of[Purpose.VALIDATION]) == 24 and len(of[Purpose.PROMPT]) == 40
    assert not of[Purpose.VALIDATION] & of[Purpose.PROMPT]
    assert all("/train/" in task for task in of[Purpose.PROMPT] | of[Purpose.VALIDATION])


def test_a_repeated_run_makes_the_same_calls(fitted) -> None:
    agent, lab = fitted
    again, other = fit()
    assert again == agent
    assert other.calls == lab.calls and other.files == lab.files


@pytest.mark.parametrize(
    ("failure", "calls", "raises", "words"),
    [
        (ConnectionError("no answer"), 4, TraceBenchError,
         "5 proposals failed .* ConnectionError: no answer"),
        # The rollouts of further minibatches would be spent for nothing.
        (UserError("the reflector does not answer"), 0, UserError, "does not answer"),
    ],
    ids=["a fault", "an outage"],
)  # fmt: skip
def test_failing_proposals_end_the_method(
    failure: Exception, calls: int, raises: type[Exception], words: str
) -> None:
    def broken(prompt: str, records: Sequence[Mapping[str, Any]]) -> str:
        raise failure

    lab = ListeningLab(HABITS, 640)
    adapter = GepaAdapter(lab, BASE, GepaSettings(), broken, frozenset())  # type: ignore[arg-type]
    shown: dict[str, list] = {"guidance": []}
    for _ in range(calls):
        same = adapter.propose_new_texts({"guidance": "x"}, shown, ["guidance"])
        assert same == {"guidance": "x"}
    with pytest.raises(raises, match=words):
        adapter.propose_new_texts({"guidance": "x"}, shown, ["guidance"])
    assert len(lab.logged) == calls and adapter.fatal is not None


def test_the_reflector_is_shown_conversations_and_scores_only() -> None:
    lab = ListeningLab(HABITS, 640)
    task = lab.suite.tasks("train")[0]
    (played,) = lab.rollouts("x", BASE, [task], purpose=Purpose.PROMPT)
    text = as_text(played)
    assert text.startswith("user: ") and "requires" not in text
    assert played.score is not None
    wanted = f"score {played.score.similarity:.2f} of 1, "
    assert feedback(played).startswith(wanted) and feedback(played).endswith("milestones reached")
    adapter = GepaAdapter(lab, BASE, GepaSettings(), str, frozenset())  # type: ignore[arg-type]
    batch = adapter.evaluate([task], {"guidance": ""}, capture_traces=True)
    (record,) = adapter.make_reflective_dataset({}, batch, ["guidance"])["guidance"]
    assert set(record) == {"Conversation", "Feedback", "Score"}


TALKS = [
    ("user: call Bo\nagent: Sorry.", {r.NO_CALL, r.NO_QUESTION}, {r.ERROR, r.PARTS, r.VALUES}),
    (
        "user: do a and b\ncall: a {}\nresult: ValueError: no\nagent: Sorry.",
        {r.ERROR, r.GAVE_UP, r.PARTS},
        {r.NO_CALL},
    ),
    (
        'user: if x, text 5\ncall: s {}\nresult: [{"a": 1}, {"a": 2}]\nagent: Which one?',
        {r.SEVERAL, r.CONDITION, r.VALUES},
        {r.NO_QUESTION, r.ERROR},
    ),
]


@pytest.mark.parametrize(("text", "there", "absent"), TALKS)
def test_symptoms(text: str, there: set[str], absent: set[str]) -> None:
    seen = r.symptoms(text)
    assert there <= seen and not absent & seen


def test_proposals_differ_stay_short_and_come_from_the_pool() -> None:
    reflector = r.ProgramReflector(lines=3, seed=1)
    prompt, seen = "", set()
    for n in range(40):
        record = {"Conversation": f"user: text {n}", "Score": 0.0}
        changed = reflector(prompt, [record])
        assert changed != prompt and changed == reflector(prompt, [record])
        lines = changed.splitlines()
        assert len(lines) == len(set(lines)) <= 3
        assert set(lines) <= set(r.POOL)
        seen |= set(lines)
        prompt = changed
    assert len(seen) > 12


def scored(*milestones: Milestone, minefields: tuple[Milestone, ...] = ()) -> Trajectory:
    score = Score(0.5, False, {"milestone_similarity": 0.5}, milestones, minefields)
    return Trajectory("t", 0, "base", (), (), (), StopReason.DONE, score)


def test_the_feedback_counts_milestones_and_names_minefields() -> None:
    """As the official ToolSandbox scores: float32 similarities, details of its own."""
    off = Milestone("SETTING snapshot: wifi=False", 1.0, True, 3)
    told = Milestone("SANDBOX snapshot: content='Off'", 0.3333333432674408, False, 4, "Off")
    mine = Milestone("SANDBOX snapshot: content='search_lat_lon'", 0.25, True, 4)
    assert feedback(scored(off, told)) == "score 0.50 of 1, 1 of 2 milestones reached"
    assert feedback(scored()) == "score 0.50 of 1"
    assert feedback(scored(off, minefields=(mine,))) == (
        "score 0.50 of 1, 1 of 1 milestones reached, something was done that must not be done"
    )
    avoided = replace(mine, similarity=0.0, hit=False, place=None)
    assert "must not" not in feedback(scored(off, minefields=(avoided,)))
