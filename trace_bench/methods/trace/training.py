"""One adapter per capability, or one for all (method, step 3). The maths is the trainer's. With a
trunk, an adapter is trained on all environments first, and the others start from it.

What is left of the budget is handed out job by job: what one job leaves unspent (a group that does
not fit any more, early stopping) goes to those after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Final

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Task
from trace_bench.methods.trace.budget import next_share
from trace_bench.methods.trace.progress import Progress, weights
from trace_bench.methods.trace.settings import TraceSettings

JOINT: Final = "joint"
TRUNK: Final = "trunk"
PROGRESS: Final = "progress"


@dataclass(frozen=True)
class Job:
    """What is trained into one adapter; `weight` decides its part of the budget."""

    name: str
    tasks: tuple[Task, ...]
    weight: float


@dataclass(frozen=True)
class Trained:
    job: Job
    adapter: AdapterRef
    share: int
    spent: int


def jobs(
    made: Mapping[str, tuple[Task, ...]], coverage: Mapping[str, float], settings: TraceSettings
) -> list[Job]:
    """The training jobs of each capability's tasks, in training order."""
    if settings.adapters == JOINT:
        return [Job(JOINT, interleave(list(made.values())), 1.0)]
    weigh = settings.split == "by_coverage"
    return [Job(name, tasks, coverage[name] if weigh else 1.0) for name, tasks in made.items()]


def interleave(lists: Sequence[Sequence[Task]]) -> tuple[Task, ...]:
    """Round-robin, so that every prefix holds all capabilities alike."""
    return tuple(t for t in chain.from_iterable(zip_longest(*lists)) if t is not None)


def train(
    lab: Lab,
    base: AgentSpec,
    work: Sequence[Job],
    settings: TraceSettings,
    whole: Callable[[Sequence[Trained]], AgentSpec],
    after: Callable[[Sequence[Trained]], None],
    keep: Callable[[Job], bool] = lambda job: True,
    reserve: int = 0,
) -> list[Trained]:
    """Trains every job from the base agent, or from a trunk. `whole` puts an agent together from
    what is there; `after` is called with what is there after each job. A job that trained nothing
    is left out, and what was trained is thrown away unless `keep` then says that it may be used.
    `reserve`: rollouts that are left for later."""
    done: list[Trained] = []
    trunk = _trunk(lab, base, work, settings, reserve)
    twice = settings.split == PROGRESS and len(work) > 1
    later = (lab.budget_left() - reserve) // 2 if twice else 0
    seen: list[Progress] = []
    for n, job in enumerate(work):
        share = next_share(lab.budget_left() - reserve - later, [j.weight for j in work[n:]])
        heard = Progress(settings.reward)
        with lab.listening(heard.hear) if twice else nullcontext():
            made = _train_one(lab, base, trunk, job, share, settings, lambda t: whole([*done, t]))
        if made is not None and keep(job):
            done.append(made)
            seen.append(heard)
        elif made is not None:
            lab.checkpoint(whole(done) if done else base)
        after(done)
    if twice:
        _go_on(lab, base, done, seen, settings, whole, reserve)
        after(done)
    return done


def _go_on(
    lab: Lab,
    base: AgentSpec,
    done: list[Trained],
    seen: Sequence[Progress],
    settings: TraceSettings,
    whole: Callable[[Sequence[Trained]], AgentSpec],
    reserve: int,
) -> None:
    """The second half of the training (`progress`): replaces those of `done` that still learn."""
    shares = weights(seen)
    rows = zip(done, seen, shares, strict=True)
    lab.log("learning progress: " + ", ".join(_line(*row) for row in rows))
    for n, (first, weight) in enumerate(zip(list(done), shares, strict=True)):
        if not weight:
            continue
        share = next_share(lab.budget_left() - reserve, shares[n:])
        job = replace(first.job, name=f"{first.job.name}-more")

        def put(made: Trained, n: int = n, first: Trained = first) -> list[Trained]:
            both = replace(made, job=first.job, share=first.share + made.share)
            both = replace(both, adapter=replace(made.adapter, capability=first.job.name))
            both = replace(both, spent=first.spent + made.spent)
            return [*done[:n], both, *done[n + 1 :]]

        made = _train_one(lab, base, first.adapter, job, share, settings, lambda t: whole(put(t)))
        if made is not None:
            done[:] = put(made)


def _line(trained: Trained, seen: Progress, share: float) -> str:
    state = "saturated" if seen.saturated() else f"{seen.gain():+.2f}"
    return f"{trained.job.name} {state} ({share:.0%} of the rest)"


def _trunk(
    lab: Lab, base: AgentSpec, work: Sequence[Job], settings: TraceSettings, reserve: int
) -> AdapterRef | None:
    """The adapter that the jobs start from; None without `trunk_share`, for a single job, and where
    nothing is left for it or was trained."""
    left = lab.budget_left() - reserve
    rollouts = int(settings.trunk_share * left)
    rollouts = min(rollouts, left - len(work) * settings.minimum_training)
    if len(work) < 2 or rollouts < settings.minimum_training:
        return None
    job = TrainingJob(
        name=TRUNK,
        agent=base,
        tasks=interleave([j.tasks for j in work]),
        rollouts=rollouts,
        seed=stable_seed(lab.seed, "trace", "train", TRUNK),
        reward=settings.reward,
    )
    agent = lab.trainer.train(job, lab)
    return None if agent == base else _new(base, agent, TRUNK)


def _train_one(
    lab: Lab,
    base: AgentSpec,
    start: AdapterRef | None,
    job: Job,
    share: int,
    settings: TraceSettings,
    whole: Callable[[Trained], AgentSpec],
) -> Trained | None:
    before = lab.budget_left()

    def trained(agent: AgentSpec) -> Trained:
        adapter = replace(_new(base, agent, job.name), capability=job.name)
        return Trained(job, adapter, share, before - lab.budget_left())

    first = base if start is None else replace(base, adapters=(start,))
    wanted = TrainingJob(
        name=job.name,
        agent=first,
        tasks=job.tasks,
        rollouts=share,
        seed=stable_seed(lab.seed, "trace", "train", job.name),
        reward=settings.reward,
        whole=lambda agent: whole(trained(agent)),
    )
    agent = lab.trainer.train(wanted, lab)
    return None if agent == first else trained(agent)


def _new(base: AgentSpec, agent: AgentSpec, job: str) -> AdapterRef:
    """The adapter that a trainer added."""
    new = [a for a in agent.adapters if a not in base.adapters]
    if len(new) != 1:
        raise UserError(
            f"the trainer returned {len(new)} new adapters for {job!r}; one is expected. Change "
            "`trainer`."
        )
    return new[0]


def assemble(base: AgentSpec, done: Sequence[Trained], router: Mapping | None) -> AgentSpec:
    """The base agent with all adapters; its version names what is in it. Without a router, the one
    new adapter takes the place of the base agent's own, from which it was trained on."""
    kept = () if router is None else base.adapters
    names = "\n".join(t.adapter.name for t in done)
    digest = hashlib.sha256(names.encode()).hexdigest()[:8]
    return replace(
        base,
        version=f"trace-{len(done)}-{digest}",
        adapters=(*kept, *(t.adapter for t in done)),
        router=router,
    )
