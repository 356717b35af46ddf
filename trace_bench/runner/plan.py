"""The method's plan, its training tasks, and what is refused before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from trace_bench.core.beginning import Beginning
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Method, MethodPlan, PlannedRun, Policy, Suite, Trainer
from trace_bench.core.run_files import DEMONSTRATED
from trace_bench.core.store import read_if_there
from trace_bench.core.types import CHARGED, Task
from trace_bench.play.suites import about_of, in_both, mark, name_of, splits_of, tasks_of
from trace_bench.policies.routing.classifier import STATES
from trace_bench.runner.build import Parts, models_in_roles
from trace_bench.sandbox.choose import engine_of, walled
from trace_bench.settings.identity import weights_hash
from trace_bench.settings.schema import SandboxSettings, Settings
from trace_bench.trainers.job import start_of


def plan_of(
    settings: Settings,
    method: Method,
    trainer: Trainer,
    tasks: int,
    beginning: Beginning | None = None,
) -> MethodPlan:
    """The method's plan, with what the agent needs that the run begins with. Raises UserError."""
    run = PlannedRun(
        budget=settings.budget,
        tasks=tasks,
        trainer=trainer,
        points=points_of(settings.checkpoints, settings.budget),
        charged=CHARGED[settings.accounting],
        models=frozenset(models_in_roles(settings)),
    )
    plan: object = method.plan(run)
    if not isinstance(plan, MethodPlan):
        raise UserError(
            f"{type(method).__name__}.plan returned {type(plan).__name__} instead of a "
            "trace_bench.MethodPlan (docs/methods.md). Change `method`."
        )
    check_budget(settings.method.name, run.budget, plan)
    return with_beginning(plan, beginning)


def check_budget(method: str, budget: int, plan: MethodPlan) -> None:
    """Raises UserError if the budget leaves a phase fewer rollouts than it needs."""
    short = [phase for phase in plan.phases if phase.rollouts < phase.least]
    if not short:
        return
    least = [phase for phase in plan.phases if phase.least]
    each = ", ".join(f"{phase.name} {phase.least} ({phase.setting})" for phase in least)
    raise UserError(
        f"budget={budget} is too small for method={method}, which needs at least "
        f"{sum(phase.least for phase in least)} rollouts: {each}; as it is, {short[0].name} has "
        f"{max(0, short[0].rollouts)}. Raise `budget` or change one of these."
    )


def points_of(checkpoints: Sequence[int] | None, budget: int, learns: bool = True) -> list[int]:
    """The rollout counts of the curve's points, ascending. `learns`: whether the method does; else
    there are none but those that are asked for."""
    if checkpoints is None:
        return [budget * n // 4 for n in (1, 2, 3, 4)] if learns else []
    if late := [c for c in checkpoints if c > budget]:
        raise UserError(
            f"checkpoints={late} lie beyond budget={budget}; allowed: 0 to {budget}. Change "
            "`checkpoints`."
        )
    return sorted(set(checkpoints))


def check_needs(
    plan: MethodPlan, parts: Parts, suite: Suite, trainer: Trainer, built: Policy | None = None
) -> None:
    """Raises UserError for an ability that the method needs and this run lacks. `built`: the
    policy; without it, its class is asked, if that is known."""
    policy = parts["policy"]
    if plan.learns and policy.declared.scripted:
        raise UserError(
            f"policy={policy.label} is scripted and cannot be trained by "
            f"method={parts['method'].label}. Change `policy` to local or openai, or `method` to "
            "base."
        )
    for need in plan.needs:
        if need.group == "policy":
            able = policy.may(need.ability) if built is None else built.has(need.ability)
        else:
            able = (suite if need.group == "env" else trainer).has(need.ability)
        if not able:
            label = name_of(suite) if need.group == "env" else parts[need.group].label
            hint = f" {need.hint}" if need.hint else ""
            raise UserError(
                f"method={parts['method'].label} needs "
                f"`{need.ability.__qualname__}` of the setting `{need.group}`, and "
                f"{label} does not have it.{hint} {need.page} explains it. Change `{need.group}` "
                "or `method`."
            )


def check_sandbox(how: SandboxSettings, plan: MethodPlan) -> None:
    """Raises UserError if generated programs would run outside a container."""
    contained = engine_of(how).contains or how.allow_untrusted
    if plan.questions.get("generator") and not contained:
        raise UserError(
            f"llm.generator.by=endpoint writes programs, and sandbox={how.name} would run them "
            f"with this user's rights. Set `sandbox` to {walled()} (or, if you have read them, "
            "sandbox=process sandbox.allow_untrusted=true)."
        )


def check_shown(suite: Suite, split: str, demonstrated: Mapping[str, str]) -> None:
    """Raises UserError for held-out tasks that the agent was shown."""
    prints = frozenset(demonstrated.values())
    for task in tasks_of(suite, split) if demonstrated else ():
        if task.id in demonstrated or mark(task) in prints:
            raise UserError(
                f"the agent was shown {task.id} of evaluation.split={split} when it was made. "
                "Change `evaluation.split` or `model`."
            )


def development_tasks(suite: Suite, split: str, some: bool) -> list[Task]:
    """Those of the development split, if the suite has one. Raises UserError if `some` are needed
    and it is empty."""
    return tasks_of(suite, split, some) if split in splits_of(suite) else []


def check_splits(settings: Settings, suite: Suite, plan: MethodPlan) -> None:
    """Raises UserError for a split that the suite does not have, for held-out tasks that cannot be
    used, and under protocol=held_out for training tasks that are also reported."""
    named = {"evaluation.split": settings.evaluation.split}
    if plan.learns:
        named |= {"env.train_split": settings.env.train_split}
    if points_of(settings.checkpoints, settings.budget, plan.learns):
        named |= {"env.dev_split": settings.env.dev_split}
    for setting, split in named.items():
        if split not in (there := splits_of(suite)):
            refusal = unknown(f"split of {suite.name}/{suite.variant}", split, there, setting)
            curve = " Without a curve it is not needed: checkpoints=[]."
            raise UserError(f"{refusal}{curve if setting == 'env.dev_split' else ''}")
    train, reported = settings.env.train_split, settings.evaluation.split
    count = len(tasks_of(suite, reported))
    if not plan.learns or settings.protocol != "held_out":
        return
    if shared := in_both(suite, train, reported):
        raise UserError(
            f"protocol=held_out reports on other tasks than it trains on, and {len(shared)} of "
            f"{count} tasks of evaluation.split={reported} are in env.train_split={train} too, "
            f"such as {shared[0]}. Change one of them, or set `protocol=paper` to train and report "
            "on the same tasks (every table then says so)."
        )


def shown_to(parts: Parts, model: str, suite: Suite) -> Mapping[str, str]:
    """The tasks, {id: fingerprint}, that the model was shown by `trace_bench.tiny make`; none where
    a scripted policy acts."""
    scripted = parts["policy"].declared.scripted
    record = {} if scripted else read_if_there(Path(model) / DEMONSTRATED)
    return record["tasks"] if record.get("suite") == name_of(suite) else {}


def training_tasks(
    settings: Settings, suite: Suite, demonstrated: Mapping[str, str] = MappingProxyType({})
) -> list[Task]:
    """The method's training tasks without those that the agent was `demonstrated`."""
    if settings.protocol == "paper":
        return tasks_of(suite, settings.evaluation.split)[: settings.evaluation.limit]
    split, wanted = settings.env.train_split, settings.env.train_tasks
    if split not in splits_of(suite):
        return []  # refused by `check_splits` where they are needed
    every = tasks_of(suite, split, some=False)  # those that need some say so
    prints = frozenset(demonstrated.values())
    tasks = [task for task in every if task.id not in demonstrated and mark(task) not in prints]
    if every and not tasks:
        raise UserError(
            f"the agent was shown every task of env.train_split={split}, so nothing is left to "
            "train on. Change `env.train_split`, or make the agent from another split."
        )
    if wanted is not None and wanted > len(tasks):
        raise UserError(
            f"env.train_tasks={wanted} is more than the split {split} has; "
            f"allowed: 1 to {len(tasks)}, or null for all. Change `env.train_tasks`."
        )
    return tasks[:wanted]


def check_beginning(
    beginning: Beginning, plan: MethodPlan, trainer: Trainer, scripted: bool, weights: str | None
) -> None:
    """Raises UserError for an agent that this run cannot begin with. `scripted`: the policy has no
    weights; `weights`: the hash of this run's base model, None if unknown."""
    if scripted:
        raise UserError(
            "agent=... needs a policy that runs a model; a scripted one acts the same whatever "
            "the agent is. Change `policy` to local or openai, or leave `agent` out."
        )
    if None not in (beginning.weights, weights) and beginning.weights != weights:
        raise UserError(
            f"the agent was made of a model with other weights ({beginning.weights}) than this "
            f"run's ({weights}). Change `model` or `agent`."
        )
    if not plan.trains or (start := start_of(beginning.agent)) is None:
        return
    if not trainer.has(Trainer.check_start):
        raise UserError(
            f"the agent has the adapter {start.name}, and {type(trainer).__name__} does not train "
            "on from one (`Trainer.check_start`, see docs/trainers.md). Change "
            "`trainer` or `agent`."
        )
    trainer.check_start(start)


def checks(
    settings: Settings,
    parts: Parts,
    suite: Suite,
    trainer: Trainer,
    plan: MethodPlan,
    beginning: Beginning | None,
    model: str,
) -> Iterator[Callable[[], object]]:
    """What is asked of a run before its policy is built; each raises UserError. `model`: the base
    model's weights."""
    scripted = parts["policy"].declared.scripted
    yield partial(about_of, suite)  # refused now rather than when the summary is written
    yield partial(check_splits, settings, suite, plan)
    yield partial(check_shown, suite, settings.evaluation.split, shown_to(parts, model, suite))
    yield partial(check_sandbox, settings.sandbox, plan)
    yield partial(check_needs, plan, parts, suite, trainer)
    if beginning is not None:
        weights = None if scripted else weights_hash(model)
        yield partial(check_beginning, beginning, plan, trainer, scripted, weights)


def with_beginning(plan: MethodPlan, beginning: Beginning | None) -> MethodPlan:
    """The plan with what the evaluation of the beginning's own adapters and router needs."""
    if beginning is None:
        return plan
    kind = (beginning.agent.router or {}).get("kind")
    adapters = max(plan.adapters, len(beginning.agent.adapters))
    needs = (*plan.needs, STATES) if kind == "classifier" else plan.needs
    routed = plan.routed or kind == "zero_shot"
    return replace(plan, adapters=adapters, routed=routed, needs=needs)
