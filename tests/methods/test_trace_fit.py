"""The whole method with a scripted agent in the real embedded world, and its router."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from named import method
from trace_lab import BASE, THREE, MemoryLab, ScriptedTrainer, States

from trace_bench.core.types import AgentSpec, Purpose, to_json
from trace_bench.methods.trace import Trace
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.policies.routing.router import make_router

SMALL = {"synthetic_tasks": 40}
HIDDEN = ("requires", "shape", "kinds")


def fit(budget: int = 1280, habits: dict = THREE, **settings) -> tuple[AgentSpec, MemoryLab]:
    lab = MemoryLab(habits, budget, seed=7)
    agent = method("trace", **{**SMALL, **settings}).fit(BASE, lab.suite.tasks("train"), lab)
    return agent, lab


@pytest.fixture(scope="module")
def fitted() -> tuple[AgentSpec, MemoryLab]:
    return fit()


def test_finds_the_capabilities_that_the_agent_lacks(fitted) -> None:
    agent, lab = fitted
    assert {a.capability for a in agent.adapters} == set(THREE)
    report = lab.files["capabilities.json"]
    selected = {c["name"] for c in report["candidates"] if c["selected"]}
    assert selected == set(THREE)
    assert not any(c["selected"] for c in report["candidates"] if c["control"])
    assert {c["name"] for c in report["calibration"]} == set(THREE)
    for c in report["candidates"]:
        assert len(c["runs"]) == 10
    rows = report["labels"]
    assert [r["index"] for r in rows] == list(range(128)) and rows[0]["call"] == "analysis"
    assert any("recovers_from_errors" in text and "10/10" in text for text in lab.logged)


def test_every_rollout_is_charged_and_the_budget_is_used_up(fitted) -> None:
    _, lab = fitted
    spent = lab.spent()
    assert set(spent) == {Purpose.ANALYSIS, Purpose.CALIBRATION, Purpose.TRAINING}
    assert sum(spent.values()) == 1280 and lab.left == 0
    assert spent[Purpose.ANALYSIS] == 128
    shares = [j.rollouts for j in lab.trainer.jobs]
    assert max(shares) - min(shares) <= len(shares)  # equal parts
    report = lab.files["capabilities.json"]
    assert [t["spent"] for t in report["training"]] == shares
    assert report["outcome"]["unspent"] == 0


def test_the_analysis_sees_training_tasks_only(fitted) -> None:
    _, lab = fitted
    name, purpose, played = lab.calls[0]
    assert (name, purpose) == ("analysis", Purpose.ANALYSIS)
    train = [t.id for t in lab.suite.tasks("train")]
    assert Counter(played) == Counter(train * 2)
    for name, _, tasks in lab.calls[1:]:
        assert all("/synthetic/" in t for t in tasks), name


def test_training_tasks_hold_contrast_cases_and_none_of_calibration(fitted) -> None:
    _, lab = fitted
    calibrated = {t for call, _, ts in lab.calls if call.startswith("calibration") for t in ts}
    for job in lab.trainer.jobs:
        assert job.agent == BASE
        assert sum(t.data["contrast"] for t in job.tasks) == round(0.2 * len(job.tasks))
        assert calibrated.isdisjoint(t.id for t in job.tasks)


def test_checkpoints_grow_by_one_adapter(fitted) -> None:
    agent, lab = fitted
    assert [len(a.adapters) for a in lab.checkpoints] == [1, 2, 3]
    assert lab.checkpoints[-1] == agent
    assert len({a.version for a in lab.checkpoints}) == 3
    for a in lab.checkpoints:
        make_router(a, States(lab))  # knows all its adapters


def test_a_repeated_run_gives_the_same_also_without_hidden_notes(fitted) -> None:
    agent, lab = fitted
    bare = [
        replace(t, data={k: v for k, v in t.data.items() if k not in HIDDEN})
        for t in lab.suite.tasks("train")
    ]
    other = MemoryLab(THREE, 1280, seed=7)
    again = Trace(TraceSettings(**SMALL)).fit(BASE, bare, other)  # type: ignore[arg-type]
    assert to_json(again) == to_json(agent)
    assert other.calls == lab.calls and other.files == lab.files


def test_a_perfect_agent_is_returned_as_it_is() -> None:
    agent, lab = fit(habits={})
    assert agent is BASE
    report = lab.files["capabilities.json"]
    assert report["outcome"]["trained"] == [] and report["outcome"]["unspent"] == 1280 - 128
    assert report["candidates"] and not any(c["selected"] for c in report["candidates"])
    assert any("thresholds:" in text for text in lab.logged)  # the table
    assert any("no capability above the thresholds" in text for text in lab.logged)
    assert lab.checkpoints == []


def test_joint_trains_one_adapter_for_all_tasks(fitted) -> None:
    agent, lab = fit(adapters="joint")
    assert [a.capability for a in agent.adapters] == ["joint"] and agent.router is None
    (job,) = lab.trainer.jobs
    first = [t.id.split("/")[-2] for t in job.tasks[: len(THREE)]]
    assert set(first) == set(THREE)  # interleaved
    assert lab.left == 0
    assert job.rollouts == sum(j.rollouts for j in fitted[1].trainer.jobs)


def test_what_a_job_leaves_goes_to_the_next() -> None:
    lab = MemoryLab(THREE, 1280, seed=7, trainer=ScriptedTrainer(leave=10))
    Trace(TraceSettings(**SMALL)).fit(BASE, lab.suite.tasks("train"), lab)  # type: ignore[arg-type]
    shares = [j.rollouts for j in lab.trainer.jobs]
    assert shares[0] < shares[1] < shares[2]
    assert lab.files["capabilities.json"]["outcome"]["unspent"] == 10
