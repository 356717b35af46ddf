"""Groups of rollouts of one task, whose rewards are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SAME = 1e-8  # rewards closer than this are equal


def in_groups(values: Sequence[T], size: int) -> list[Sequence[T]]:
    """What an iteration's rollouts have, group by group."""
    return [values[first : first + size] for first in range(0, len(values), size)]


def differ(rewards: Sequence[float]) -> bool:
    """Whether a group has a learning signal: two episodes or more whose rewards differ."""
    valid = [r for r in rewards if r == r]
    return len(valid) > 1 and max(valid) - min(valid) > SAME
