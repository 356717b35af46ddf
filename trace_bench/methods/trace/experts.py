"""Share the budget and train: one adapter per capability, all from the base agent, or one for all;
and the agent that has them. The maths is the trainer's. What one job leaves unspent (a group that
does not fit any more, early stopping) goes to those after it.

Routes are learned (`policies.routing.Evidence`) from the openings of the adapters' own tasks,
from nothing of the target tasks.

The last share (`method.finish`) is GRPO on the target's own training tasks, from the sum of the
adapters, which has the rank of all of them together: what is trained further is its best
approximation of the trainer's rank, by singular values (`policies.routing.merge`). No router
chooses afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core import protocols
from trace_bench.core.chat import with_guidance
from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Lab, MethodPlan, Need, Phase, State, Trainer, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Step, Task
from trace_bench.methods.looking.capabilities import Verdict
from trace_bench.methods.making import interleave
from trace_bench.methods.trace.settings import JOINT, Budget, TraceSettings
from trace_bench.methods.trace.tasks import TrainingTasks
from trace_bench.play.steps import usable
from trace_bench.policies.routing import Evidence, Expert
from trace_bench.policies.routing.merge import Mixture, around, compress, merge
from trace_bench.trainers.job import start_of

Compose = Callable[[Sequence[Expert]], AgentSpec]
"""The agent that has these experts."""
FINISH = "finish"  # the name of the last training job
GOES_ON = Need("trainer", Trainer.check_start, "docs/trainers.md")


def affordable(
    verdicts: Sequence[Verdict], trainable: Collection[str] | None, budget: Budget, lab: Lab
) -> list[Verdict]:
    """The selected capabilities that can be trained and that the budget pays for. `trainable`:
    those that there can be tasks for; None: all that are no controls."""
    able: list[Verdict] = []
    for verdict in (v for v in verdicts if v.selected):
        if not verdict.control if trainable is None else verdict.name in trainable:
            able.append(verdict)
        else:
            why = "a control" if verdict.control else "not among the suite's capabilities()"
            lab.log(f"{verdict.name} is selected but not trained: it is {why}")
    most = budget.capabilities(budget.left(lab))
    for verdict in able[most:]:
        why = f"budget and method.max_capabilities allow {most}"
        lab.log(f"{verdict.name} is selected but not trained: {why}")
    return able[:most]


def train_experts(
    base: AgentSpec,
    chosen: Sequence[Verdict],
    training: TrainingTasks,
    lab: Lab,
    budget: Budget,
    compose: Compose,
    write: Callable[..., None],
) -> list[Expert]:
    """An adapter for each capability with tasks, or one for all, without untrained ones."""
    descriptions = {verdict.name: verdict.capability.description for verdict in chosen}
    if training and budget.settings.joint:
        training = {JOINT: interleave(list(training.values()))}
    experts: list[Expert] = []
    report: list[dict[str, Any]] = []
    for n, (name, tasks) in enumerate(training.items()):
        share, before = budget.left(lab) // (len(training) - n), lab.budget_left()
        bare = (name, descriptions.get(name, ""), tasks)
        expert = _train(base, bare, share, lab, budget.settings.adapter_reward, experts, compose)
        if expert is not None:
            experts.append(expert)
            cost = {"share": share, "spent": before - lab.budget_left()}
            adapter = expert.adapter.name
            report.append({"name": name, "adapter": adapter, "tasks": len(tasks), **cost})
        write(training=report)
    return experts


def _train(
    base: AgentSpec,
    bare: tuple[str, str, tuple[Task, ...]],
    rollouts: int,
    lab: Lab,
    reward: str,
    others: Sequence[Expert],
    compose: Compose,
) -> Expert | None:
    """`bare`: the expert without its adapter; `others`: those that were trained before it."""
    name, _, tasks = bare

    def expert(agent: AgentSpec) -> Expert:
        new = [a for a in agent.adapters if a not in base.adapters]
        if len(new) != 1:
            raise UserError(
                f"the trainer returned {len(new)} new adapters for {name!r}; one is expected. "
                "Change `trainer`."
            )
        return Expert(*bare, replace(new[0], capability=name))

    def whole(agent: AgentSpec) -> AgentSpec:
        return compose([*others, expert(agent)])

    seed = stable_seed(lab.seed, "trace", "train", name)
    job = TrainingJob(name, base, tasks, rollouts, seed, reward, whole=whole)
    agent = lab.trainer.train(job, lab)
    return None if agent == base else expert(agent)


def composed(
    base: AgentSpec, settings: TraceSettings, evidence: Evidence, experts: Sequence[Expert]
) -> AgentSpec:
    """The base agent with the adapters that are there, if any, and a router that knows only them;
    its version names what is in it. One joint adapter has no router, and takes the place of the
    base agent's own, from which it was trained on."""
    if not experts:
        return base
    joint = settings.joint
    names = "\n".join(expert.adapter.name for expert in experts)
    return replace(
        base,
        version=f"trace-{len(experts)}-{hashlib.sha256(names.encode()).hexdigest()[:8]}",
        adapters=(*(() if joint else base.adapters), *(expert.adapter for expert in experts)),
        router=None if joint else settings.route.router(experts, evidence),
    )


# -- what routes are learned from -----------------------------------------------------------------


class TrainingEvidence:
    """Of one fit."""

    def __init__(self, lab: Lab, base: AgentSpec) -> None:
        start = start_of(base)
        self.otherwise: str | None = None if start is None else start.name
        self.fitted: dict[tuple[str, ...], dict[str, Any]] = {}
        self.log = lab.log
        self._lab, self._base = lab, base
        self._states: dict[tuple[str, ...], Sequence[State]] = {}

    def states(self, tasks: Sequence[Task]) -> Sequence[State]:
        key = tuple(task.id for task in tasks)
        if key not in self._states:
            openings = [
                (with_guidance(step.messages, self._base.prompt), step.tools)
                for step in first_steps(self._lab, tasks)
            ]
            self._states[key] = self._lab.prompt_states(openings)
        return self._states[key]


def first_steps(lab: Lab, tasks: Sequence[Task]) -> Iterator[Step]:
    """Those of the tasks that open: generated code may fail at any time, which is logged."""
    for task in tasks:
        try:
            first = usable(protocols.performed(lab.suite_of(task), task)[0])
        except Exception as error:
            if isinstance(error, UserError) and not isinstance(error, SourceError):
                raise  # such as a sandbox that cannot be started
            lab.log(f"no example for the router from {task.id}: {type(error).__name__}: {error}")
            continue
        yield first


def finished(
    base: AgentSpec, traced: AgentSpec, settings: TraceSettings, tasks: Sequence[Task], lab: Lab
) -> AgentSpec:
    """The base agent with one adapter, trained on the target with all that is left: from the sum of
    what was `traced`, or from the base agent's where that is nothing."""
    start = summed(base, traced, settings.weight)
    if start != base:
        lab.checkpoint(start)
    rollouts, seed = lab.budget_left(), stable_seed(lab.seed, "trace", FINISH)
    job = TrainingJob(FINISH, start, tasks, rollouts, seed, settings.reward)
    return lab.trainer.train(job, lab)


def summed(base: AgentSpec, traced: AgentSpec, weight: float) -> AgentSpec:
    """The base agent with the sum of the adapters that are new in `traced`, each times `weight`."""
    new = [a for a in traced.adapters if a not in base.adapters]
    if not new:
        return base
    weights = tuple((a.name, weight) for a in new)
    if (first := start_of(base)) is not None:
        weights = (*weights, (first.name, around(w for _, w in weights)))
    merged = compress(merge(Mixture(weights), (*base.adapters, *new)), new[0], "merged")
    return replace(base, version="merged", adapters=(merged,))


def with_finish(plan: MethodPlan, budget: Budget, trainer: Trainer) -> MethodPlan:
    """The plan of what comes before, and of the last training."""
    trainer.plan_training(budget.finish, FINISH, ())
    last = Phase("training on the target", budget.finish, most=True, trains=True)
    phases, needs = (*plan.phases, last), (*plan.needs, GOES_ON)
    plan = replace(plan, phases=phases, needs=needs, adapters=plan.adapters + 1)
    return replace(plan, routed=False, yardsticks=())
