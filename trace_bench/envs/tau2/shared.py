"""The databases of airline and retail are shared by all episodes, with copy on access: that of
airline has 2,800 records, an episode touches a few, and copying all takes a third of a second."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any


class Shared(dict[str, Any]):
    """A dictionary over the records of another one. `d[key]`, `get`, `pop` and `setdefault` return
    a private copy, made at the first access; iterating gives the shared records, which must not be
    changed. It is a real dict, so code that bypasses its methods also sees the right content."""

    def __init__(self, base: Mapping[str, Any]) -> None:
        super().__init__(base)
        self._base = base
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key not in self._own:
            value = copy.deepcopy(value)
            super().__setitem__(key, value)
            self._own.add(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._own.discard(key)
        super().__delitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (this is that `get`)

    def changes(self) -> dict[str, Any]:
        """The records that differ from the shared ones, as plain data by key; None for a deleted
        one. Two dictionaries over the same records are equal exactly if their changes are."""
        values: dict[str, Any] = {key: None for key in self._base if key not in self}
        for key in self._own:
            now = super().__getitem__(key).model_dump()
            if key not in self._base or canonical(now) != canonical(self._base[key].model_dump()):
                values[key] = now
        return values

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            value = self[key]
            del self[key]
            return value
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]


def canonical(record: Any) -> str:
    """A record as the benchmark hashes it, in which 0 and 0.0 differ."""
    return json.dumps(record, sort_keys=True, default=str)
