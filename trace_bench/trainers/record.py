"""What a training job begins with, its checks, metrics and end, for every trainer."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.checklists.rewards import Assignment
from trace_bench.core.checked import build
from trace_bench.core.errors import TraceBenchError, UserError, unknown
from trace_bench.core.protocols import Lab, Trainer, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Trajectory
from trace_bench.policies.engine.lora import read_weights
from trace_bench.trainers.settings import Recipe

if TYPE_CHECKING:
    from trace_bench.trainers.grpo import Advantages, Mismatch

DRAWN = "drawn"  # at random, in method=placebo
REWARDS = ("similarity", "success", DRAWN)

FAR_APART, LEAST_APART = 10.0, 0.1
"""Mean differences in log-probability that stop a run: so many times `trainer.mismatch`, and never
less than this."""


def check_job(job: TrainingJob) -> None:
    """Raises UserError for an unknown reward or a job without tasks, and ValueError if the agent
    has an adapter of that name already."""
    if job.reward not in REWARDS:
        raise unknown("reward", job.reward, REWARDS, "method.reward")
    if not job.tasks:
        raise UserError(f"training {job.name!r} has no tasks; check the setting `env`.")
    if any(a.name.partition("@")[0] == job.name for a in job.agent.adapters):
        raise ValueError(f"the agent has an adapter {job.name!r} already; names are used once")


def exact(trajectory: Trajectory) -> bool:
    """Whether all sampled tokens and their log-probabilities are known: servers may give none."""
    return all(t.token_ids and len(t.token_ids) == len(t.logprobs) for t in trajectory.turns)


def usable(trajectory: Trajectory) -> bool:
    """Whether an episode can be trained on: not lost by the infrastructure, and `exact`."""
    return trajectory.score is not None and trajectory.failure is None and exact(trajectory)


def reward_of(trajectory: Trajectory, reward: str) -> float:
    """The reward, a field of the score; NaN, which is in no baseline, unless it is `usable`."""
    return paid(trajectory, reward) if usable(trajectory) else float("nan")


def paid(trajectory: Trajectory, reward: str) -> float:
    """The reward of an episode that has a score; a random one follows from the episode's seed."""
    if reward == DRAWN:
        return random.Random(stable_seed(trajectory.seed, "reward")).random()
    return float(getattr(trajectory.score, reward))


def check_turns(trajectory: Trajectory, adapter: str | None) -> None:
    """Raises TraceBenchError unless all turns come from `adapter` and have a prompt."""
    for turn in trajectory.turns:
        if turn.adapter != adapter:
            raise TraceBenchError(
                f"{trajectory.task}: expected turns of adapter {adapter!r}, got {turn.adapter!r}"
            )
    check_prompt(trajectory)


def check_prompt(trajectory: Trajectory) -> None:
    """Raises TraceBenchError if a turn has no prompt tokens, or keeps more than there are."""
    tokens = 0
    for n, turn in enumerate(trajectory.turns if exact(trajectory) else ()):
        kept = tokens if turn.kept is None else turn.kept
        if kept > tokens or not kept + len(turn.prompt_ids):
            why = f"keeps {kept} of {tokens} tokens" if kept else "has no prompt tokens"
            place = "the first turn" if not n else f"turn {n + 1}"
            raise TraceBenchError(f"{trajectory.task}: {place} {why}")
        tokens = kept + len(turn.prompt_ids) + len(turn.token_ids)


def conclude(
    job: TrainingJob, lab: Lab, records: Sequence[Mapping[str, Any]], trained: AgentSpec
) -> AgentSpec:
    """Reports the end of a job with these `records` of iterations; returns `trained`, whose last
    adapter is the new one, or the job's agent if nothing was learned."""
    spent = records[-1]["spent"] if records else 0
    unspent = job.rollouts - spent
    untrained = why_untrained(records)
    adapter = None if untrained else trained.adapters[-1].name
    lab.metric(phase="trained", adapter=adapter, unspent=unspent)
    lab.log(f"{job.name}: {len(records)} iterations, {spent} rollouts, {unspent} unspent")
    if untrained:
        lab.log(f"{job.name}: no optimizer step, so there is no adapter: {untrained}")
    return job.agent if untrained else trained


def publish(job: TrainingJob, lab: Lab, record: Mapping[str, Any], agent: AgentSpec) -> None:
    """Reports an iteration, and the agent after it for the curve."""
    lab.metric(**record)
    lab.checkpoint(job.whole(agent) if job.whole else agent)


def with_version(agent: AgentSpec, name: str, folder: Path) -> AgentSpec:
    """The agent with the version in this folder of the adapter `name` in place of its own."""
    adapter = AdapterRef(f"{name}@{folder.name}", str(folder))
    return replace(agent, version=f"{agent.version}+{adapter.name}", adapters=(adapter,))


def remove_versions(folder: Path, before: int) -> None:
    """Removes the older versions of an adapter."""
    for old in folder.glob("[0-9]*"):
        if int(old.name) < before:
            shutil.rmtree(old)


def stepped(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of these iterations has an optimizer step; None, an unknown number, is one."""
    return any(record.get("steps") != 0 for record in records)


def why_untrained(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a job whose iterations have these `records` took no optimizer step; None if it did."""
    if not records:
        return "its rollouts pay for no iteration"
    if stepped(records):
        return None
    if all(record["reward"] is None for record in records):
        return "every episode was lost"
    if all(record["constant_share"] == 1.0 for record in records):
        means = [record["reward"] for record in records if record["reward"] is not None]
        rewards = ", ".join(f"{value:.3g}" for value in sorted({min(means), max(means)}))
        return f"in every group all rewards were equal (mean reward: {rewards})"
    return "no episode with an advantage has a turn of the agent"


def check_finite(
    where: str,
    norm: float | None,
    largest: tuple[float, str] = (0.0, ""),
    setting: str = "trainer.learning_rate",
) -> None:
    """Raises UserError if the norm of a gradient is known and not finite, or that of the `largest`
    update of a layer is not (`adapters.largest_update`)."""
    update, layer = largest
    if (norm is None or math.isfinite(norm)) and math.isfinite(update):
        return
    said = f"; the largest update is that of {layer}, with a norm of {update:.3g}" if layer else ""
    raise UserError(
        f"{where}: loss or gradient is not finite, training diverged{said}. Lower the setting "
        f"`{setting}`."
    )


def of_sampler(where: str, found: Mismatch | None, limit: float, lab: Lab) -> dict[str, Any]:
    """How far the log-probabilities of sampler and trainer are apart before an iteration's first
    step, as metrics (None: nothing was compared). Above `limit`, the setting `trainer.mismatch`,
    that is an alarm: a line of the log, and in the run's health. Raises UserError far above it:
    rounding differs by less, so the sampler has other weights or an adapter of before."""
    alarm = found is not None and not found.mean <= limit  # NaN is one too
    if found is not None and alarm:
        text = (
            f"{where}: sampler and trainer differ by {found.mean:.3g} in log-probability "
            f"on average (up to {found.max:.3g}), more than trainer.mismatch={limit:g}: the "
            "rollouts are not from the policy that is trained"
        )
        if not found.mean <= (most := max(FAR_APART * limit, LEAST_APART)):
            raise UserError(
                f"{text}, and more than {most:g}, which no rounding explains. Look at the "
                "sampler's weights, adapter and precision, or raise `trainer.mismatch`."
            )
        lab.log(f"warning: {text}")
    return {
        "logprob_difference_mean": found and found.mean,
        "logprob_difference_max": found and found.max,
        "logprob_difference_kl": found and found.kl,
        "logprob_alarm": None if found is None else alarm,
    }


def of_rollouts(
    trajectories: Sequence[Trajectory], reward: str, found: Advantages
) -> dict[str, Any]:
    """Mean reward and success, and the shares of groups without a learning signal (`found`)."""
    scored = [(t, t.score) for t in trajectories if t.score is not None and t.failure is None]
    return {
        "reward": mean([paid(t, reward) for t, _ in scored]),
        "success": mean([float(score.success) for _, score in scored]),
        "groups": found.groups,
        "zero_share": found.all_zero / found.groups,
        "one_share": found.all_one / found.groups,
        "constant_share": found.constant / found.groups,
        "failures": found.failed,
        "inexact": sum(not exact(t) for t in trajectories),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def assignment_of(given: Mapping[str, Any], normalize_std: bool) -> Assignment:
    """A job's assignment from plain data. The trainer's setting decides about the deviation."""
    return build(Assignment, {**given, "deviation": normalize_std}, "method")


class ByRecipe(Trainer):
    """What trainers by a `Recipe` can train on."""

    settings: Recipe

    def check_start(self, start: AdapterRef) -> None:
        check_start(start, self.settings)

    def check_assignment(self, assignment: Mapping[str, Any]) -> None:
        """Raises UserError for unknown fields, for an algorithm that takes no checklists, and for
        baselines that no group is large enough for: every advantage would be zero."""
        recipe = self.settings
        how = assignment_of(assignment, recipe.normalize_std)
        recipe.algorithm.check_checklists()
        if how.level != "trajectory" and how.holders > recipe.group_size:
            raise UserError(
                f"method.holders={how.holders} asks for more rollouts in a baseline than a group "
                f"has (trainer.group_size={recipe.group_size}), so nothing would be learned. Lower "
                "`method.holders`, or raise `trainer.group_size`."
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
