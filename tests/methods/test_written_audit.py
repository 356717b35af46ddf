"""Environments that pass every check and turn out otherwise later: real workers, real replays."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
from playing import FunctionPolicy, play
from test_written import load
from toy import ToyEnv, ToySuite
from trace_lab import BASE, MemoryLab
from writer import BAD, GOOD, Writer, block, counting, paying_for

from trace_bench.core.chat import answer_call, text_message
from trace_bench.core.protocols import Hear, TurnRequest
from trace_bench.core.types import (
    AgentSpec,
    Message,
    Purpose,
    Score,
    Step,
    StopReason,
    Task,
    Tool,
)
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.llm.client import Endpoint
from trace_bench.llm.roles import Role, Roles
from trace_bench.methods.looking.capabilities import Capability
from trace_bench.methods.making import seeded
from trace_bench.methods.trace import Trace
from trace_bench.methods.trace.evidence import TrainingEvidence
from trace_bench.methods.trace.experts import composed, train_experts
from trace_bench.methods.trace.generate import audit
from trace_bench.methods.trace.generate.audit import Accepted, Episode, of_rollouts
from trace_bench.methods.trace.generate.checks import Leaks
from trace_bench.methods.trace.generate.generation import Generation
from trace_bench.methods.trace.settings import Budget, SynthesisSettings, TraceSettings
from trace_bench.methods.trace.tasks import TrainingTasks
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.routing.linear import Linear
from trace_bench.policies.routing.route import Expert
from trace_bench.rehearse.scripted import serve
from trace_bench.runner.lab import RunLab
from trace_bench.runner.ledger import Ledger
from trace_bench.runner.progress import Progress
from trace_bench.sandbox.engine import Sandbox
from trace_bench.settings.schema import RoleSettings
from trace_bench.trackers.jsonl import Metrics, Silent

NOTHING = Leaks(frozenset(), frozenset())
PATIENT = Sandbox("process", allow_untrusted=True, deadline=20.0)


def tools() -> dict[str, Tool]:
    """The tools of the phone world's first training tasks: the module offers two of them."""
    world = EmbeddedSuite()
    first = world.tasks("train")[:24]
    return {t["function"]["name"]: t for task in first for t in world.make().reset(task).tools}


@contextmanager
def workers(code: str, count: int) -> Iterator[list[Any]]:
    """The module so many times, each in a worker of its own."""
    suites = [load("a@0", code, tools(), PATIENT) for _ in range(count)]
    try:
        yield suites
    finally:
        for suite in suites:
            suite.close()


def saying(words: str) -> FunctionPolicy:
    def reply(request: TurnRequest) -> Message:
        return text_message(words)

    return FunctionPolicy(reply)


def talked(suite: Any, tasks: Sequence[Task], words: str) -> list[Episode]:
    """Real rollouts of an agent that says these words."""
    suites = Suites(suite, {tasks[0].env: suite})
    played = play(saying(words), suites, AgentSpec("any"), tasks, range(len(tasks)))
    return of_rollouts(tasks, played)


def accepted(suite: Any, calibration: Sequence[Episode] = ()) -> Accepted:
    tasks = tuple(seeded(suite, 7919 * n) for n in range(8))
    return Accepted("x", "a@0", "", tasks, tuple(calibration), audit.acting(suite, tasks))


AFTER = {
    "honest": (GOOD, 40, "Hello.", None),
    "counts": (counting(20), 40, "Hello.", "a@0/[0-9]+ is rewarded otherwise in another process"),
    "counts, seen in its worker alone": (counting(20), 16, "Hello.", "that only talks earns"),
    "a word that it waits for": (paying_for("Sesame"), 40, "Sesame", "with 1.00 more of it from"),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_training_shows(name: str) -> None:
    code, episodes, words, reason = AFTER[name]
    with workers(code, 2) as (used, fresh):
        made = accepted(used)
        heard = talked(used, (made.tasks * 5)[:episodes], words)
        assert len(heard) == episodes
        said = audit.after_training(made, used, fresh, heard)
    assert (said is None) == (reason is None), said
    assert re.search(reason or "", said or ""), said


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        (GOOD, "Hello.", None),
        (counting(20), "Hello.", "rewarded otherwise in another process"),
        (paying_for("Sesame"), "Sesame", "without any earned the agent 1.00"),
    ],
    ids=["honest", "counts", "a word that it waits for"],
)
def test_what_calibration_shows(code: str, words: str, reason: str | None) -> None:
    with workers(code, 2) as (used, fresh):
        made = accepted(used)
        made = replace(made, calibration=tuple(talked(used, made.tasks * 4, words)))
        said = audit.before_training(made, fresh)
    assert bool(said) == (reason is not None), said
    assert re.search(reason or "", " ".join(said)), said


def test_floors_are_measured_on_the_tasks_of_training() -> None:
    """A module that pays for talk in these tasks alone."""
    known = [7919 * n for n in range(8)]
    late = BAD["late"].replace("task.seed >= 16", f"task.seed in {known}")
    with workers(late, 1) as (fresh,):
        (said,) = audit.before_training(accepted(fresh), fresh)
    assert "only talks earns 1.00" in said


class OneCall(ToyEnv):
    """Pays for exactly one call, whatever it is."""

    def step(self, action: Message) -> Step:
        if action.get("tool_calls"):
            self.calls = getattr(self, "calls", 0) + 1
            return Step((answer_call(action["tool_calls"][0], "ok"),))
        paid = getattr(self, "calls", 0) == 1
        return Step((), done=True, score=Score(float(paid), paid), stop=StopReason.DONE)


def test_one_call_at_random_is_a_floor_as_well_as_four() -> None:
    suite = ToySuite()
    suite.make = lambda: OneCall(6)  # type: ignore[method-assign]
    floors = audit.measure(suite, suite.tasks("train")[:4])
    assert [f.earned for f in floors] == [0.0, 0.0, 0.0, 1.0]
    assert "calls one tool at random earns 1.00" in audit.too_high(floors)[0]


@pytest.mark.parametrize("names", [(), ("one",), ("two",), ("one", "two")])
def test_an_adapter_that_is_dropped_is_in_no_agent(names: tuple[str, ...]) -> None:
    lab = MemoryLab({}, budget=40)
    place, tasks, route = cast(Any, lab), lab.suite.tasks("train"), Linear()
    by_name = {"one": tuple(tasks[:4]), "two": tuple(tasks[4:8])}
    training = TrainingTasks(by_name, keeps=lambda t: t in [by_name[name] for name in names])

    def compose(experts: Sequence[Expert]) -> AgentSpec:
        assert experts, "an agent of no adapters is the base agent"
        return composed(BASE, route, TrainingEvidence(place, BASE), experts)

    budget = Budget(TraceSettings(route=route), 40)
    experts = train_experts(BASE, [], training, place, budget, compose, lambda **parts: None)
    assert [expert.name for expert in experts] == list(names)
    assert lab.left == 0, "what it spent stays spent"
    last = [a.name for a in lab.checkpoints[-1].adapters]
    assert last == [f"{name}-v1" for name in names]


SMALL = SynthesisSettings(
    synthetic_tasks=4, calibration_groups=2, calibration_group_size=4, generator_rounds=1,
    band_low=0, band_high=1, band_std=0, band_all_success=1, band_all_zero=1, band_constant=1,
)  # fmt: skip


def test_a_counter_beyond_the_checks_is_dropped_after_training(tmp_path: Path) -> None:
    """The generator is asked over HTTP, its module is accepted, trained on, and then found out."""
    writer = Writer({"sends_messages": [block(counting(300))]})
    with serve(writer) as server:
        role = Role(
            Endpoint((server.url,)),
            RoleSettings(
                model="generator",
                temperature=1.0,
                max_tokens=4000,
                seed=0,
                context=100_000,
                tries=1,
            ),
        )
        lab = RunLab(
            tmp_path,
            seed=0,
            ledger=Ledger(tmp_path / "ledger.jsonl", 500),
            player=Player(saying("Hello."), Suites(ToySuite())),
            trainer=None,  # type: ignore[arg-type]
            tracker=Metrics(tmp_path / "metrics.jsonl", Silent(), print),
            progress=Progress(500, stream=io.StringIO()),
            roles=Roles({"generator": role}, tmp_path / "llm.jsonl"),
            make_suite=lambda source: load(
                source.name, source.text, source.given["TOOLS"], PATIENT
            ),
        )
        generation = Generation(lab, BASE, SMALL, tools(), NOTHING, 8)
        tasks = generation.make(Capability("sends_messages", "Sends."), ())
        assert tasks is not None and generation.dropped == {}
        with lab.listening(generation.hear):
            lab.rollouts("train", BASE, tasks * 100, purpose=Purpose.TRAINING)
        reason = generation.fault(tasks)
        lab.close()
    assert reason is not None and "is rewarded otherwise in another process" in reason
    assert generation.dropped == {"sends_messages": f"after training: {reason}"}
    assert any(task.id in reason for task in tasks)
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 8 + 400


class TrainingOnly(EmbeddedSuite):
    """The phone world without held-out tasks."""

    def splits(self) -> Sequence[str]:
        return ("train",)


class WritingLab(MemoryLab):
    """One module for each capability, in real workers; the agent says `Hello.` in their tasks, and
    `Sesame` once it is trained."""

    def __init__(self, modules: Mapping[str, str], budget: int) -> None:
        super().__init__(dict.fromkeys(modules, 0.7), budget, 7, TrainingOnly())
        self.modules, self.hearing = modules, list[Hear]()
        self.suites = Suites(self.suite)

    def prompt_limit(self, role: str) -> int | None:
        return 200_000 if role == "generator" else None

    def ask(
        self, role: str, call: str, messages: Sequence[Message], read: Any, schema: Any = None
    ) -> Any:
        return read(block(self.modules[call.partition("/")[0]]))

    def generated_suite(self, name: str, code: str, given: Mapping[str, Any]) -> Any:
        suite = load(name, code, given["TOOLS"], PATIENT)
        self.suites.add(f"generated/{name}", suite)
        return suite

    def drop_suite(self, name: str) -> None:
        self.suites.drop(f"generated/{name}")

    def suite_of(self, task: Task) -> Any:
        return self.suites.of(task)

    def write_text(self, name: str, text: str) -> None:
        self.files[name] = text

    @contextmanager
    def listening(self, hear: Hear) -> Iterator[None]:
        self.hearing.append(hear)
        yield
        self.hearing.remove(hear)

    def rollouts(self, call: str, agent: AgentSpec, tasks: Sequence[Task], **how: Any) -> Any:
        played = super().rollouts(call, agent, tasks, **how) if call == "analysis" else []
        if not played:
            self.left -= len(tasks)
            words = "Sesame" if how["purpose"] is Purpose.TRAINING else "Hello."
            played = play(saying(words), self.suites, agent, tasks, range(len(tasks)))
        for hear in self.hearing:
            hear(tasks, played)
        return played


def test_a_capability_that_is_dropped_after_training_is_reported_and_listed() -> None:
    waits, good = "recovers_from_errors", "completes_all_parts"
    lab = WritingLab({waits: paying_for("Sesame"), good: GOOD}, 420)
    agent = Trace(TraceSettings(**asdict(SMALL))).fit(BASE, lab.suite.tasks("train"), lab)  # type: ignore[arg-type]
    lab.suites.close()
    assert [a.capability for a in agent.adapters] == [good]
    report = lab.files["capabilities.json"]
    assert report["outcome"]["trained"] == [good] == [t["name"] for t in report["training"]]
    ((name, reason),) = [(d["name"], d["reason"]) for d in report["dropped"]]
    assert name == waits and reason.startswith("after training: the reward was 0.00 in calibration")
    assert f"{waits} is dropped: {reason}" in lab.logged
    assert lab.left == 0 and len(lab.trainer.jobs) == 2


class ForgettingLab(WritingLab):
    """Once a capability has been trained, its module is not what it was."""

    def __init__(self, modules: Mapping[str, str], budget: int, forgotten: str, then: str) -> None:
        super().__init__(modules, budget)
        self.forgotten, self.then = forgotten, then

    def generated_suite(self, name: str, code: str, given: Mapping[str, Any]) -> Any:
        if self.hearing and name.startswith(self.forgotten):
            code += self.then
        return super().generated_suite(name, code, given)


@pytest.mark.parametrize(
    "then",
    [
        "\nraise RuntimeError('not today')",
        "\nraise SystemExit(3)",
        "\ndef make_task(seed):\n    raise RuntimeError('no more tasks')\nEnv = make_task",
    ],
    ids=["raises", "exits", "makes nothing"],
)
def test_a_module_that_no_longer_works_costs_its_capability(then: str) -> None:
    bad, good = "recovers_from_errors", "completes_all_parts"
    lab = ForgettingLab({bad: GOOD, good: GOOD}, 420, bad, then)
    agent = Trace(TraceSettings(**asdict(SMALL))).fit(BASE, lab.suite.tasks("train"), lab)  # type: ignore[arg-type]
    lab.suites.close()
    assert [a.capability for a in agent.adapters] == [good]
    ((name, reason),) = [
        (d["name"], d["reason"]) for d in lab.files["capabilities.json"]["dropped"]
    ]
    assert name == bad and reason.startswith("after training: the module ")
    assert f"{bad} is dropped: {reason}" in lab.logged
