"""Suites by name, in this process and in sandboxes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_bench.core.protocols import Ask, RunContext, Suite
from trace_bench.sandbox.choose import remote, source_pool, suite_in
from trace_bench.sandbox.engine import Sandbox
from trace_bench.settings.registry import Part, find
from trace_bench.settings.schema import EnvSettings

ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "podman")]
OTHERS = [*ENGINES, pytest.param("bubblewrap", marks=pytest.mark.rootless)]
"""The sandboxes that a machine may lack, each with the mark of its lane."""
ROOTS = str(Path(os.environ.get("TRACE_BENCH_ROOTS", Sandbox.roots)).expanduser())
"""Where the files of images are, for tests of sandboxes that run on a folder."""


def chosen(name: str, variant: str | None = None, **options: Any) -> Part:
    """A suite that was chosen by name, with its options (tau2's domain and bfcl's category are
    their variants)."""
    if (setting := {"tau2": "domain", "bfcl": "category"}.get(name)) is not None:
        options = {setting: variant, **options}
    return find("env", EnvSettings(name, options=options, suite=variant), variant)


def in_process(name: str, variant: str, ask: Ask | None = None, **options: Any) -> Any:
    return chosen(name, variant, **options).make(RunContext(ask=ask))


def in_sandbox(
    part: Part,
    sandbox: Sandbox,
    *,
    ask: Ask | None = None,
    log: Callable[[str], None] = print,
    python: str | None = None,
) -> Any:
    """The suite with its episodes in that sandbox."""
    settings = EnvSettings(part.name, python=python)
    return suite_in(part, RunContext(ask=ask), sandbox, settings, log)


SUITE = """
class Suite(protocols.Suite):
    name, variant = "source", "test"
    def splits(self): return ["train"]
    def tasks(self, split): return []
    def make(self): return Env()

def suite(): return Suite()
"""
"""The end of a source text that defines `Env`: a suite of it, whose tasks a test makes."""


def untrusted_suite(source: str, sandbox: Sandbox, log: Callable[[str], None]) -> Suite:
    """The suite of a source text that defines `suite()`."""
    return remote(source_pool({"source": source}, {"kind": "source"}, sandbox, log))


def containers(engine: str, label: str, *more: str) -> list[str]:
    """The ids of an engine's containers with this label, running or not; `more`: of `ps`."""
    command = [engine, "ps", "--all", "--quiet", "--no-trunc", f"--filter=label={label}", *more]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
