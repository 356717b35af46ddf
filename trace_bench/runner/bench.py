"""The parts of a run, built and checked before anything is run, also by the first prompts of
held-out tasks: tools must reach the model, prompts leave room for a turn, servers answer one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from trace_bench.core.beginning import Beginning, read_beginning
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    Method,
    MethodPlan,
    Policy,
    RunContext,
    Suite,
    Trainer,
    TurnRequest,
    Yardstick,
)
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import write_json
from trace_bench.core.types import Message, Step, Task, Tool
from trace_bench.llm.roles import Roles
from trace_bench.play.steps import opened
from trace_bench.play.suites import tags, tasks_of
from trace_bench.runner import build
from trace_bench.runner.build import MAKER, Log
from trace_bench.runner.plan import (
    check_needs,
    checks,
    development_tasks,
    plan_of,
    points_of,
    shown_to,
    training_tasks,
)
from trace_bench.settings.identity import Place, model_path
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import PolicySettings, Settings


@dataclass(frozen=True)
class Bench:
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
    held_out: Sequence[Task]
    development: Sequence[Task]  # of the curve and of the router's figures
    points: Sequence[int]  # the rollout counts of the curve
    beginning: Beginning | None  # None: the bare model
    policy: Policy
    log: Log

    @property
    def acting_model(self) -> str:
        """The base agent's `model`: path or name of the weights, or a scripted policy's name."""
        policy = self.parts["policy"]
        return policy.label if policy.declared.scripted else model_path(self.settings, self.parts)

    @property
    def yardsticks(self) -> tuple[Yardstick, ...]:
        """The method's yardsticks that the run also trains."""
        return self.plan.yardsticks if self.settings.evaluation.yardsticks else ()

    def write_tags(self) -> None:
        """{task id: [words]} of every held-out task, if the suite's class says where they stand."""
        path, keys = self.place.folder / TASKS, self.parts["env"].declared.tag_keys
        if keys and not path.exists():
            write_json(path, {task.id: tags(task, keys) for task in self.held_out})

    def header(self) -> list[str]:
        """Method, environment, agent, budget and folder, and what is known to add nothing."""
        settings, parts, suite = self.settings, self.parts, self.suite
        count = settings.evaluation.trials
        trained = f", trainer={parts['trainer'].label}" if self.plan.trains else ""
        if trained and (algorithm := parts["trainer"].options.get("algorithm")):
            trained += f" by {algorithm['name']}"
        trials = f", {count} trials each" if count > 1 else ""
        learned = f"{len(self.train)} training tasks, " if self.plan.learns else ""
        return [
            f"method={parts['method'].label} on {suite.name}/{suite.variant}: {learned}"
            f"{len(self.held_out)} held-out tasks ({settings.evaluation.split}{trials}), "
            f"protocol {settings.protocol}",
            f"agent: {self.acting_model}, policy={parts['policy'].label}{trained}",
            *([f"begins with: {settings.agent}"] if settings.agent else []),
            f"budget: {settings.budget} rollouts, seed {settings.seed}",
            f"folder: {self.place.folder}",
        ]


def build_bench(
    settings: Settings,
    parts: Mapping[str, Part],
    place: Place,
    stack: ExitStack,
    log: Log,
    new: bool,
) -> Bench:
    """Builds all parts; `stack` closes those that hold resources. Raises UserError for every error
    that can be found before anything is run; slow checks are for a `new` run only."""
    llm = place.folder / "llm.jsonl"
    roles = stack.enter_context(closing(build.make_roles(settings, llm, log)))
    clean_up = partial(build.clean_up, settings)
    context = build.run_context(
        settings, parts, roles.ask, **vars(place), elsewhere=MAKER, clean_up=clean_up
    )
    suite = stack.enter_context(closing(build.make_suite(settings, parts, context, log)))
    trainer: Trainer = parts["trainer"].make(context)
    method: Method = parts["method"].make(context)
    train = training_tasks(settings, suite, shown_to(parts, context.model, suite))
    beginning = None if settings.agent is None else read_beginning(settings.agent)
    plan = plan_of(settings, method, trainer, len(train), beginning)
    for check in checks(settings, parts, suite, trainer, plan, beginning, context.model):
        check()
    context = replace(context, suite=suite)
    policy = stack.enter_context(closing(build.make_policy(parts, context)))
    check_needs(plan, parts, suite, trainer, policy)
    limit = settings.evaluation.limit
    held_out = tasks_of(suite, settings.evaluation.split)[:limit]
    points = points_of(settings.checkpoints, settings.budget, plan.learns)
    development = development_tasks(suite, settings.env.dev_split, bool(points))
    bench = Bench(
        settings, parts, place, context, suite, roles, trainer, method, plan, train, held_out,
        development[: limit if settings.rehearsal else None], points, beginning, policy, log,
    )  # fmt: skip
    if new:
        check_prompts(policy.context, policy.first_prompt, suite, held_out)
        if (said := try_turn(policy, suite, held_out, settings.policy)) is not None:
            log(said)
    if plan.trains:
        trainer.preflight(new)
    return bench


LOOKED_AT = 8  # tasks
FirstPrompt = Callable[[Sequence[Message], Sequence[Tool]], int]  # as `Policy.first_prompt`

NO_TASK: Message = {"role": "user", "content": "What can you do for me?"}
"""The prompt of a turn that is asked for where no task's prompt is known beforehand."""


def check_prompts(
    context: int | None, size: FirstPrompt, suite: Suite, tasks: Sequence[Task]
) -> None:
    """Raises UserError if no first prompt, by its `size`, fits the context of so many tokens, or if
    tools do not reach the model. Tasks that cannot be reset are left to the run."""
    if context is None or suite.asks_user():
        return
    sizes = [size(step.messages, step.tools) for step in _opened(suite, tasks)]
    if sizes and min(sizes) >= context:
        raise UserError(
            f"none of {len(sizes)} first prompts of held-out tasks fits: they have {min(sizes)} or "
            f"more tokens, and policy.context={context} must leave room for a turn. Change "
            "`policy.context`, or `model` if it allows no more."
        )


def try_turn(
    policy: Policy, suite: Suite, tasks: Sequence[Task], how: PolicySettings
) -> str | None:
    """What a policy that can be asked beforehand says about one turn, given the shortest of the
    first prompts, or `NO_TASK` where none is known. Raises UserError."""
    if not policy.has(Policy.try_turn):  # no tasks are opened in vain
        return None
    steps = [] if suite.asks_user() else list(_opened(suite, tasks))
    first = min(steps, key=lambda step: len(str(step.messages)), default=Step((NO_TASK,)))
    asked = TurnRequest(-1, first.messages, first.tools, temperature=how.eval_temperature)
    return policy.try_turn(replace(asked, max_tokens=how.max_tokens))


def _opened(suite: Suite, tasks: Sequence[Task]) -> Iterator[Step]:
    """What the environments of some of these tasks return at reset."""
    some = tasks[:: max(1, len(tasks) // LOOKED_AT)][:LOOKED_AT]
    return (step for step in opened(suite, some) if isinstance(step, Step))
