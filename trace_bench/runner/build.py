"""Builds the parts of a run from its settings, here and in another process (a worker of
trainer=verl), whatever their names: parts declare their differences (`core.protocols`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Ask, Policy, RunContext, Source, Suite
from trace_bench.core.roles import RoleSettings
from trace_bench.llm.client import Client, Endpoint, LLMError, check_extra, check_urls, read_key
from trace_bench.llm.roles import Role, Roles
from trace_bench.play.suites import Suites, generated_key
from trace_bench.runner.lab import MakeSuite
from trace_bench.sandbox.choose import engine_of, generated_suite, suite_in
from trace_bench.sandbox.engine import Sandbox
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import model_path, parts_of, plain, served_name
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import PolicySettings, Settings, parse

ASKED = {"ask": "user", "judge": "judge", "simulator": "simulator"}  # of RunContext, and the role
Parts = Mapping[str, Part]
Log = Callable[[str], None]


def log_line(text: str) -> None:
    print(text, file=sys.stderr)


def run_context(
    settings: Settings, parts: Parts, ask: Ask | None = None, **facts: Any
) -> RunContext:
    """The facts of the run for factories. `ask`: asks the models in roles; `facts`: others, and
    `model` where it is known already."""
    if "model" not in facts:
        facts["model"] = model_path(settings, parts)
    played = models_in_roles(settings)
    asks: dict[str, Any] = {name: ask for name, role in ASKED.items() if role in played}
    shared = {f.name for f in fields(RunContext)} & {f.name for f in fields(PolicySettings)}
    return RunContext(
        seed=settings.seed,
        budget=settings.budget,
        served_model=served_name(settings.model),
        dev_split=settings.env.dev_split,
        general_demonstrations=parts["env"].declared.general_demonstrations,
        settings=plain(settings),
        at_servers=parts["policy"].declared.at_servers,
        **asks,
        **{name: getattr(settings.policy, name) for name in shared},
        **facts,
    )


def make_suite(settings: Settings, parts: Parts, run: RunContext, log: Log = log_line) -> Suite:
    """The run's suite, with its episodes in the chosen sandbox. Raises UserError."""
    return suite_in(parts["env"], run, make_sandbox(settings, run), settings.env, log)


@contextmanager
def suite_of(words: Sequence[str]) -> Iterator[tuple[Settings, Suite]]:
    """For a command that trains nothing: the settings in its words, and the suite that they choose,
    which is closed with the block. Raises UserError."""
    settings = compose(["method=base", *words])
    parts = parts_of(settings)
    with closing(make_suite(settings, parts, run_context(settings, parts))) as suite:
        yield settings, suite


def make_sandbox(settings: Settings, run: RunContext) -> Sandbox:
    return Sandbox(**vars(settings.sandbox), run=run.fingerprint, folder=str(run.folder.absolute()))


def generated_suites(settings: Settings, run: RunContext, log: Log = log_line) -> MakeSuite:
    """A function that builds sandboxed suites from source code. Repeated log lines appear once."""
    sandbox, once = make_sandbox(settings, run), cache(log)
    return lambda source: generated_suite(source, sandbox, once)


def make_roles(settings: Settings, path: Path, log: Log = log_line) -> Roles:
    played = models_in_roles(settings)
    return Roles({name: make_role(name, how, log) for name, how in played.items()}, path)


def make_role(name: str, how: RoleSettings, log: Log = log_line) -> Role:
    if not how.model:
        raise UserError(f"llm.{name}.by=endpoint needs llm.{name}.model (or llm.shared.model).")
    extra = check_extra(how.extra, f"llm.{name}.extra")
    if "response_format" in extra and how.schema != "never":
        raise UserError(
            f"`llm.{name}.extra` holds response_format, which llm.{name}.schema={how.schema} sets "
            f"for each question. Leave it out, or set llm.{name}.schema=never."
        )
    endpoint = Endpoint(
        check_urls(how.base_url or (), f"llm.{name}.base_url"),
        read_key(how.key_env, f"llm.{name}.key_env"),
        deadline=how.deadline,
        retries=how.retries,
        concurrency=how.concurrency,
        patience=how.patience,
    )
    return Role(endpoint, replace(how, extra=extra), lambda text: log(f"the {name}: {text}"))


def unanswered(settings: Settings, parts: Parts) -> list[str]:
    """Servers that do not answer, keys that are not set."""
    named: list[tuple[str, Any, str, str | None]] = []  # each setting and its value
    acting = parts["policy"]
    if acting.declared.at_servers:
        for place, (urls, key) in enumerate(acting.declared.addresses.items()):
            there, by = acting.options.get(urls), acting.options.get(key)
            if there or not place:  # the first must be given
                named.append((f"policy.{urls}", there, f"policy.{key}", by))
    for name, role in sorted(models_in_roles(settings).items()):
        named.append((f"llm.{name}.base_url", role.base_url, f"llm.{name}.key_env", role.key_env))
    asked: dict[tuple[object, ...], tuple[Any, ...]] = {}
    for one in named:  # each server once, by the first that asks it
        asked.setdefault((tuple(one[1] or ()), one[3]), one)
    return [error for one in asked.values() if (error := _no_answer_from(*one))]


def _no_answer_from(where: str, there: Any, named: str, key_env: str | None) -> str | None:
    try:
        urls = check_urls(tuple(there or ()), where)
        key = read_key(key_env, named)
        with closing(Client(Endpoint(urls, key, deadline=3.0, retries=0))) as client:
            for n in range(len(urls)):
                client.ask("/models", None, n)
    except UserError as error:
        return str(error)
    except LLMError as error:
        if error.status not in (404, 405):  # it has no list
            return f"{where}: {error}"
    return None


def models_in_roles(settings: Settings) -> dict[str, RoleSettings]:
    return {name: how for name, how in settings.llm.roles.items() if how.by == "endpoint"}


def make_policy(parts: Parts, run: RunContext) -> Policy:
    """The policy that generates the agent's turns. Raises UserError."""
    policy: Policy = parts["policy"].make(run)
    if not isinstance(policy.capacity, int) or policy.capacity < 1:
        policy.close()
        raise UserError(
            f"policy={parts['policy'].label} has capacity={policy.capacity!r}; allowed: a whole "
            "number from 1 (how many live episodes it takes). Change `policy`."
        )
    return policy


MAKER = f"{__name__}:suites_elsewhere"
"""The function that another process calls; the value of `RunContext.elsewhere`."""

_LINGER = 6  # seconds


def suites_elsewhere(
    settings: Mapping[str, Any], run: str, llm: Path, sources: Sequence[Mapping[str, Any]]
) -> Suites:
    """The run's suites, from its settings as plain data. `llm`: the file of models' answers."""
    checked = parse(settings)
    parts = parts_of(checked)
    ask = make_roles(checked, llm).ask
    context = run_context(checked, parts, ask, fingerprint=run, folder=llm.parent)
    suites = Suites(make_suite(checked, parts, context), lots=checked.rehearsal)
    make = generated_suites(checked, context)
    for source in (Source(**s) for s in sources):
        suites.add(generated_key(source.name), make(source))
    return suites


def clean_up(settings: Settings) -> None:
    """Removes containers of ended processes: verl kills its workers, which then close nothing."""
    engine = engine_of(settings.sandbox)
    # Without an engine nothing of it is left either.
    with suppress(UserError):
        for _ in range(_LINGER if engine.leaves else 0):  # Ray's processes take a moment to end
            engine.clean(settings.sandbox)
            time.sleep(1.0)
