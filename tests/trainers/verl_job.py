"""A training job by the real verl on this machine's CPU, and what is looked at afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from labs import lab_in

from trace_bench.core.checked import build
from trace_bench.core.protocols import RunContext, TrainingJob
from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Stored, Task, Trajectory
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.runner.build import MAKER, clean_up, generated_suites, make_suite, run_context
from trace_bench.runner.lab import RunLab
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import model_path, parts_of
from trace_bench.settings.schema import Settings
from trace_bench.trainers.course import Course
from trace_bench.trainers.local import TrainerSettings
from trace_bench.trainers.tree import stretches
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.spec import JobSpec
from trace_bench.trainers.verl.trainer import VerlTrainer

CPU = ["method=grpo", "env=toolsandbox", "trainer=verl", "trainer.device=cpu"]


def settings(*more: str) -> Settings:
    return compose([*CPU, *more])


def base(chosen: Settings) -> AgentSpec:
    return AgentSpec(model=model_path(chosen, parts_of(chosen)))


def facts(chosen: Settings, **more: Any) -> RunContext:
    """What the trainer takes over from a run with these settings."""
    more |= {"fingerprint": "tests", "elsewhere": MAKER, "clean_up": lambda: clean_up(chosen)}
    return run_context(chosen, parts_of(chosen), **more)


def suite_of(chosen: Settings) -> Any:
    return make_suite(chosen, parts_of(chosen), facts(chosen))


def verl_settings(chosen: Settings) -> VerlSettings:
    return build(VerlSettings, parts_of(chosen)["trainer"].options, "trainer")


def make_lab(folder: Path, chosen: Settings) -> RunLab:
    """The real lab and trainer. The lab's own policy plays nothing: verl's workers do."""
    folder.mkdir(parents=True, exist_ok=True)
    how = chosen.policy
    player = Player(IdlePolicy(), Suites(suite_of(chosen)), how.max_turns, how.max_tokens)
    trainer = VerlTrainer(verl_settings(chosen), facts(chosen))
    making = generated_suites(chosen, facts(chosen))
    return lab_in(folder, chosen.budget, player, trainer, seed=chosen.seed, make_suite=making)


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


def played(folder: Path, call: str) -> list[Trajectory]:
    """The episodes of a call, in their order."""
    lines = [x for x in read_lines(folder / "trajectories.jsonl", Stored) if x.call == call]
    return [line.trajectory for line in sorted(lines, key=lambda line: line.index)]


def local_steps(
    chosen: Settings, job: TrainingJob, iterations: Sequence[Sequence[Trajectory]]
) -> tuple[list[Any], Any]:
    """The local trainer's steps on the same episodes, all of which count in the mean, one iteration
    after the other, and the layers of its adapter after the last."""
    from trace_bench.trainers.job import credit, earned
    from trace_bench.trainers.local import LocalTrainer
    from trace_bench.trainers.model import State, restore
    from trace_bench.trainers.update import update

    verl = verl_settings(chosen)
    same = {f.name: getattr(verl, f.name) for f in fields(TrainerSettings) if hasattr(verl, f.name)}
    settings = TrainerSettings(**same)
    learner = LocalTrainer(settings, RunContext(threads=1)).learner(job.agent.model)
    optimizer = restore(State("x"), learner, settings, job.seed)
    steps, course = list[Any](), Course(job.tasks, settings, job.seed, job.rollouts, job.name)
    for played in iterations:
        course.begin()
        optimizer.param_groups[0]["lr"] = course.rate()
        course.spent += len(played)
        advantages = credit(played, earned(played, job), job, settings)
        advantages = replace(advantages, trained=advantages.trained | True)
        rows = [stretches(trajectory) for trajectory in played]
        steps.append(update(learner, optimizer, rows, advantages, settings, 0))
    return steps, learner.layers


def spec(**changes: Any) -> JobSpec:
    """A small job of nowhere."""
    names = {"name": "grpo", "run": "r", "reward": "similarity", "suites": "nowhere:nothing"}
    sizes = {"seed": 5, "iterations": 3, "groups": 4, "context": 512, "max_turns": 20}
    parts = {"agent": AgentSpec("nowhere"), "trainer": VerlSettings(device="cpu"), "settings": {}}
    plain: dict[str, Any] = {**names, **sizes, **parts, "max_tokens": 24}
    return JobSpec(**{**plain, **changes})
