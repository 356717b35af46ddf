"""The index of a folder with many runs: their records, so that unchanged runs are not read again.

It is checked and not trusted. An entry holds only while the size, the times, and the inode of every
file that its record was made from are those in the folder. The whole index is read anew if its own
checksum is wrong, if it was made in another folder, or by another version of the code that makes
records. It is replaced atomically, so that of two processes the last one's stays; where it cannot
be written, the folders are read again next time.

    .trace_bench_index.<rule>.jsonl    a head {format, made_by, folder, sha256}, then a run a line:
                                       {folder, stamp, record}
"""

from __future__ import annotations

import functools
import hashlib
import json
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_bench.core import beginning, decode, limits, lines, run_files, store, types, yaml_file
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.store import read_bytes, remove_leftovers, write_bytes
from trace_bench.results import records, rules, runs, statistics
from trace_bench.results.records import DAMAGE, Record, as_line, record_of

FORMAT = 1
SETTLED_NS = 2_000_000_000
"""A file that was changed later than so long ago may change once more within one tick of its
clock, and its size and times stay the same: such a run is not indexed yet."""
SOURCES = (
    types, lines, limits, decode, beginning, run_files, store, yaml_file, runs, rules, records,
    statistics,
)  # fmt: skip
"""The code that makes records."""
_HEAD = Limits(size=4096)
Stamp = list[list[int] | None]


class Index:
    """The records of the runs below `place` by one reporting rule. `notes` receives a line when the
    index cannot be used or written."""

    def __init__(self, place: Path, rule: str, notes: list[str]) -> None:
        self._place, self._rule, self._notes = place, rule, notes
        self._path = place / f".trace_bench_index.{rule}.jsonl"
        self._stored = self._load()
        self._kept: dict[str, bytes] = {}
        self._changed = False

    def record(self, folder: Path) -> Record:
        """The record of a run folder: from the index, or read from its files. Raises what
        `runs.read_run` raises."""
        name = str(folder.relative_to(self._place))
        before = stamp(folder)
        entry, line = self._stored.get(name, ({}, b""))
        if before is not None and entry.get("stamp") == before:
            try:
                found = record_of(entry["record"])
                self._kept[name] = line
                return found
            except DAMAGE as error:
                self._notes.append(f"{self._path}: the entry of {name} is no record ({error})")
        self._changed = True
        record = runs.read_run(folder, self._rule)
        if before is not None and before == stamp(folder) and _settled(before):
            entry = {"folder": name, "stamp": before, "record": json.loads(as_line(record))}
            self._kept[name] = json.dumps(entry, separators=(",", ":")).encode()
        return record

    def save(self) -> None:
        """Replaces the stored index by the runs that were found, if they are others."""
        if not self._changed and self._kept.keys() == self._stored.keys():
            return
        body = b"".join(line + b"\n" for line in self._kept.values())
        try:
            head = {**self._own_head(), "sha256": hashlib.sha256(body).hexdigest()}
            remove_leftovers(self._place.glob(f".{self._path.name}.*.tmp"))
            write_bytes(self._path, json.dumps(head).encode() + b"\n" + body)
        except (UserError, OSError) as error:
            self._notes.append(
                f"the index {self._path} cannot be written ({error}); the next command reads all "
                "runs again"
            )

    def _own_head(self) -> dict[str, Any]:
        found = self._place.stat()
        return {"format": FORMAT, "made_by": _code(), "folder": [found.st_dev, found.st_ino]}

    def _load(self) -> Mapping[str, tuple[dict[str, Any], bytes]]:
        """The stored entries and their lines, by the names of the run folders."""
        try:
            data = read_bytes(self._path)
        except FileNotFoundError:
            return {}
        except UserError as error:
            self._notes.append(f"the index cannot be used, all runs are read: {error}")
            return {}
        try:
            head, _, body = data.partition(b"\n")
            self._check_head(read(head, _HEAD), body)
            lines = body.split(b"\n")[:-1]
            entries = json.loads(b"[" + b",".join(lines) + b"]")  # at once: faster than each
            return {e["folder"]: (e, line) for e, line in zip(entries, lines, strict=True)}
        except (Unreadable, *DAMAGE) as error:
            self._notes.append(f"{self._path}: {error}; all runs are read and it is made anew")
            return {}

    def _check_head(self, head: Any, body: bytes) -> None:
        """Raises ValueError if this program did not write this index for this folder."""
        if not isinstance(head, dict) or hashlib.sha256(body).hexdigest() != head.get("sha256"):
            raise ValueError("the index is damaged")
        own = self._own_head()
        if head.get("folder") != own["folder"]:
            raise ValueError("the index is of another folder")
        if any(head.get(key) != value for key, value in own.items()):
            raise ValueError("the index is of another version")


def stamp(folder: Path) -> Stamp | None:
    """Size, times in nanoseconds and inode of each of the run's files, None for one that does not
    exist; None for the whole if one of them is no plain file, or cannot be looked at."""
    found: Stamp = []
    for name in runs.FILES:
        try:
            s = (folder / name).stat()
        except FileNotFoundError:
            found.append(None)
            continue
        except OSError:
            return None
        if not stat.S_ISREG(s.st_mode):
            return None
        found.append([s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino])
    return found


def _settled(found: Stamp) -> bool:
    latest = max((each[1] for each in found if each is not None), default=0)
    return latest < time.time_ns() - SETTLED_NS


@functools.lru_cache(maxsize=1)
def _code() -> str:
    """A hash of `SOURCES`."""
    text = b"".join(read_bytes(Path(str(module.__file__))) for module in SOURCES)
    return hashlib.sha256(text).hexdigest()[:16]
