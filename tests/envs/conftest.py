from __future__ import annotations

import pytest
from phone_world import NOW, START

from trace_bench.envs.toolsandbox.env import World


@pytest.fixture
def world() -> World:
    return World(START, NOW, seed=7)
