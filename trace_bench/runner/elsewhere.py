"""Builds the run's suites in another process (a worker of trainer=verl), and cleans up after it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Source
from trace_bench.play.suites import Suites, generated_key
from trace_bench.runner.build import (
    generated_suites,
    make_roles,
    make_suite,
    models_in_roles,
    run_context,
)
from trace_bench.settings.identity import parts_of
from trace_bench.settings.schema import Settings, parse

MAKER = f"{__name__}:suites_elsewhere"
"""The function that another process calls; the value of `RunContext.elsewhere`."""

_LINGER = 6  # seconds


def suites_elsewhere(
    settings: Mapping[str, Any], run: str, llm: Path, sources: Sequence[Mapping[str, Any]]
) -> Suites:
    """The run's suites, from its settings as plain data. The cost of models in roles is written to
    the file `llm`; `sources`: those of generated suites (`protocols.Source`)."""
    checked = parse(settings)
    parts = parts_of(checked)
    played, roles = models_in_roles(checked), make_roles(checked, llm)
    ask = roles.ask if "user" in played else None
    judge = roles.ask if "judge" in played else None
    simulator = roles.ask if "simulator" in played else None
    asked = {"ask": ask, "judge": judge, "simulator": simulator}
    context = run_context(checked, parts, fingerprint=run, folder=llm.parent, **asked)
    suites = Suites(make_suite(checked, parts, context))
    make = generated_suites(checked, context)
    for source in (Source(**s) for s in sources):
        made = make(source.name, source.text, source.given, source.image)
        suites.add(generated_key(source.name), made)
    return suites


def clean_up(settings: Settings) -> None:
    """Removes containers of ended processes: verl kills its workers, which then close nothing."""
    if settings.sandbox.name not in ("docker", "auto"):
        return
    from trace_bench.sandbox.engine import connect, reap

    with contextlib.suppress(UserError):  # without an engine nothing of it is left either
        client = connect(settings.sandbox.start)
        try:
            for _ in range(_LINGER):  # Ray's processes take a moment to end
                reap(client)
                time.sleep(1.0)
        finally:
            client.close()
