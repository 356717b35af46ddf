"""The parts of a run by name: which class stands behind a setting. Imported when asked for."""

from __future__ import annotations

import sys

from trace_bench.config import model_path
from trace_bench.envs.registry import suite
from trace_bench.errors import UserError, unknown
from trace_bench.protocols import Method, Policy, Suite, Trainer
from trace_bench.schema import EnvSettings, Settings, build
from trace_bench.trainers.settings import TrainerSettings


def make_suite(settings: Settings, run: str = "unnamed") -> Suite:
    """The tasks of the run in the box that was asked for; containers are labelled with `run`."""
    env, how = settings.env, settings.sandbox
    options = _options(env)
    if how.name == "inline":
        return suite(env.name, env.suite, env.augmentation, options=options)
    from trace_bench.sandbox.choose import Box, Wanted, boxed_suite
    from trace_bench.sandbox.docker import Limits

    box = Box(
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
    wanted = Wanted(env.name, env.suite, env.augmentation, options, env.python)
    return boxed_suite(wanted, box, None, lambda text: print(text, file=sys.stderr))


def _options(env: EnvSettings) -> dict[str, str]:
    """What only some environments know, as text."""
    if env.name == "tau2":
        return {"user": env.user, "solo": str(env.solo).lower()}
    if env.suite == "official":
        return {"user": env.user, **({"source": env.source} if env.source else {})}
    return {}


def make_policy(settings: Settings, tasks: Suite) -> Policy:
    """What acts as the base agent."""
    name = settings.policy.name
    if name != "local":
        return scripted(name, tasks)
    from trace_bench.policies.local import LocalPolicy

    how = settings.policy
    return LocalPolicy(
        model_path(settings.model),
        batch=how.batch,
        context=how.context,
        threads=how.threads,
        device=how.device,
    )


def scripted(name: str, tasks: Suite) -> Policy:
    """A floor (`idle`, `random`) or the ceiling (`reference`)."""
    from trace_bench.policies.scripted import IdlePolicy, RandomPolicy, ReferencePolicy

    if name == "idle":
        return IdlePolicy()
    if name == "random":
        return RandomPolicy()
    if name == "reference":
        return ReferencePolicy(tasks)
    raise unknown("policy", name, ["local", "idle", "random", "reference"], "policy")


def make_method(settings: Settings) -> Method:
    """The method; its settings reach it through the lab."""
    from trace_bench.methods import method

    return method(settings.method["name"])


def make_trainer(settings: Settings) -> Trainer:
    """What trains adapters."""
    from trace_bench.trainers.local import LocalTrainer

    how = settings.policy
    return LocalTrainer(trainer_settings(settings), threads=how.threads, device=how.device)


def trainer_settings(settings: Settings) -> TrainerSettings:
    """The trainer's own settings, typed."""
    values = {key: value for key, value in settings.trainer.items() if key != "name"}
    return build(TrainerSettings, values, "trainer")


def check_budget(settings: Settings, training_tasks: int) -> None:
    """Says at once, before anything is played, when the budget cannot pay for the method's phases.

    Raises UserError with what is needed."""
    name = settings.method["name"]
    if name in ("trace", "single_capability"):
        from trace_bench.methods.trace.budget import check_budget as check
        from trace_bench.methods.trace.settings import TraceSettings

        check(settings.budget, TraceSettings.of(settings.method), training_tasks)
    if name in ("grpo", "untargeted"):
        from trace_bench.trainers.schedule import plan

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
    whoever trains at a constant rate does the same in every run as long as it goes."""
    name = settings.method["name"]
    if name in ("trace", "single_capability", "prompt_only"):
        return "its phases are shares of the whole budget"
    if name == "gepa":
        return "a run stops where the next proposal might not fit its budget"
    if name in ("grpo", "untargeted") and trainer_settings(settings).decay == "linear":
        return "the learning rate falls over the whole budget (trainer.decay=linear)"
    return None
