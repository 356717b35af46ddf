"""Suites of other people's standards, each in a worker of its SDK's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sandboxes import chosen, in_sandbox
from standard_servers import HERE, python_of

from trace_bench.sandbox.choose import Sandbox


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """make(name, ...): a suite by its name and settings."""
    monkeypatch.chdir(HERE)  # where a worker finds what is given as module:attribute
    made: list[Any] = []

    def suite(name: str, **options: Any) -> Any:
        sandbox = Sandbox("process", run="standards", workers=1, deadline=120, start=120)
        made.append(in_sandbox(chosen(name, **options), sandbox, python=python_of(name)))
        return made[-1]

    yield suite
    for one in made:
        one.close()
