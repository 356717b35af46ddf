"""`dry_run=true`: a run's phases, its costs, and what keeps it from running here. Requests and
tokens are estimates from the suite's typical lengths, which are printed with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core.beginning import read_beginning
from trace_bench.core.errors import UserError, outlasting
from trace_bench.core.protocols import MethodPlan, Phase, Policy, RunContext, Suite, Trainer
from trace_bench.core.types import AgentSpec, Task
from trace_bench.play.suites import tasks_of
from trace_bench.policies.hub import check_device
from trace_bench.results.statistics import can_show
from trace_bench.runner import build
from trace_bench.runner.bench import check_prompts
from trace_bench.runner.build import Parts, models_in_roles
from trace_bench.runner.plan import (
    checks,
    development_tasks,
    plan_of,
    points_of,
    shown_to,
    training_tasks,
)
from trace_bench.settings.identity import locate, model_path, only_writer, served_name
from trace_bench.settings.models import billions_of
from trace_bench.settings.schema import SandboxSettings, Settings
from trace_bench.trainers.memory import GPU

CONFIG = "config.json"  # of a model's folder
T = TypeVar("T")


@dataclass
class Forecast:
    """One dry run. `missing` collects what would keep the run from working here; what could not be
    built is None, and without a method's plan there is that of a run that trains nothing."""

    settings: Settings
    parts: Parts
    missing: list[str] = field(default_factory=list)
    suite: Suite | None = None
    trainer: Trainer | None = None
    plan: MethodPlan = field(default_factory=partial(MethodPlan, learns=False))
    held_out: Sequence[Task] = ()
    phases: tuple[Phase, ...] = ()

    def attempt(self, make: Callable[[], T]) -> T | None:
        """The result of `make`; on a UserError, None, and the reason is added to `missing`."""
        try:
            return make()
        except UserError as error:
            if str(error) not in self.missing:
                self.missing.append(str(error))
            return None

    def tasks(self, of: Callable[[Suite], Sequence[Task]]) -> Sequence[Task]:
        """Those that the function has of the suite; none if unknown."""
        suite = self.suite
        return () if suite is None else self.attempt(lambda: of(suite)) or ()

    def make(self, group: str) -> Any:
        """The part of this group, which asks no model."""
        return self.attempt(lambda: self.parts[group].make(self.context))

    @cached_property
    def model(self) -> str:
        """The agent's weights; empty if there are none."""
        return self.attempt(lambda: model_path(self.settings, self.parts)) or ""

    @property
    def context(self) -> RunContext:
        facts = {"fingerprint": "dry-run", "suite": self.suite, "model": self.model}
        return build.run_context(self.settings, self.parts, _no_answer, **facts)


@outlasting()
def describe(settings: Settings, parts: Parts) -> tuple[str, bool]:
    """The plan as text, and whether something is missing. Raises nothing for that: it is listed."""
    f = Forecast(settings, parts)
    f.suite = _suite(f)
    f.trainer = f.make("trainer")
    f.attempt(partial(_place, settings, parts))
    if (tracker := f.make("tracker")) is not None:
        tracker.close()
    _plan(f)
    env = "/".join(n for n in (parts["env"].label, settings.env.suite) if n)
    total = sum(p.rollouts for p in f.phases)
    if settings.accounting == "strict":  # the budget ends the method
        total -= max(0, sum(p.rollouts for p in f.plan.phases) - settings.budget)
    lines = [
        f"plan: method={parts['method'].label} on {env}, budget {settings.budget} "
        f"({settings.accounting}), protocol {settings.protocol}, seed {settings.seed}",
        "",
        f"{'phase':<34}{'rollouts':>12}",
        *(f"{p.name:<34}{('<= ' if p.most else '') + str(p.rollouts):>12}" for p in f.phases),
        *([] if f.suite is not None else ["(how many tasks there are is not known here)"]),
        f"{'in all, at most':<34}{total:>12}",
        *([can_show(len(f.held_out), 1, settings.evaluation.trials)] if f.held_out else []),
        "",
        *_requests(f, total),
        "",
        *_machines(f, total),
    ]
    _asked(f)
    head = "what keeps it from running here:" if f.missing else "nothing keeps it from running here"
    lines += ["", head, *(f"  - {what}" for what in f.missing)]
    if f.suite is not None:
        f.suite.close()
    return "\n".join(lines), bool(f.missing)


def _no_answer(role: str, messages: object, schema: object = None) -> str:
    raise UserError("no model is asked in a dry run")


def _asked(f: Forecast) -> None:
    """Adds what keeps models in roles, and a policy without weights here, from being asked for what
    they are to say, which is left to the run."""
    for name, how in models_in_roles(f.settings).items():
        if (role := f.attempt(partial(build.make_role, name, how))) is not None:
            role.client.close()
    silent = build.unanswered(f.settings, f.parts)
    f.missing += [what for what in silent if what not in f.missing]
    declared = f.parts["policy"].declared
    if not declared.at_servers and not declared.scripted:
        return
    if (policy := f.attempt(partial(build.make_policy, f.parts, f.context))) is not None:
        with closing(policy):
            if declared.at_servers and not silent:
                f.attempt(partial(policy.load, AgentSpec(f.model)))


def _place(settings: Settings, parts: Parts) -> None:
    """Raises UserError for a folder that the run cannot have."""
    place = locate(settings, parts)
    with only_writer(place.folder):
        place.belongs()


def _suite(f: Forecast) -> Suite | None:
    """The suite, for its tasks: in the sandbox if available, else in this process."""
    suite = f.attempt(lambda: build.make_suite(f.settings, f.parts, f.context))
    if suite is None and f.settings.sandbox.name != "inline":
        here = replace(f.settings, sandbox=SandboxSettings("inline"))
        with suppress(UserError):
            return build.make_suite(here, f.parts, f.context)
    return suite


def _plan(f: Forecast) -> None:
    """Sets the plan, the number of held-out tasks and the phases."""
    settings, suite, trainer, method = f.settings, f.suite, f.trainer, f.make("method")
    if method is not None and trainer is not None:
        agent = settings.agent
        shown = partial(shown_to, f.parts, f.model)
        tasks = len(f.tasks(lambda suite: training_tasks(settings, suite, shown(suite))))
        beginning = None if agent is None else f.attempt(lambda: read_beginning(agent))
        plan = f.attempt(lambda: plan_of(settings, method, trainer, tasks, beginning))
        f.plan = plan or f.plan
        if plan is not None and suite is not None:
            for check in checks(settings, f.parts, suite, trainer, plan, beginning, f.model):
                f.attempt(check)
    how, split, learns = settings.evaluation, settings.env.dev_split, f.plan.learns
    f.held_out = f.tasks(lambda suite: tasks_of(suite, how.split)[: how.limit])
    points = f.attempt(lambda: points_of(settings.checkpoints, settings.budget, learns)) or ()
    dev = f.tasks(lambda suite: development_tasks(suite, split, bool(points)))
    f.phases = tuple(_phases(f, len(points) * len(dev)))


def _phases(f: Forecast, curve: int) -> Iterator[Phase]:
    """The phases in their order; the floors, which cost next to nothing, are left out."""
    plan, how = f.plan, f.settings.evaluation
    each = len(f.held_out) * how.trials
    yield Phase("base evaluation", each)
    yield from plan.phases
    if curve:
        yield Phase("points of the curve", curve, most=True)
    if plan.learns or plan.adapters:
        yield Phase("final evaluation", each)
    if plan.adapters > 1 and how.routing:
        yield Phase("every adapter alone", plan.adapters * each, most=True)
    for one in plan.yardsticks if how.yardsticks else ():
        yield Phase(f"{one.title}, a yardstick", f.settings.budget + each, most=True)


def _requests(f: Forecast, rollouts: int) -> list[str]:
    """Estimates of turns, tokens and questions, if the suite has typical episode lengths."""
    questions = dict(f.plan.questions)
    typical, most = f.parts["env"].declared.typical, f.settings.policy.max_turns
    roles = models_in_roles(f.settings)
    lines = [
        f"agent: at most {rollouts * most} turns (the suite does not say how long its episodes are)"
    ]
    if typical is not None:
        turns = math.ceil(rollouts * typical.turns)
        asked, read = math.ceil(rollouts * typical.user), typical.prompt - typical.common
        lines = [
            f"agent: about {turns} turns, {_short(turns * typical.prompt)} prompt and "
            f"{_short(turns * typical.completion)} completion tokens (assumed: {typical.turns:g} "
            f"turns an episode, {typical.prompt} + {typical.completion} tokens a turn; at most "
            f"{most} turns)"
        ]
        if asked and "user" in roles:  # the agent's instructions and tools it does not read
            lines.append(
                f"user: about {asked} requests to {roles['user'].model}, {_short(asked * read)} "
                f"prompt and {_short(asked * typical.reply)} completion tokens (assumed: "
                f"{typical.user:g} an episode, {read} + {typical.reply} tokens each)"
            )
    for name, role in roles.items():
        if questions.get(name):
            asked = questions[name] * role.tries
            read = asked * max(0, role.context - role.max_tokens)
            lines.append(
                f"{name}: up to {asked} requests to {role.model}, at most {_short(read)} prompt "
                f"and {_short(asked * role.max_tokens)} completion tokens"
            )
    if f.plan.routed:
        chosen = ("final evaluation", "points of the curve")
        routed = sum(p.rollouts for p in f.phases if p.name in chosen)
        lines.append(f"router: up to {routed} requests to the agent's base model, a token each")
    return lines


def _machines(f: Forecast, rollouts: int) -> list[str]:
    """Estimates of GPUs from the model's size, and the settings that do not go with it; optimizer
    steps and hours."""
    served = f.parts["policy"].declared.at_servers
    name = served_name(f.settings.model) if served else f.settings.model.name
    size = f.attempt(lambda: billions_of(f.settings, f.parts))
    lines = []
    if served:
        gpus = "GPUs as its size wants" if size is None else _gpus(2 * size)
        lines.append(f"serving {name}: {gpus} (bfloat16, without the cache of keys and values)")
    scripted = f.parts["policy"].declared.scripted
    if not served and not scripted:
        lines += (f.model and f.attempt(lambda: _agent_here(f))) or []
        f.attempt(lambda: check_device(f.settings.policy.device))
    if f.plan.trains and not scripted and f.trainer is not None:
        needed, missing = f.trainer.machines(size)
        lines += needed
        if trained := sum(phase.rollouts for phase in f.plan.phases if phase.trains):
            typical, adapters = f.parts["env"].declared.typical, max(1, f.plan.adapters)
            lines += f.trainer.outlook(adapters, trained, rollouts - trained, typical)
        if (Path(f.model) / CONFIG).is_file():
            f.attempt(partial(f.trainer.preflight, True))
        if served and f.model and f.trainer.weights_here and not Path(f.model).is_dir():
            missing.insert(
                0, f"the weights of {f.model} in a folder here (model.path), for training"
            )
        f.missing += [m for m in missing if m not in f.missing]
    return lines or ["no GPU is needed"]


def _agent_here(f: Forecast) -> list[str]:
    """Raises UserError if the agent's weights are to be in a folder that has none, or with a chat
    template that cannot be played, a context that the model lacks or that holds no first prompt."""
    place = Path(f.model)
    if (place / CONFIG).is_file():
        from trace_bench.policies.chat import Chat
        from trace_bench.policies.loading import load_config, load_tokenizer  # imports torch
        from trace_bench.policies.local import context_of

        how = f.settings.policy
        chat = Chat(load_tokenizer(f.model), f.model, how.thinking)
        if f.parts["policy"].may(Policy.first_prompt):
            context = context_of(load_config(f.model), how.context)
            if f.suite is not None:
                check_prompts(context, chat.first_prompt, f.suite, f.held_out)
        return []
    if place.is_dir() or place.is_absolute() or f.model.startswith("."):
        raise UserError(
            f"a model in the folder {place} (there is no {place / CONFIG}). Change the setting "
            "`model`."
        )
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(f.model, CONFIG), str):
        try:
            get_hf_file_metadata(hf_hub_url(f.model, CONFIG), timeout=3.0)
        except Exception as error:  # of the hub, of its client, of the network
            raise UserError(
                f"a model named {place}: it is no folder here, not in the hub's cache, and the hub "
                f"does not give it ({type(error).__name__}). Change `model.path`."
            ) from error
    return [f"model {place}: no folder here, so it is read from the hub or its cache"]


def _gpus(gigabytes: float) -> str:
    return f"{gigabytes:.4g} GB of weights, {math.ceil(gigabytes / (0.8 * GPU))} GPU(s) of {GPU} GB"


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
