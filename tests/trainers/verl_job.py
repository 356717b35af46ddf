"""A training job by the real verl on this machine's CPU, and what is looked at afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.protocols import TrainingJob
from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Task
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.runner.build import foreign_suites, make_suite, model_path, verl_settings
from trace_bench.runner.lab import RunLab
from trace_bench.runner.progress import Progress
from trace_bench.runner.verl import verl_facts
from trace_bench.settings.compose import compose
from trace_bench.settings.schema import Settings
from trace_bench.trackers.jsonl import make_tracker
from trace_bench.trainers.verl.spec import JobSpec
from trace_bench.trainers.verl.trainer import VerlTrainer

CPU = [
    "method=grpo",
    "env=toolsandbox",
    "trainer=verl",
    "trainer.device=cpu",
]


def settings(*more: str) -> Settings:
    return compose([*CPU, *more])


def base(chosen: Settings) -> AgentSpec:
    return AgentSpec(model=model_path(chosen.model))


def make_lab(folder: Path, chosen: Settings, validation: Sequence[Task] = ()) -> RunLab:
    """The real lab and trainer. The lab's own policy plays nothing: verl's workers do."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = replace(verl_facts(chosen, "tests"), validation=lambda lab: validation)
    return RunLab(
        folder,
        seed=chosen.seed,
        budget=chosen.budget,
        suite=make_suite(chosen),
        settings={},
        trainer=VerlTrainer(verl_settings(chosen), facts),
        policy=IdlePolicy(),
        tracker=make_tracker(chosen.tracker, folder, {}),
        progress=Progress(chosen.budget),
        max_turns=chosen.policy.max_turns,
        max_tokens=chosen.policy.max_tokens,
        foreign=foreign_suites(chosen, "tests"),
    )


def job(name: str, chosen: Settings, tasks: Sequence[Task]) -> TrainingJob:
    return TrainingJob(name=name, agent=base(chosen), tasks=tasks, rollouts=chosen.budget, seed=7)


def once_each(folder: Path) -> Counter[str]:
    """Ledger lines by call. Every episode is there once, and has its trajectory."""
    ledger = [(x["call"], x["index"]) for x in read_lines(folder / "ledger.jsonl")]
    assert len(set(ledger)) == len(ledger)
    trajectories = {(x["call"], x["index"]) for x in read_lines(folder / "trajectories.jsonl")}
    assert trajectories == set(ledger)
    return Counter(call for call, _ in ledger)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [m for m in read_lines(folder / "metrics.jsonl") if m.get("phase") == "training"]


def spec(**changes: Any) -> JobSpec:
    """A small job of nowhere."""
    plain: dict[str, Any] = {
        "name": "grpo",
        "run": "r",
        "seed": 5,
        "reward": "similarity",
        "model": "nowhere",
        "agent": {"model": "nowhere", "adapters": ()},
        "trainer": {},
        "settings": {},
        "suites": "nowhere:nothing",
        "iterations": 3,
        "groups": 4,
        "group_size": 8,
        "decay": "linear",
        "context": 512,
        "deadline": 60.0,
        "max_turns": 20,
        "max_tokens": 24,
    }
    return JobSpec(**{**plain, **changes})
