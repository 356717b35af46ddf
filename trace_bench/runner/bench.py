"""The parts of a run, built and checked before anything is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    Closes,
    Method,
    MethodPlan,
    Policy,
    Preflight,
    RunContext,
    Suite,
    Trainer,
    Yardstick,
)
from trace_bench.core.types import Task
from trace_bench.llm.roles import Roles
from trace_bench.play.suites import about_of, tasks_of
from trace_bench.runner import elsewhere
from trace_bench.runner.beginning import beginning_of, check_beginning
from trace_bench.runner.build import (
    Log,
    check_needs,
    check_sandbox,
    check_splits,
    checkpoints,
    make_roles,
    make_suite,
    models_in_roles,
    plan_of,
    run_context,
    training_tasks,
)
from trace_bench.runner.evaluation import Wanted
from trace_bench.runner.folder import Place
from trace_bench.runner.prompts import check_prompts, try_turn
from trace_bench.settings.identity import model_path
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import Settings


@dataclass(frozen=True)
class Bench:
    """All parts of a run, before it starts."""

    settings: Settings
    parts: Mapping[str, Part]
    place: Place
    context: RunContext
    suite: Suite
    roles: Roles
    trainer: Trainer
    method: Method
    plan: MethodPlan
    train: Sequence[Task]
    policy: Policy
    log: Log


def build_bench(
    settings: Settings, parts: Mapping[str, Part], place: Place, stack: ExitStack, log: Log
) -> Bench:
    """Builds all parts; `stack` closes those that hold resources. Raises UserError for every error
    that can be found without running the policy or the trainer."""
    roles = stack.enter_context(closing(make_roles(settings, place.folder / "llm.jsonl", log)))
    context = run_context(
        settings,
        parts,
        fingerprint=place.fingerprint,
        folder=place.folder,
        identity=place.identity,
        ask=roles.ask if "user" in models_in_roles(settings) else None,
        judge=roles.ask if "judge" in models_in_roles(settings) else None,
        simulator=roles.ask if "simulator" in models_in_roles(settings) else None,
        elsewhere=elsewhere.MAKER,
        clean_up=lambda: elsewhere.clean_up(settings),
    )
    suite = make_suite(settings, parts, context, log)
    if isinstance(suite, Closes):
        stack.enter_context(closing(suite))
    trainer: Trainer = parts["trainer"].make(context)
    method: Method = parts["method"].make(context)
    about_of(suite)  # raises now rather than when the summary is written
    train = training_tasks(settings, suite)
    plan = plan_of(settings, method, trainer, len(train))
    check_splits(settings, suite, plan)
    check_sandbox(settings, plan)
    check_needs(plan, parts, suite, trainer)
    check_beginning(
        beginning_of(settings),
        plan,
        trainer,
        scripted=parts["policy"].scripted,
        weights=place.identity["model"]["sha256"],
    )
    checkpoints(settings, plan)
    context = replace(context, suite=suite)
    policy: Policy = stack.enter_context(closing(parts["policy"].make(context)))
    if not isinstance(policy.capacity, int) or policy.capacity < 1:
        raise UserError(
            f"policy={parts['policy'].label} has capacity={policy.capacity!r}; allowed: a whole "
            "number from 1 (how many live episodes it takes). Change `policy`."
        )
    return Bench(
        settings, parts, place, context, suite, roles, trainer, method, plan, train, policy, log
    )


def check_built(bench: Bench, new: bool) -> None:
    """Raises UserError for errors that only the built parts can show. Slow checks are made for a
    `new` run only."""
    check_needs(bench.plan, bench.parts, bench.suite, bench.trainer, bench.policy)
    if new:
        _check_turns(bench)
    if bench.plan.trains and isinstance(bench.trainer, Preflight):
        bench.trainer.preflight(new)


def _check_turns(bench: Bench) -> None:
    """Logs what is found out before the first episode about its prompt and its first turn."""
    tasks, policy = wanted(bench).tasks, bench.settings.policy
    found = (
        check_prompts(bench.policy, bench.suite, tasks),
        try_turn(
            bench.policy,
            bench.suite,
            tasks,
            temperature=policy.eval_temperature,
            max_tokens=policy.max_tokens,
        ),
    )
    for line in filter(None, found):
        bench.log(line)


def wanted(bench: Bench) -> Wanted:
    """What is evaluated, and how."""
    settings, evaluation = bench.settings, bench.settings.evaluation
    return Wanted(
        seed=settings.seed,
        tasks=tuple(tasks_of(bench.suite, evaluation.split))[: evaluation.limit],
        dev_split=settings.env.dev_split,
        trials=evaluation.trials,
        temperature=settings.policy.eval_temperature,
        retries=evaluation.retries,
        points=tuple(checkpoints(settings, bench.plan)),
        routing=evaluation.routing,
        max_lost=settings.max_lost,
    )


def acting_model(bench: Bench) -> str:
    """The base agent's `model`: the path or name of the weights, or a scripted policy's name."""
    policy = bench.parts["policy"]
    if policy.scripted:
        return policy.label
    return model_path(bench.settings, bench.parts)


def yardsticks(bench: Bench) -> tuple[Yardstick, ...]:
    """The method's yardsticks that the run also trains."""
    return bench.plan.yardsticks if bench.settings.evaluation.yardsticks else ()
