"""Step 5: one adapter per capability, or one for all. The maths is the trainer's. What one job
leaves unspent (a group that does not fit any more, early stopping) goes to those after it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, MethodPlan, Phase, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Task
from trace_bench.methods.making import interleave
from trace_bench.methods.trace.budget import Budget
from trace_bench.methods.trace.settings import JOINT, TraceSettings


@dataclass(frozen=True)
class Job:
    """What is trained into one adapter."""

    name: str
    tasks: tuple[Task, ...]

    @property
    def own(self) -> list[Task]:
        """Its tasks without contrast cases."""
        return [t for t in self.tasks if not t.data.get("contrast", False)]


@dataclass(frozen=True)
class Trained:
    job: Job
    adapter: AdapterRef
    share: int
    spent: int

    def as_json(self) -> dict[str, object]:
        made = {"name": self.job.name, "adapter": self.adapter.name, "tasks": len(self.job.tasks)}
        return {**made, "share": self.share, "spent": self.spent}


def planned(budget: Budget, left: int) -> MethodPlan:
    """With `left` rollouts after the analysis."""
    most = 1 if budget.settings.joint else budget.capabilities(left)
    phase = Phase("training", budget.training(left), most=True, trains=True)
    return MethodPlan(phases=(phase,), adapters=most, trains=True)


def jobs(made: Mapping[str, tuple[Task, ...]], settings: TraceSettings) -> list[Job]:
    if settings.joint:
        return [Job(JOINT, interleave(list(made.values())))]
    return [Job(name, tasks) for name, tasks in made.items()]


def train(
    lab: Lab,
    base: AgentSpec,
    work: Sequence[Job],
    budget: Budget,
    whole: Callable[[Sequence[Trained]], AgentSpec],
    after: Callable[[Sequence[Trained]], None],
    keeps: Callable[[Sequence[Task]], bool] = lambda tasks: True,
) -> list[Trained]:
    """Trains every job from the base agent. `whole` puts an agent together from what is there;
    `after` is called with what is there after each job. A job that trained nothing is left out, and
    what was trained is thrown away unless `keeps` then says that it may be used."""
    done: list[Trained] = []
    for n, job in enumerate(work):
        share = budget.left(lab) // (len(work) - n)
        made = _train_one(lab, base, job, share, budget.settings, lambda t: whole([*done, t]))
        if made is not None and keeps(job.tasks):
            done.append(made)
        elif made is not None:
            lab.checkpoint(whole(done) if done else base)
        after(done)
    return done


def _train_one(
    lab: Lab,
    base: AgentSpec,
    job: Job,
    share: int,
    settings: TraceSettings,
    whole: Callable[[Trained], AgentSpec],
) -> Trained | None:
    before = lab.budget_left()

    def trained(agent: AgentSpec) -> Trained:
        new = [a for a in agent.adapters if a not in base.adapters]
        if len(new) != 1:
            raise UserError(
                f"the trainer returned {len(new)} new adapters for {job.name!r}; one is expected. "
                "Change `trainer`."
            )
        adapter = replace(new[0], capability=job.name)
        return Trained(job, adapter, share, before - lab.budget_left())

    def acting(agent: AgentSpec) -> AgentSpec:
        return whole(trained(agent))

    seed = stable_seed(lab.seed, "trace", "train", job.name)
    wanted = TrainingJob(job.name, base, job.tasks, share, seed, settings.reward, whole=acting)
    agent = lab.trainer.train(wanted, lab)
    return None if agent == base else trained(agent)


def assemble(base: AgentSpec, done: Sequence[Trained], router: Mapping | None) -> AgentSpec:
    """The base agent with all adapters; its version names what is in it. Without a router, the one
    new adapter takes the place of the base agent's own, from which it was trained on."""
    kept = () if router is None else base.adapters
    names = "\n".join(t.adapter.name for t in done)
    version = f"trace-{len(done)}-{hashlib.sha256(names.encode()).hexdigest()[:8]}"
    adapters = (*kept, *(t.adapter for t in done))
    return replace(base, version=version, adapters=adapters, router=router)
