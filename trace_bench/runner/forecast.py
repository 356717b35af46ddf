"""`dry_run=true`: what a run would do, what that takes, and what is missing on this machine.

Rollouts follow from the settings. Requests and tokens are estimates from the figures in `TYPICAL`,
which are printed with them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.protocols import Suite
from trace_bench.core.types import CHARGED, Purpose
from trace_bench.llm.client import Client, Endpoint, LLMError, check_urls, read_key
from trace_bench.llm.roles import ROLES
from trace_bench.runner.build import check_budget, make_suite, make_trainer, recipe, verl_settings
from trace_bench.settings.compose import ACTING, UNTRAINED, model_path, served_name
from trace_bench.settings.schema import PolicySettings, RoleSettings, SandboxSettings, Settings

T = TypeVar("T")
GPU = 80  # GB of one


@dataclass(frozen=True)
class Typical:
    """One episode: the agent's turns, its prompt and completion tokens a turn, the user's turns."""

    turns: float
    prompt: int
    completion: int
    user: float


# The embedded suite's are the tiny agent's means in this project's runs; the others are guesses
# from the lengths of the benchmarks' policies and conversations, for the order of magnitude.
TYPICAL = {
    "toolsandbox/embedded": Typical(2.5, 75, 12, 0),
    "toolsandbox/official": Typical(8, 3000, 80, 2),
    "tau2/airline": Typical(12, 8000, 120, 6),
    "tau2/retail": Typical(14, 8000, 120, 7),
    "tau2/telecom": Typical(25, 12000, 120, 12),
}


@dataclass(frozen=True)
class Phase:
    """Rollouts of one phase; `most`: an upper bound, since it depends on what is found."""

    name: str
    rollouts: int
    most: bool = False

    def __str__(self) -> str:
        return f"{self.name:<34}{('<= ' if self.most else '') + str(self.rollouts):>12}"


def describe(settings: Settings) -> str:
    """The plan as text. Raises nothing for what is missing: it is listed."""
    missing: list[str] = []
    suite = _tasks(settings, missing)
    phases = _phases(settings, suite, missing)
    total = sum(p.rollouts for p in phases)
    lines = [
        f"plan: method={settings.method['name']} on {settings.env.name}/{settings.env.suite}, "
        f"budget {settings.budget} ({settings.accounting}), protocol {settings.protocol}, seed "
        f"{settings.seed}",
        "",
        f"{'phase':<34}{'rollouts':>12}",
        *map(str, phases),
        *([] if suite is not None else ["(how many tasks there are is not known here)"]),
        f"{'in all, at most':<34}{total:>12}",
        "",
        *_requests(settings, total, phases),
        "",
        *_machines(settings, missing),
    ]
    missing += _servers(settings)
    lines += ["", "missing on this machine:" if missing else "nothing is missing on this machine"]
    lines += [f"  - {what}" for what in missing]
    if suite is not None:
        getattr(suite, "close", lambda: None)()
    return "\n".join(lines)


def _tasks(settings: Settings, missing: list[str]) -> Suite | None:
    """What tells of the tasks: the box if it is there, else this process (nothing is played)."""
    suite = _found(lambda: make_suite(settings, "dry-run", _nobody), missing)
    if suite is None and settings.sandbox.name != "inline":
        here = replace(settings, sandbox=SandboxSettings("inline"))
        suite = _found(lambda: make_suite(here, "dry-run", _nobody), [])
    return suite


def _phases(settings: Settings, suite: Suite | None, missing: list[str]) -> list[Phase]:
    evaluation = settings.evaluation
    held_out = _count(suite, evaluation.split, missing)
    held_out = min(held_out, evaluation.limit or held_out) * evaluation.trials
    paper = settings.protocol == "paper"
    train = held_out if paper else _count(suite, settings.env.train_split, missing)
    if settings.env.train_tasks is not None:
        train = min(train, settings.env.train_tasks)
    phases = [Phase("base evaluation", held_out)]
    name = settings.method["name"]
    if train and name not in UNTRAINED:
        _found(lambda: check_budget(settings, train), missing)
    phases += _method(settings, train)
    if name in UNTRAINED and name != "saved":
        return phases
    phases.append(Phase("final evaluation", held_out))
    adapters = _adapters(settings)
    if adapters > 1:
        phases.append(Phase("every adapter alone", adapters * held_out, most=True))
        if evaluation.routing:
            dev = _count(suite, settings.env.dev_split, missing)
            phases.append(Phase("routing on the dev split", (adapters + 2) * dev, most=True))
    if name == "trace" and evaluation.joint:
        phases.append(Phase("one joint adapter, a yardstick", settings.budget + held_out, True))
    points = len(settings.checkpoints) if settings.checkpoints is not None else 4
    if name not in UNTRAINED and points:
        dev = _count(suite, settings.env.dev_split, missing)
        phases.append(Phase("points of the curve", points * dev))
    return phases


def _method(settings: Settings, train: int) -> list[Phase]:
    """What the method plays itself."""
    name, budget = settings.method["name"], settings.budget
    free = Purpose.ANALYSIS not in CHARGED[settings.accounting]
    if name in ("trace", "single_capability") and train:
        from trace_bench.methods.trace import budget as budgets
        from trace_bench.methods.trace.settings import TraceSettings

        own = TraceSettings.of(settings.method)
        if budget < budgets.minimum(own, train, free):
            return []
        analysis = budgets.analysis_rollouts(budget, own, train, free)
        left = budget if free else budget - analysis
        many = budgets.affordable(left, own, free)
        pool = max(0, budgets.calibration_pool(budget, left, many, own, free))
        paid = left if free else left - many * own.calibration_round
        return [
            Phase("analysis", analysis),
            Phase(f"calibration (up to {many} environments)", pool, most=True),
            Phase("training", max(0, paid), most=True),
        ]
    spends = name not in (*UNTRAINED, "sft")
    label = {"gepa": "prompts", "prompt_only": "analysis"}.get(name, "training")
    return [Phase(label, budget, most=name == "gepa")] if spends else []


def _adapters(settings: Settings) -> int:
    name = settings.method["name"]
    if name != "trace" or settings.method["adapters"] == "joint":
        return 1
    from trace_bench.methods.trace import budget as budgets
    from trace_bench.methods.trace.settings import TraceSettings

    free = Purpose.ANALYSIS not in CHARGED[settings.accounting]
    return budgets.affordable(settings.budget, TraceSettings.of(settings.method), free)


def _requests(settings: Settings, rollouts: int, phases: list[Phase]) -> list[str]:
    typical = TYPICAL[f"{settings.env.name}/{settings.env.suite}"]
    turns = math.ceil(rollouts * typical.turns)
    lines = [
        f"agent: about {turns} turns, {_short(turns * typical.prompt)} prompt and "
        f"{_short(turns * typical.completion)} completion tokens (assumed: {typical.turns:g} turns "
        f"an episode, {typical.prompt} + {typical.completion} tokens a turn; at most "
        f"{settings.policy.max_turns} turns)"
    ]
    own = dict(settings.method)
    analysis = sum(p.rollouts for p in phases if p.name == "analysis")
    many = _adapters(settings)
    runs, rounds = int(own.get("runs", 0)), int(own.get("generator_rounds", 0))
    counts = {
        "user": math.ceil(rollouts * typical.user),
        "analyst": 1 + runs * math.ceil(analysis / 8) if analysis else 0,
        "generator": many * rounds,
        "judge": many * rounds,
        "reflector": settings.budget // 8 if own["name"] == "gepa" else 0,
    }
    for name in ROLES:
        role: RoleSettings = getattr(settings.llm, name)
        if role.by == "endpoint" and counts[name]:
            asked = counts[name] * (1 if name == "user" else role.tries)
            read = asked * max(0, role.context - role.max_tokens)
            lines.append(
                f"{name}: up to {asked} requests to {role.model}, at most {_short(read)} prompt "
                f"and {_short(asked * role.max_tokens)} completion tokens"
            )
    if own.get("route") in ("zero_shot", "both") and many:
        chosen = ("final evaluation", "points of the curve", "routing on the dev split")
        routed = sum(p.rollouts for p in phases if p.name in chosen)
        lines.append(f"router: up to {routed} requests to the agent's base model, a token each")
    return lines


def _machines(settings: Settings, missing: list[str]) -> list[str]:
    """GPUs, from the number of parameters that the model's name gives away."""
    name = served_name(settings.model) if settings.policy.name == "openai" else settings.model.name
    found = re.search(r"(\d+(?:\.\d+)?)B\b", name)
    size = float(found[1]) if found else None
    lines = []
    if settings.policy.name == "openai":
        gpus = "GPUs as its size wants" if size is None else _gpus(2 * size)
        lines.append(f"serving {name}: {gpus} (bfloat16, without the cache of keys and values)")
    trains = settings.method["name"] not in (*UNTRAINED, "gepa", "prompt_only")
    if trains and settings.policy.name in ACTING:
        _found(lambda: _trains(settings), missing)
        where = f"trainer={settings.trainer['name']} on {settings.policy.device}"
        if settings.trainer["name"] == "verl":
            lines += _verl(settings, size, missing)
        elif size is None:
            lines.append(f"{where}: the weights in float32 in this process")
        else:
            lines.append(f"{where}: {4 * size:g} GB of weights in float32 in this process")
            if 4 * size > GPU:
                missing.append(
                    f"trainer=local holds all weights on one device, and {4 * size:g} GB fit no "
                    f"GPU of {GPU} GB: a trainer over several GPUs is needed for this model"
                )
    return lines or ["no GPU is needed"]


def _verl(settings: Settings, size: float | None, missing: list[str]) -> list[str]:
    """What verl takes: weights in float32 shared by all processes, vLLM's in bf16 beside them."""
    from trace_bench.trainers.verl.preflight import CHECKS

    s = verl_settings(settings)
    for check in CHECKS:
        _found(partial(check, s), missing)
    ranks = s.gpus * s.nnodes
    where = f"trainer=verl on {ranks} {'GPU(s)' if s.device == 'cuda' else 'processes'}"
    if size is None:
        return [f"{where}: the weights in float32, shared by all"]
    each, served = 4 * size / ranks, 2 * size / s.tensor_parallel
    if s.device == "cuda" and served > s.gpu_memory * GPU:
        missing.append(
            f"vLLM needs {served:g} GB of each GPU for the weights and gets "
            f"{s.gpu_memory * GPU:g} of {GPU}: raise trainer.tensor_parallel or trainer.gpu_memory"
        )
    rest = "in the machine's memory between uses" if s.offload else "all the time"
    return [f"{where}: {each:.3g} GB of weights each ({rest}), {served:.3g} GB more for vLLM"]


def _trains(settings: Settings) -> None:
    """Whether the trainer can be made; the model's weights must be at hand for it."""
    from pathlib import Path

    make_trainer(settings)
    recipe(settings)
    place = model_path(settings.model)
    if settings.trainer["name"] == "verl":
        return  # verl fetches what has a name on the hub
    if settings.policy.name == "openai" and not Path(place).is_dir():
        raise UserError(f"the weights of {place} in a folder here (model.path), for training")


def _servers(settings: Settings) -> list[str]:
    """Servers that do not answer, keys that are not set."""
    named = [("policy", settings.policy)] if settings.policy.name == "openai" else []
    roles = [(f"llm.{name}", getattr(settings.llm, name)) for name in ROLES]
    asked: dict[tuple[object, ...], tuple[str, PolicySettings | RoleSettings]] = {}
    for where, how in (*named, *((w, r) for w, r in roles if r.by == "endpoint")):
        asked.setdefault((how.base_url, how.key_env), (where, how))
    out: list[str] = []
    for where, how in asked.values():  # each server once, by the first who asks it
        try:
            urls = check_urls(how.base_url or (), f"{where}.base_url")
            key = read_key(how.key_env, f"{where}.key_env")
            client = Client(Endpoint(urls, key, deadline=3.0, retries=0))
            try:
                for n in range(len(urls)):
                    _answers(client, n)
            finally:
                client.close()
        except (TraceBenchError, LLMError) as error:
            out.append(f"{where}.base_url: {error}")
    return out


def _answers(client: Client, server: int) -> None:
    try:
        client.ask("/models", None, server)
    except LLMError as error:
        if error.status not in (404, 405):  # it answers, and has no list
            raise


def _count(suite: Suite | None, split: str, missing: list[str]) -> int:
    if suite is None:
        return 0
    return len(_found(lambda: suite.tasks(split), missing) or ())


def _found(make: Callable[[], T], missing: list[str]) -> T | None:
    """What can be made; else the reason is noted."""
    try:
        return make()
    except UserError as error:
        if str(error) not in missing:
            missing.append(str(error))
        return None


def _nobody(role: str, messages: object) -> str:
    raise UserError("nobody answers in a dry run")


def _gpus(gigabytes: float) -> str:
    return f"{gigabytes:g} GB of weights, {math.ceil(gigabytes / (0.8 * GPU))} GPU(s) of {GPU} GB"


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
