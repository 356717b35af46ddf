"""The parts of a run with trainer=verl: what verl's processes are told of the run, and what can be
checked before it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Source
from trace_bench.core.types import AgentSpec, to_json
from trace_bench.play.suites import Several
from trace_bench.runner.build import foreign_suites, make_roles, make_suite, verl_settings
from trace_bench.settings.compose import model_path, validate
from trace_bench.settings.schema import Settings
from trace_bench.trainers.verl.job import RunFacts, described
from trace_bench.trainers.verl.preflight import preflight
from trace_bench.trainers.verl.spec import JobSpec

_LINGER = 6  # seconds


def verl_facts(settings: Settings, run: str) -> RunFacts:
    """What verl's processes take over from the run."""
    return RunFacts(
        mark=run,
        settings=to_json(settings),
        suites=f"{__name__}:suites_elsewhere",
        context=_context(settings),
        max_turns=settings.policy.max_turns,
        max_tokens=settings.policy.max_tokens,
        validation=lambda lab: lab.suite.tasks(settings.env.dev_split),
        sweep=lambda: _sweep(settings),
    )


def _sweep(settings: Settings) -> None:
    """Removes containers of processes that are gone: verl's are ended, they close nothing."""
    if settings.sandbox.name not in ("docker", "auto"):
        return
    from trace_bench.sandbox.docker import connect, reap

    try:
        client = connect()
    except UserError:
        return  # no engine, so nothing of it is left either
    try:
        for _ in range(_LINGER):  # Ray's processes take a moment to end
            reap(client, "")
            time.sleep(1.0)
    finally:
        client.close()


def suites_elsewhere(
    settings: Mapping[str, Any], run: str, llm: Path, sources: Sequence[Mapping[str, Any]]
) -> Several:
    """The run's suites in another process, from the run's settings as plain data. What models in
    roles cost there is written to the file `llm`; `sources`: program texts (`protocols.Source`)."""
    checked, run = validate(settings), f"{run}-{os.getpid()}"  # the others' containers stay
    suites = Several(make_suite(checked, run, make_roles(checked, llm).ask))
    make = foreign_suites(checked, run)
    for source in (Source(**s) for s in sources):
        suites.others[f"generated/{source.name}"] = make(
            source.name, source.text, source.given, source.image
        )
    return suites


def _context(settings: Settings) -> int:
    """As the local policy has it; where a server acts it has been said (`check_verl`)."""
    wanted = settings.policy.context
    if settings.policy.name != "local" and wanted is not None:
        return wanted
    from transformers import AutoConfig

    from trace_bench.policies.local import context_of

    return context_of(AutoConfig.from_pretrained(model_path(settings.model)), wanted)


def check_verl(settings: Settings, new: bool) -> None:
    """Raises UserError for what cannot work; for a `new` run verl is asked too."""
    if settings.policy.name != "local" and settings.policy.context is None:
        raise UserError(
            "trainer=verl must be told how many tokens an episode may have where the agent is "
            "behind a server. Set policy.context to what the server has (--max-model-len)."
        )
    preflight(sample_job(settings), verl_settings(settings), whole=new)


def sample_job(settings: Settings) -> JobSpec:
    """A job as the run would have it, to check settings with."""
    own = verl_settings(settings)
    return described(
        own,
        verl_facts(settings, "check"),
        name="check",
        seed=settings.seed,
        reward="similarity",
        agent=AgentSpec(model_path(settings.model)),
        shape=(1, own.groups),
    )
