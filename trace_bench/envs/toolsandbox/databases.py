"""The phone's databases: rows that are never changed in place, and a snapshot for every change.

A snapshot is a dictionary from database name to a tuple of rows. A change builds a new tuple for
one database and shares the others, so a snapshot costs four references whatever the size of the
world, and a scorer can compare any two moments of an episode. The message log is one more of the
databases that it compares (SANDBOX).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

Row = dict[str, Any]
Snapshot = dict[str, tuple[Row, ...]]

# Column names and their values in a start state that leaves them out.
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "SETTING": {
        "device_id": "device",
        "cellular": True,
        "wifi": True,
        "location_service": True,
        "low_battery_mode": False,
        "latitude": 37.3349,
        "longitude": -122.009,
    },
    "CONTACT": {
        **dict.fromkeys(("person_id", "name", "phone_number", "relationship")),
        "is_self": False,
    },
    "MESSAGING": dict.fromkeys((
        "message_id", "sender_person_id", "sender_phone_number", "recipient_person_id",
        "recipient_phone_number", "content", "creation_timestamp",
    )),
    "REMINDER": dict.fromkeys((
        "reminder_id", "content", "creation_timestamp", "reminder_timestamp", "latitude",
        "longitude",
    )),
}  # fmt: skip

KEYS: Mapping[str, str] = {name: next(iter(row)) for name, row in COLUMNS.items()}
_ZERO: Mapping[str, Any] = dict.fromkeys(
    ("latitude", "longitude", "creation_timestamp", "reminder_timestamp"), 0.0
) | dict.fromkeys(("cellular", "wifi", "location_service", "low_battery_mode", "is_self"), False)


def without_nulls(rows: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """The rows with 0, false or the empty text in place of null, by the type of the column."""
    return tuple({k: _ZERO.get(k, "") if v is None else v for k, v in row.items()} for row in rows)


class ToolFault(Exception):
    """A tool refused. `kind` is the error type that the agent sees, `message` a constant text."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Databases:
    """State of one phone at one pinned moment.

    `start` maps database names to rows ("SETTING" to its one row); columns left out get their
    default and rows without an id get one. `now` is a unix time in seconds, UTC. `seed` makes the
    ids of new rows."""

    def __init__(self, start: Mapping[str, Any], now: float, seed: int) -> None:
        self.now = now
        self._seed = seed
        self._ids = 0
        self.snapshots: list[Snapshot] = [self._opening(start)]

    def copy(self) -> Self:
        """The same state, which goes on for itself. Rows are shared: none changes in place."""
        twin = copy(self)
        twin.snapshots = list(self.snapshots)
        return twin

    def _opening(self, start: Mapping[str, Any]) -> Snapshot:
        opening: Snapshot = {}
        for database in COLUMNS:
            rows = start.get(database, ())
            rows = [rows or {}] if database == "SETTING" else rows
            opening[database] = tuple(self._complete(database, row) for row in rows)
        return opening

    def _complete(self, database: str, row: Mapping[str, Any]) -> Row:
        full = {**COLUMNS[database], **row}
        if full[KEYS[database]] is None:
            full[KEYS[database]] = self.new_id()
        return full

    @property
    def state(self) -> Snapshot:
        return self.snapshots[-1]

    def rows(self, database: str) -> tuple[Row, ...]:
        return self.snapshots[-1][database]

    @property
    def setting(self) -> Row:
        return self.snapshots[-1]["SETTING"][0]

    def new_id(self) -> str:
        """Eight hexadecimal characters from the seed and a counter."""
        self._ids += 1
        return hashlib.sha256(f"{self._seed}:{self._ids}".encode()).hexdigest()[:8]

    def _commit(self, database: str, rows: Sequence[Row]) -> None:
        self.snapshots.append({**self.snapshots[-1], database: tuple(rows)})

    def add(self, database: str, row: Mapping[str, Any]) -> str:
        """Append a row under a new id, which is returned."""
        full = self._complete(database, row)
        self._commit(database, (*self.rows(database), full))
        identity: str = full[KEYS[database]]
        return identity

    def find(self, database: str, identity: str) -> Row:
        """The row with that id; ToolFault NoDataError without one."""
        key = KEYS[database]
        for row in self.rows(database):
            if row[key] == identity:
                return row
        raise ToolFault("NoDataError", f"No such {database.lower()}")

    def update(self, database: str, identity: str, changes: Mapping[str, Any]) -> None:
        """Replace columns of one row, in place in the order. ToolFault NoDataError without it."""
        old = self.find(database, identity)
        new = {**old, **changes}
        self._commit(database, [new if row is old else row for row in self.rows(database)])

    def remove(self, database: str, identity: str) -> None:
        """Delete one row. ToolFault NoDataError without it."""
        old = self.find(database, identity)
        self._commit(database, [row for row in self.rows(database) if row is not old])


SYSTEM = "SYSTEM"
USER = "USER"
AGENT = "AGENT"
ENVIRONMENT = "EXECUTION_ENVIRONMENT"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One message. `snapshot` numbers the state of the databases after it. `trace` stands on the
    result of a call that succeeded: {"name", "arguments"}."""

    sender: str
    recipient: str
    content: str
    snapshot: int
    trace: Mapping[str, Any] | None = None
