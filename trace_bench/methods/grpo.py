"""Methods that are one training with the whole budget and give one adapter: on the target's own
training tasks, with the score as the reward or with checklists, or on synthetic tasks. And no
learning at all: `Base`.

`Untargeted` is the paper's baseline from Agent World Model: GRPO on synthetic environments that no
analysis chose, each that the suite's generator can make with the same share of the tasks. Against
TRACE it tells what targeting brings, against GRPO what the target's own tasks bring.

CM2 (arXiv 2602.12268) trains on recorded dialogues with checklist rewards: the training tasks are
those of env=recorded; the held-out tasks can be the real suite's, with its own score
(`evaluation.split=real_test`). docs/checklists.md says where the settings differ from the paper's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trace_bench.checklists.rewards import Assignment
from trace_bench.core.protocols import (
    Lab,
    Method,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
    Suite,
    Trainer,
    TrainingJob,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.making import REWARD, Mix, TaskSettings, draw, interleave


class Base(Method):
    """The unchanged base model, with which every other method is compared. Spends no rollouts."""

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        return base

    def plan(self, run: PlannedRun) -> MethodPlan:
        return MethodPlan(learns=False)


@dataclass(frozen=True)
class RlSettings:
    """`method.*` of `method=rl`."""

    reward: Literal["similarity", "success", "drawn"] = "similarity"
    """Which number of the score is the reward; drawn: a random one for each rollout, which shows
    what training gains without learning the task (method=placebo)."""


class Rl(Method):
    """Reinforcement learning on the target's own training tasks by `trainer.algorithm`: one LoRA
    adapter, the whole budget, used for every task."""

    adapter = "rl"

    def __init__(self, settings: RlSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        return train_once(self.adapter, base, tasks, lab, reward=self.settings.reward)

    def plan(self, run: PlannedRun) -> MethodPlan:
        return one_training(run, self.adapter)


class Grpo(Rl):
    """method=rl by its default algorithm, GRPO, but for the names of its row and its adapter."""

    adapter = "grpo"


def train_once(
    name: str,
    base: AgentSpec,
    tasks: Sequence[Task],
    lab: Lab,
    *,
    reward: str = "similarity",
    assignment: Mapping[str, Any] | None = None,
) -> AgentSpec:
    """The base agent with the adapter `name`, from one training job with all that is left."""
    rollouts, seed = lab.budget_left(), stable_seed(lab.seed, name, "train")
    job = TrainingJob(name, base, tasks, rollouts, seed, reward, assignment)
    return lab.trainer.train(job, lab)


def one_training(run: PlannedRun, name: str) -> MethodPlan:
    """The plan of a method that is one training job with the whole budget. UserError when that
    does not pay for an iteration. What the trainer cannot use of the budget stays unspent."""
    phase = Phase("training", run.budget, most=True, trains=True)
    caveat = run.trainer.plan_training(run.budget, name, run.points)
    return MethodPlan(phases=(phase,), adapters=1, trains=True, caveat=caveat)


CHECKLISTS = Need(
    "env", Suite.checklist, "docs/checklists.md",
    "Set `env` to recorded, with `env.folder` a folder of recorded dialogues.",
)  # fmt: skip
ADVANTAGES = Need(
    "trainer", Trainer.check_assignment, "docs/trainers.md",
    "It would train on the similarity instead of the checklists.",
)  # fmt: skip


class Cm2(Method):
    """GRPO on recorded dialogues with checklist rewards (CM2, arXiv 2602.12268). Needs env=recorded
    and env.folder; reports on the real suite with evaluation.split=real_test
    env.dev_split=real_dev."""

    def __init__(self, settings: Assignment) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        return train_once("cm2", base, tasks, lab, assignment=dataclasses.asdict(self.settings))

    def plan(self, run: PlannedRun) -> MethodPlan:
        if run.trainer.has(Trainer.check_assignment):
            run.trainer.check_assignment(dataclasses.asdict(self.settings))
        return dataclasses.replace(one_training(run, "cm2"), needs=(CHECKLISTS, ADVANTAGES))


MAKES_TASKS = Need(
    "env", Suite.synthetic, "docs/environments.md",
    "With method=grpo its training tasks are trained on instead.",
)  # fmt: skip


class Untargeted(Method):
    """GRPO on synthetic environments that were not chosen by the agent's failures: one adapter on
    all. The target's training tasks are not looked at."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        suite, count = lab.suite, self.settings.synthetic_tasks
        names = suite.capabilities()
        share = self.settings.in_context
        drawn = [draw(suite, n, count, Mix(), lab.seed, "train", in_context=share) for n in names]
        return train_once("untargeted", base, interleave(drawn), lab, reward=REWARD)

    def plan(self, run: PlannedRun) -> MethodPlan:
        return dataclasses.replace(
            one_training(run, "untargeted"), needs=(MAKES_TASKS, *self.settings.also_needs)
        )
