"""The 129 scenario shapes: which requests come together in which state of the phone.

Their mix of categories is the official benchmark's: 19 single tool call, 54 multiple tool calls, 28
multiple user turns, 28 insufficient information. Each category has its module.
"""

from functools import lru_cache

from trace_bench.envs.toolsandbox.scenarios.shapes.insufficient import insufficient
from trace_bench.envs.toolsandbox.scenarios.shapes.multiple import multiple
from trace_bench.envs.toolsandbox.scenarios.shapes.shape import (
    INSUFFICIENT,
    MULTIPLE,
    SINGLE,
    TURNS,
    Shape,
)
from trace_bench.envs.toolsandbox.scenarios.shapes.single import single
from trace_bench.envs.toolsandbox.scenarios.shapes.turns import turns

__all__ = ["INSUFFICIENT", "MULTIPLE", "SINGLE", "TURNS", "Shape", "shapes"]


@lru_cache(maxsize=1)
def shapes() -> tuple[Shape, ...]:
    """All shapes, in a fixed order."""
    return (*single(), *multiple(), *turns(), *insufficient())
