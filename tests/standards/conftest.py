"""Suites of other people's standards, each in a worker of its SDK's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from standard_servers import HERE, suite_of


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """make(name, ...): a suite by its name and settings."""
    monkeypatch.chdir(HERE)
    made: list[Any] = []

    def suite(name: str, **options: Any) -> Any:
        made.append(suite_of(name, **options))
        return made[-1]

    yield suite
    for one in made:
        one.close()
