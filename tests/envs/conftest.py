from __future__ import annotations

import pytest
from phone_world import NOW, START

from trace_bench.envs.toolsandbox.env import Phone


@pytest.fixture
def world() -> Phone:
    return Phone(START, NOW, seed=7)
