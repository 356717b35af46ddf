"""What a training job may begin with, before anything is played: its reward and tasks, an adapter
that it continues, how advantages are assigned; and what it is, for a job that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_bench.checklists.rewards import Assignment
from trace_bench.core.checked import build, identifying
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Trainer, TrainingJob
from trace_bench.core.store import fingerprint
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.engine.lora import read_weights
from trace_bench.trainers.algorithms import SETTING, Recipe
from trace_bench.trainers.episodes import REWARDS


def check_job(job: TrainingJob) -> None:
    """Raises UserError for an unknown reward or a job without tasks, and ValueError if the agent
    has an adapter of that name already."""
    if job.reward not in REWARDS:
        raise unknown("reward", job.reward, REWARDS, "method.reward")
    if not job.tasks:
        raise UserError(f"training {job.name!r} has no tasks; check the setting `env`.")
    if any(a.name.partition("@")[0] == job.name for a in job.agent.adapters):
        raise ValueError(f"the agent has an adapter {job.name!r} already; names are used once")


def identity_of(job: TrainingJob, recipe: Recipe) -> str:
    """What a job must be to go on from what is stored: a fingerprint."""
    return fingerprint(
        {
            "name": job.name,
            "model": Path(job.agent.model).name,  # folders may move
            "agent": job.agent.version,
            "tasks": [t.id for t in job.tasks],
            "rollouts": job.rollouts,
            "seed": job.seed,
            "reward": job.reward,
            "settings": identifying(recipe),
            "assignment": job.assignment,
        }
    )


def start_of(agent: AgentSpec) -> AdapterRef | None:
    """The adapter that training continues, and that the new one replaces: the agent's only one;
    None if it has none. Raises UserError for an agent that chooses among adapters: no single
    adapter stands for what it does."""
    if agent.router is None and len(agent.adapters) < 2:
        return agent.adapters[0] if agent.adapters else None
    names = ", ".join(a.name for a in agent.adapters) or "none"
    raise UserError(
        f"training continues one adapter, and the agent {agent.version!r} routes between several "
        f"(adapters: {names}). Change `agent` to a run that trained one adapter (such as grpo, "
        "sft, or trace with method.adapters=joint), or `method` to one that changes the prompt "
        "alone."
    )


def check_start(start: AdapterRef, recipe: Recipe) -> None:
    """Raises UserError for an adapter that the recipe's adapters cannot hold."""
    weights = read_weights(start)
    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A" in name}
    if (most := max(ranks, default=0)) > recipe.rank:
        raise UserError(
            f"the adapter {start.name!r} that training begins with has rank {most}, more than "
            f"trainer.rank={recipe.rank}. Set `trainer.rank` to at least {most}."
        )
    modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in weights}
    if missing := sorted(modules - set(recipe.target_modules)):
        raise UserError(
            f"the adapter {start.name!r} that training begins with changes {', '.join(missing)}, "
            f"which trainer.target_modules={list(recipe.target_modules)} lacks. Add them to "
            "`trainer.target_modules`."
        )


class ByRecipe(Trainer):
    """What trainers by a `Recipe` can train on."""

    settings: Recipe

    def check_start(self, start: AdapterRef) -> None:
        check_start(start, self.settings)

    def check_assignment(self, assignment: Mapping[str, Any]) -> None:
        """Raises UserError for unknown fields, for an algorithm that takes no checklists, and for
        baselines that no group is large enough for: every advantage would be zero."""
        recipe = self.settings
        how = build(Assignment, assignment, "method")
        if not recipe.algorithm.checklists:
            raise UserError(
                f"{SETTING}={recipe.algorithm.name} has advantages of its own, and the method "
                f"takes them from checklists. Change `{SETTING}` (grpo, dapo, gspo and cispo take "
                "any), or `method`."
            )
        if how.level != "trajectory" and how.holders > recipe.group_size:
            raise UserError(
                f"method.holders={how.holders} asks for more rollouts in a baseline than a group "
                f"has (trainer.group_size={recipe.group_size}), so nothing would be learned. Lower "
                "`method.holders`, or raise `trainer.group_size`."
            )
