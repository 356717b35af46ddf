"""What a training job may begin with, before anything is played: its reward and tasks, an adapter
that it continues, how advantages are assigned; and what it is, for a job that goes on.

And what of an iteration's episodes is trained on: whether an episode can be, its reward, whether
its tokens fit, and the groups whose rewards are compared; and their advantages: the algorithm's
(`trainers.algorithms`), or one for each token from the checklists of their scores
(`checklists.rewards`)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trace_bench.checklists.rewards import Assignment, Rollout, advantages, reward, rollout_of
from trace_bench.core.checked import build, identifying
from trace_bench.core.errors import TraceBenchError, UserError, unknown
from trace_bench.core.protocols import Trainer, TrainingJob
from trace_bench.core.store import canonical, fingerprint, stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Trajectory
from trace_bench.policies.engine.lora import read_weights
from trace_bench.trainers.algorithms import SETTING, Recipe
from trace_bench.trainers.grpo import FULL, SAME, Advantages, Episodes

T = TypeVar("T")

DRAWN = "drawn"  # at random, in method=placebo
REWARDS = ("similarity", "success", DRAWN)


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


def other_job(path: Path) -> UserError:
    """The UserError for what is stored of a job with another `identity_of`."""
    return UserError(
        f"{path} belongs to a training job with other settings, tasks or seed. Change the setting "
        "`run_dir`, or remove the folder."
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


SEEN = 9e-5
"""Steps times rate. On SmolLM2 5 times 1e-5 moves log-probabilities by 0.020, rounding to bfloat16
by 0.037 (tests/bench/rounding.py)."""


class ByRecipe(Trainer):
    """What trainers by a `Recipe` can train on."""

    settings: Recipe

    def outlook(self, adapters: int, rollouts: int, /, *rest: Any) -> list[str]:
        """How many optimizer steps each adapter gets, and whether they are too small to be seen."""
        recipe, each = self.settings, rollouts // adapters
        size = recipe.group_size * recipe.groups
        times = max(1, each // size)
        steps = times * recipe.epochs * recipe.minibatches
        rate = recipe.learning_rate * (1 if recipe.decay == "constant" else 0.5 + 0.5 / times)
        warning = (
            f"  warning: steps times rate are {steps * rate:.1g}; what is below {SEEN:g} moves log-"
            "probabilities less than rounding to bfloat16 does (on SmolLM2). Raise "
            "trainer.learning_rate or `budget`, or train fewer adapters."
        )
        return [
            f"{adapters} adapter(s) of {each} rollouts: {steps} optimizer step(s) each at a mean "
            f"rate of {rate:.2g} ({times} iteration(s) of {size}, epochs {recipe.epochs}, "
            f"minibatches {recipe.minibatches})",
            *([warning] if steps * rate < SEEN else []),
        ]

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


# -- what is trained on ---------------------------------------------------------------------------


class Rewarded(Protocol):
    """What says how episodes are rewarded: a `TrainingJob`, or a description of one."""

    @property
    def reward(self) -> str: ...
    @property
    def assignment(self) -> Mapping[str, Any] | None: ...


def exact(trajectory: Trajectory) -> bool:
    """Whether all sampled tokens and their log-probabilities are known: servers may give none."""
    return all(t.token_ids and len(t.token_ids) == len(t.logprobs) for t in trajectory.turns)


def usable(trajectory: Trajectory) -> bool:
    """Whether an episode can be trained on: not lost by the infrastructure, and `exact`."""
    return trajectory.score is not None and trajectory.failure is None and exact(trajectory)


def earned(trajectories: Sequence[Trajectory], job: Rewarded) -> list[float]:
    """The rewards of a job's episodes: a field of the score or, with an assignment, what the
    checklists say; NaN for one in no baseline. Raises UserError for scores without a checklist."""
    if job.assignment is None:
        return [reward_of(t, job.reward) for t in trajectories]
    how = build(Assignment, job.assignment, "method")
    rollouts = [usable_rollout(t) for t in trajectories]
    return [math.nan if rollout is None else reward(rollout, how) for rollout in rollouts]


def reward_of(trajectory: Trajectory, reward: str) -> float:
    """The reward, a field of the score; NaN, which is in no baseline, unless it is `usable`."""
    return paid(trajectory, reward) if usable(trajectory) else math.nan


def paid(trajectory: Trajectory, reward: str) -> float:
    """The reward of an episode that has a score; a random one follows from the episode's seed."""
    if reward == DRAWN:
        return random.Random(stable_seed(trajectory.seed, "reward")).random()
    return float(getattr(trajectory.score, reward))


def usable_rollout(trajectory: Trajectory) -> Rollout | None:
    """What an episode's advantages by checklists depend on; None for one that is not `usable`."""
    if not usable(trajectory):
        return None
    if (rollout := rollout_of(trajectory)) is None:
        raise UserError(
            f"{trajectory.task}: its score has no checklist, from which the method takes its "
            "advantages. Set `env` to recorded, or `method` to one without checklists."
        )
    return rollout


def in_groups(values: Sequence[T], size: int) -> list[Sequence[T]]:
    """What an iteration's rollouts have, group by group."""
    return [values[first : first + size] for first in range(0, len(values), size)]


def differ(rewards: Sequence[float]) -> bool:
    """Whether a group has a learning signal: two episodes or more whose rewards differ."""
    valid = [r for r in rewards if r == r]
    return len(valid) > 1 and max(valid) - min(valid) > SAME


def check_prompt(trajectory: Trajectory) -> None:
    """Raises TraceBenchError if a turn has no prompt tokens, or keeps more than there are."""
    tokens = 0
    for n, turn in enumerate(trajectory.turns if exact(trajectory) else ()):
        kept = tokens if turn.kept is None else turn.kept
        if kept > tokens or not kept + len(turn.prompt_ids):
            why = f"keeps {kept} of {tokens} tokens" if kept else "has no prompt tokens"
            raise TraceBenchError(f"{trajectory.task}: turn {n + 1} {why}")
        tokens = kept + len(turn.prompt_ids) + len(turn.token_ids)


def credit(
    trajectories: Sequence[Trajectory], rewards: Sequence[float], job: Rewarded, recipe: Recipe
) -> Advantages:
    """The advantages of episodes with these rewards (`earned`), the members of a group adjacent.
    With `resample` a group of equal rewards is not trained on, whatever else its members differ in:
    others are played in its place."""
    import torch

    advantages = _advantages(trajectories, rewards, job, recipe)
    if not recipe.resample:
        return advantages
    groups = in_groups(rewards, recipe.group_size)
    trained = advantages.trained & torch.tensor([differ(g) for g in groups for _ in g])
    learned = sum(any(members) for members in in_groups(trained.tolist(), recipe.group_size))
    values, constant = advantages.values * trained, advantages.groups - learned
    return replace(advantages, values=values, trained=trained, constant=constant)


def _advantages(
    trajectories: Sequence[Trajectory], rewards: Sequence[float], job: Rewarded, recipe: Recipe
) -> Advantages:
    import torch

    lengths = [[len(turn.token_ids) for turn in t.turns] for t in trajectories]
    if job.assignment is None:
        values = torch.tensor(rewards, dtype=torch.float64)
        group = torch.arange(len(trajectories)) // recipe.group_size
        observed = [seen(t) for t in trajectories] if recipe.algorithm.observations else []
        return recipe.algorithm.advantages(Episodes(values, group, lengths, observed))
    how = build(Assignment, job.assignment, "method")
    rollouts = [usable_rollout(t) for t in trajectories]
    return by_checklist(rollouts, lengths, in_groups(range(len(rollouts)), recipe.group_size), how)


def seen(trajectory: Trajectory) -> list[str]:
    """What each turn was an answer to, as a text that is equal for equal observations: the messages
    since the turn before, without the ids of calls."""
    return [
        canonical([{k: v for k, v in m.items() if k != "tool_call_id"} for m in turn.messages])
        for turn in trajectory.turns
    ]


def by_checklist(
    rollouts: Sequence[Rollout | None],
    lengths: Sequence[Sequence[int]],
    groups: Sequence[Sequence[int]],
    how: Assignment,
) -> Advantages:
    """`lengths`: the tokens of each step of each rollout; `groups`: the members of each group."""
    import torch

    tokens = [torch.zeros(sum(each), dtype=torch.float32) for each in lengths]
    trained = torch.zeros(len(rollouts), dtype=torch.bool)
    constant = all_zero = all_one = 0
    for members in groups:
        group = [rollouts[n] for n in members]
        for n, values in zip(members, advantages(group, how), strict=True):
            if values:
                each = torch.tensor(values, dtype=torch.float64)
                tokens[n] = each.repeat_interleave(torch.tensor(lengths[n])).float()
                trained[n] = bool((tokens[n].abs() > SAME).any())
        learned = any(bool(trained[n]) for n in members)
        if learned:  # a member without an advantage of its own still counts in the mean
            for n in members:
                trained[n] = rollouts[n] is not None
            continue
        rewards = [reward(rollout, how) for rollout in group if rollout is not None]
        constant += 1
        all_zero += int(bool(rewards) and max(rewards) <= SAME)
        all_one += int(bool(rewards) and min(rewards) >= FULL)
    means = torch.stack([t.mean() if len(t) else torch.zeros(()) for t in tokens])
    failed = sum(rollout is None for rollout in rollouts)
    return Advantages(
        means, trained, len(groups), constant, all_zero, all_one, failed, tuple(tokens)
    )
