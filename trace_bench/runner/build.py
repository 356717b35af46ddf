"""The parts of a run by name: which class stands behind a setting. Imported when asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Method, Policy, Suite, Trainer
from trace_bench.core.types import CHARGED, Purpose
from trace_bench.envs.registry import Ask, suite
from trace_bench.settings.compose import UNTRAINED, model_path, served_name
from trace_bench.settings.schema import RoleSettings, Settings, build
from trace_bench.trainers.schedule import plan
from trace_bench.trainers.settings import Recipe, TrainerSettings, VerlSettings, full_iterations

if TYPE_CHECKING:
    from trace_bench.llm.roles import Role, Roles
    from trace_bench.runner.lab import Foreign
    from trace_bench.sandbox.choose import Box

TRAINING = ("grpo", "trace", "single_capability", "untargeted")
"""Methods that train with the trainer."""


def make_suite(settings: Settings, run: str = "unnamed", ask: Ask | None = None) -> Suite:
    """The tasks of the run in the box that was asked for; containers are labelled with `run`, and
    `ask` answers for the simulated user."""
    env, how = settings.env, settings.sandbox
    options = _options(settings)
    if how.name == "inline":
        return suite(env.name, env.suite, env.augmentation, options=options, ask=ask)
    from trace_bench.sandbox.choose import Wanted, boxed_suite

    wanted = Wanted(env.name, env.suite, env.augmentation, options, env.python)
    return boxed_suite(wanted, make_box(settings, run), ask, _say)


def make_box(settings: Settings, run: str) -> Box:
    """Where environments run, as the sandbox wants to know it."""
    from trace_bench.sandbox.choose import Box
    from trace_bench.sandbox.docker import Limits

    how = settings.sandbox
    return Box(
        name=how.name,
        workers=how.workers,
        deadline=how.deadline,
        start=how.start,
        retries=how.retries,
        limits=Limits(how.memory, how.cpus, how.processes, how.scratch),
        allow_untrusted=how.allow_untrusted,
        tag=how.tag,
        run=run,
    )


def foreign_suites(settings: Settings, run: str) -> Foreign:
    """(name, program text, names it is given, image) -> the suite that it defines, in a box."""
    from trace_bench.sandbox.foreign import generated_suite

    box = make_box(settings, run)
    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            _say(text)

    return lambda name, source, given, image: generated_suite(
        name, source, given, box, say_once, image
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _options(settings: Settings) -> dict[str, str]:
    """What only some environments know, as text."""
    env = settings.env
    user = "llm" if settings.llm.user.by == "endpoint" else "scripted"
    if env.name == "tau2":
        return {"user": user, "solo": str(env.solo).lower()}
    if env.suite == "official":
        return {"user": user, **({"source": env.source} if env.source else {})}
    return {}


def make_policy(settings: Settings, tasks: Suite) -> Policy:
    """What acts as the base agent."""
    how = settings.policy
    if how.name == "openai":
        return _openai(settings)
    if how.name != "local":
        return scripted(how.name, tasks)
    from trace_bench.policies.local import LocalPolicy

    return LocalPolicy(
        model_path(settings.model),
        batch=how.batch,
        context=how.context,
        threads=how.threads,
        device=how.device,
    )


def make_roles(settings: Settings, path: Path) -> Roles:
    """The models that play roles, with what they have answered so far in `path`."""
    from trace_bench.llm.roles import ROLES, Roles

    chosen = {name: getattr(settings.llm, name) for name in ROLES}
    players = {name: _role(name, how) for name, how in chosen.items() if how.by == "endpoint"}
    return Roles(players, path)


def _role(name: str, how: RoleSettings) -> Role:
    from trace_bench.llm.client import Endpoint, check_extra, check_urls, read_key
    from trace_bench.llm.roles import Role

    if not how.model:
        raise UserError(f"llm.{name}.by=endpoint needs llm.{name}.model (or llm.shared.model).")
    endpoint = Endpoint(
        check_urls(how.base_url or (), f"llm.{name}.base_url"),
        read_key(how.key_env, f"llm.{name}.key_env"),
        deadline=how.deadline,
        retries=how.retries,
        concurrency=how.concurrency,
    )
    return Role(
        endpoint,
        model=how.model,
        temperature=how.temperature,
        seed=how.seed,
        max_tokens=how.max_tokens,
        context=how.context,
        tries=how.tries,
        extra=check_extra(how.extra, f"llm.{name}.extra"),
    )


def _openai(settings: Settings) -> Policy:
    from trace_bench.llm.client import Endpoint, check_extra, check_urls, read_key
    from trace_bench.policies.openai import OpenAIPolicy

    how = settings.policy
    endpoint = Endpoint(
        check_urls(how.base_url or (), "policy.base_url"),
        read_key(how.key_env, "policy.key_env"),
        deadline=how.deadline,
        retries=how.retries,
        concurrency=how.batch,
    )
    extra = check_extra(how.extra, "policy.extra")
    return OpenAIPolicy(endpoint, served_name(settings.model), capacity=how.batch, extra=extra)


def scripted(name: str, tasks: Suite) -> Policy:
    """A floor (`idle`, `random`) or the ceiling (`reference`)."""
    from trace_bench.policies.scripted import IdlePolicy, RandomPolicy, ReferencePolicy

    if name == "idle":
        return IdlePolicy()
    if name == "random":
        return RandomPolicy()
    if name == "reference":
        return ReferencePolicy(tasks)
    raise unknown("policy", name, ["local", "openai", "idle", "random", "reference"], "policy")


def make_method(settings: Settings) -> Method:
    """The method; its settings reach it through the lab."""
    from trace_bench.methods import method

    return method(settings.method["name"])


def make_trainer(settings: Settings, run: str = "unnamed") -> Trainer:
    """What trains adapters; containers are labelled with `run`."""
    how = settings.policy
    if settings.trainer["name"] == "verl":
        from trace_bench.runner.verl import verl_facts
        from trace_bench.trainers.verl.trainer import VerlTrainer

        return VerlTrainer(verl_settings(settings), verl_facts(settings, run))
    from trace_bench.trainers.local import LocalTrainer

    return LocalTrainer(trainer_settings(settings), threads=how.threads, device=how.device)


def trainer_settings(settings: Settings) -> TrainerSettings:
    """The settings of trainer=local, typed."""
    values = {key: value for key, value in settings.trainer.items() if key != "name"}
    return build(TrainerSettings, values, "trainer")


def verl_settings(settings: Settings) -> VerlSettings:
    """The settings of trainer=verl, typed."""
    values = {key: value for key, value in settings.trainer.items() if key != "name"}
    return build(VerlSettings, values, "trainer")


def recipe(settings: Settings) -> Recipe:
    """What all trainers' settings have."""
    verl = settings.trainer["name"] == "verl"
    return verl_settings(settings) if verl else trainer_settings(settings)


def check_trainer(settings: Settings, new: bool = True) -> None:
    """What can be known to be wrong with the trainer before anything is played, as UserError. What
    takes long is looked at for a `new` run only."""
    name = settings.method["name"]
    if name == "sft" and settings.trainer["name"] != "local":
        raise UserError("method=sft trains in this process. Set `trainer` to local.")
    if settings.trainer["name"] == "verl" and name in TRAINING:
        from trace_bench.runner.verl import check_verl

        check_verl(settings, new)


def check_budget(settings: Settings, training_tasks: int) -> None:
    """Says at once, before anything is played, when the budget cannot pay for the method's phases.

    Raises UserError with what is needed."""
    name = settings.method["name"]
    if name in ("trace", "single_capability"):
        from trace_bench.methods.trace.budget import check_budget as check
        from trace_bench.methods.trace.settings import TraceSettings

        free = Purpose.ANALYSIS not in CHARGED[settings.accounting]
        check(settings.budget, TraceSettings.of(settings.method), training_tasks, free, name)
    if name in ("grpo", "untargeted"):
        if settings.trainer["name"] == "verl":
            full_iterations(settings.budget, verl_settings(settings), name)
        else:
            plan(settings.budget, trainer_settings(settings), name)
    if name == "gepa":
        from trace_bench.methods.gepa.settings import GepaSettings

        GepaSettings.of(settings.method).check(settings.budget, training_tasks)
    if name == "prompt_only":
        least = int(settings.method["analysis_minimum"])
        if settings.budget < least:
            raise UserError(
                f"budget={settings.budget} is too small for method=prompt_only, which needs at "
                f"least {least} analysis rollouts (method.analysis_minimum). Raise `budget`."
            )


def curve_caveat(settings: Settings) -> str | None:
    """Why a point of the curve is not what a run with that smaller budget gives; None where it is:
    whoever trains at a constant rate does the same in every run as long as it goes, and is looked
    at where an iteration ends."""
    name = settings.method["name"]
    if name in ("trace", "single_capability", "prompt_only"):
        return "its phases are shares of the whole budget"
    if name == "gepa":
        return "a run stops where the next proposal might not fit its budget"
    if name in ("grpo", "untargeted"):
        train = recipe(settings)
        if train.decay == "linear":
            return "the learning rate falls over the whole budget (trainer.decay=linear)"
        size = train.group_size * train.groups
        if any(point % size for point in checkpoints(settings) if point < settings.budget):
            return (
                f"between iterations of {size} rollouts it is the agent of the iteration before, "
                "where a run of that budget may train on part of one more"
            )
    return None


def checkpoints(settings: Settings) -> list[int]:
    """The rollout counts of the curve's points, ascending; by default the quarters of the budget,
    and none for a method that changes nothing."""
    if settings.checkpoints is None:
        quarters = [settings.budget * n // 4 for n in (1, 2, 3, 4)]
        return [] if settings.method["name"] in UNTRAINED else quarters
    if late := [c for c in settings.checkpoints if c > settings.budget]:
        raise UserError(
            f"checkpoints={late} lie beyond budget={settings.budget}; allowed: 0 to "
            f"{settings.budget}. Change `checkpoints`."
        )
    return sorted(set(settings.checkpoints))
