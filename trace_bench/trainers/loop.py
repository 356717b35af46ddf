"""The training loop that every training here runs: play, learn, save.

A kind of training brings what an iteration plays, what is learned from it, and what is kept. What
else there is stands beside the loop: which tasks come next (`course`), how advantages follow from
rewards (`job`, `algorithms`), the optimizer steps (`update`), the state on disk (`model`).
"""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, TrainingJob
from trace_bench.core.types import AdapterRef, AgentSpec, Trajectory
from trace_bench.trainers.grpo import Advantages, Mismatch
from trace_bench.trainers.job import exact, paid, start_of

Record = dict[str, Any]
"""The metrics of an iteration."""

Played = TypeVar("Played")
FIRST_GROUPS, SELDOM = 32, 0.1
"""After so many groups it is said if fewer than this share of them has a signal (ours)."""


class Training(ABC, Generic[Played]):
    """One job. A job that was killed goes on after its last saved iteration."""

    lab: Lab

    def run(self) -> AgentSpec:
        records = self.load()
        for iteration, record in enumerate(records):  # finished before the program was stopped
            self.repeat(iteration)
            self.publish(iteration, record)
        if self.goes_on(records):
            with self.learning():
                while self.goes_on(records):
                    iteration = len(records)
                    played = self.play(iteration)
                    records.append(self.learn(iteration, played))
                    self.save(records)
                    self.publish(iteration, records[-1])
                    if words := without_signal(records):
                        self.lab.log(f"warning: {words}")
        return self.result(records)

    @abstractmethod
    def play(self, iteration: int) -> Played:
        """What the iteration learns from."""

    @abstractmethod
    def learn(self, iteration: int, played: Played) -> Record: ...

    @abstractmethod
    def goes_on(self, records: Sequence[Record]) -> bool:
        """Whether another iteration follows those with these records."""

    @abstractmethod
    def publish(self, iteration: int, record: Record) -> None:
        """Reports an iteration, and the agent after it."""

    @abstractmethod
    def result(self, records: Sequence[Record]) -> AgentSpec: ...

    def load(self) -> list[Record]:
        """The records of the iterations that need not be learned again."""
        return []

    def save(self, records: Sequence[Record]) -> None:
        """Keeps what the job goes on from after these iterations; nothing where it is computed
        again from the stored rollouts."""

    def repeat(self, iteration: int) -> None:
        """Makes the calls of an iteration that was learned before; all are answered from disk."""

    def learning(self) -> AbstractContextManager[None]:
        """What must be there while there are iterations to learn."""
        return nullcontext()


@dataclass(frozen=True)
class Versions:
    """Those of a job's adapter: iteration i is played by version i; version 0 is the adapter that
    the agent has, or the base model."""

    name: str
    agent: AgentSpec

    def call(self, iteration: int) -> str:
        """The name of an iteration's rollouts in the ledger. Where constant groups are sampled
        again, /again1 and so on follow it."""
        return f"train/{self.name}/iter{iteration:04d}"

    def version(self, iteration: int) -> str | None:
        """The adapter for an iteration's rollouts; None is the base model."""
        if iteration:
            return f"{self.name}@{iteration:04d}"
        start = start_of(self.agent)
        return None if start is None else start.name

    def acting(self, iteration: int, folder: Path) -> AgentSpec:
        """The agent of an iteration, or the result. `folder` holds the versions."""
        if not iteration:
            return self.agent
        return with_version(self.agent, self.name, folder / f"{iteration:04d}")


def conclude(
    job: TrainingJob, lab: Lab, records: Sequence[Mapping[str, Any]], trained: AgentSpec
) -> AgentSpec:
    """Reports the end of a job with these `records` of iterations; returns `trained`, whose last
    adapter is the new one, or the job's agent if nothing was learned."""
    spent = records[-1]["spent"] if records else 0
    unspent = job.rollouts - spent
    before = records[-2]["spent"] if len(records) > 1 else 0
    if unspent >= spent - before > 0 and records[-1].get("one_share") == 1.0:
        lab.leave(f"{job.name} ended early, as every episode was a success")
    untrained = why_untrained(records)
    adapter = None if untrained else trained.adapters[-1].name
    lab.metric(phase="trained", adapter=adapter, unspent=unspent)
    lab.log(f"{job.name}: {len(records)} iterations, {spent} rollouts, {unspent} unspent")
    if untrained:
        lab.log(f"{job.name}: no optimizer step, so there is no adapter: {untrained}")
    return job.agent if untrained else trained


def publish(job: TrainingJob, lab: Lab, record: Mapping[str, Any], agent: AgentSpec | None) -> None:
    """Reports an iteration, and the agent after it for the curve, if it was kept."""
    lab.metric(**record)
    if agent is not None:
        lab.checkpoint(job.whole(agent) if job.whole else agent)


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


def without_signal(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Said at the iteration that completes the first groups: that nearly none of them teaches
    anything, and what can be changed before the rest of the budget is spent."""
    groups = [record.get("groups", 0) for record in records]
    if not sum(groups[:-1]) < FIRST_GROUPS <= sum(groups):
        return None
    differ = sum(round(n * (1 - r["constant_share"])) for n, r in zip(groups, records, strict=True))
    if differ >= SELDOM * sum(groups):
        return None
    return (
        f"in {differ} of the first {sum(groups)} groups the rewards differ, and the others teach "
        "nothing. What helps: a reward with levels, larger groups (trainer.group_size), easier "
        "training tasks, or made ones for what is lacking, as method=trace has them"
    )


def with_version(agent: AgentSpec, name: str, folder: Path) -> AgentSpec:
    """The agent with the version in this folder of the adapter `name` in place of its own."""
    adapter = AdapterRef(f"{name}@{folder.name}", str(folder))
    return replace(agent, version=f"{agent.version}+{adapter.name}", adapters=(adapter,))


def remove_versions(folder: Path, before: int) -> None:
    for old in folder.glob("[0-9]*"):
        if int(old.name) < before:
            shutil.rmtree(old)


FAR_APART, LEAST_APART = 10.0, 0.1
"""Mean differences in log-probability that stop a run: in `trainer.mismatch`, and at least."""


def of_rollouts(
    trajectories: Sequence[Trajectory], reward: str, advantages: Advantages
) -> dict[str, Any]:
    """Mean reward and success, and the shares of groups without a learning signal."""
    scored = [(t, t.score) for t in trajectories if t.score is not None and t.failure is None]
    return {
        "reward": mean([paid(t, reward) for t, _ in scored]),
        "success": mean([float(score.success) for _, score in scored]),
        "groups": advantages.groups,
        "zero_share": advantages.all_zero / advantages.groups,
        "one_share": advantages.all_one / advantages.groups,
        "constant_share": advantages.constant / advantages.groups,
        "failures": advantages.failed,
        "inexact": sum(not exact(t) for t in trajectories),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def of_sampler(where: str, mismatch: Mismatch | None, limit: float, lab: Lab) -> dict[str, Any]:
    """How far the log-probabilities of sampler and trainer are apart before an iteration's first
    step, as metrics (None: nothing was compared). Above `limit`, the setting `trainer.mismatch`,
    that is an alarm: a line of the log, and in the run's health. Raises UserError far above it:
    rounding differs by less, so the sampler has other weights or an adapter of before."""
    alarm = mismatch is not None and not mismatch.mean <= limit  # NaN is one too
    if mismatch is not None and alarm:
        text = (
            f"{where}: sampler and trainer differ by {mismatch.mean:.3g} in log-probability "
            f"on average (up to {mismatch.max:.3g}), more than trainer.mismatch={limit:g}: the "
            "rollouts are not from the policy that is trained"
        )
        if not mismatch.mean <= (most := max(FAR_APART * limit, LEAST_APART)):
            raise UserError(
                f"{text}, and more than {most:g}, which no rounding explains. Look at the "
                "sampler's weights, adapter and precision, or raise `trainer.mismatch`."
            )
        lab.log(f"warning: {text}")
    return {
        "logprob_difference_mean": mismatch and mismatch.mean,
        "logprob_difference_max": mismatch and mismatch.max,
        "logprob_difference_kl": mismatch and mismatch.kl,
        "logprob_alarm": None if mismatch is None else alarm,
    }


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
