"""Less frequent garbage collection during a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS, _YOUNG, _OLD = 20_000, 10, 50
"""New objects between two collections of the youngest generation (Python's default is 700), and how
many of those are to one of the next generations."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Reduces garbage collection. A run makes millions of small values, hardly any in reference
    cycles, and each collection of the old generation visits the model and all libraries."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, _YOUNG, _OLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
