"""Files that survive being killed, seeds that survive being moved.

Everything a run writes goes through here: whole files are replaced atomically, JSONL files are
appended line by line and repaired on open, and a full disk is said in words.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trace_bench.core.errors import UserError
from trace_bench.core.types import to_json


def stable_seed(*parts: object) -> int:
    """A 63-bit seed from strings and numbers: the same on every machine and in every process.

    Parts are joined as JSON, so that ("a", "b") and ("ab",) differ.
    """
    text = json.dumps([str(p) for p in parts], ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def canonical(value: Any) -> str:
    """One JSON text per value: sorted keys, no spaces. Raises ValueError on NaN."""
    return json.dumps(
        to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def fingerprint(config: Mapping[str, Any], length: int = 12) -> str:
    """The first `length` hexadecimal digits of sha256 over the config's canonical JSON."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:length]


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns "no space left" into a UserError that names the path; lets other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"the disk is full: could not write {path}. Free some space, or change the setting "
            "`run_dir`, then run the same command again: it resumes where it stopped."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one step: readers see the old or the new content, never a part."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """Any of the project's values as an indented JSON file, atomically."""
    write_text(path, _encoded(to_json(value), indent=2).decode() + "\n")


def _encoded(value: Any, **how: Any) -> bytes:
    """JSON as it is read best; with escapes where a text holds half a character, which only an
    escape can express."""
    try:
        return json.dumps(value, ensure_ascii=False, **how).encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, **how).encode()


def read_json(path: Path) -> Any:
    """The file's value. Raises UserError when it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist. Check the setting `run_dir`.") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not JSON (line {error.lineno}: {error.msg}). Restore it, or remove it "
            "and run the same command again."
        ) from error


class Lines:
    """An append-only JSONL file.

    Opening reads what is there: a last line that was cut off by a kill is removed; a broken line
    before it is a UserError, since nothing of ours writes one. `append` flushes every line, so
    that a killed process loses at most the line it was writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self.existing: list[dict[str, Any]] = list(self._recover())

    def _recover(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            good = 0
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                yield _parse(line, self.path, number)
                good += len(line)
            if file.seek(0, os.SEEK_END) > good:
                file.truncate(good)

    def append(self, value: Any, *, sync: bool = False) -> None:
        """Writes one line. A line that did not fit on the disk is taken back again. `sync`: it is
        on the disk when this returns, whatever becomes of the machine."""
        line = _encoded(to_json(value), separators=(",", ":"))
        with disk_errors(self.path):
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab", buffering=0)
            _write_all(self._file, line + b"\n")
            if sync:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def file_hash(path: Path) -> str | None:
    """sha256 of a file; None when it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a JSONL file, without touching it (a torn last line is left out)."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        numbered = enumerate(file, start=1)
        return [_parse(line, path, n) for n, line in numbered if line.endswith(b"\n")]


def _write_all(file: IO[bytes], data: bytes) -> None:
    """An unbuffered write may stop half-way (a nearly full disk): finish it or take it back."""
    start = file.seek(0, os.SEEK_END)
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError:
        os.ftruncate(file.fileno(), start)
        raise


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise UserError(
            f"{path}, line {number} is corrupt ({error}): {line[:60]!r}. Remove that line (its "
            "episode's call is then played again), or remove the run folder, then run the same "
            "command again; or change the setting `run_dir`."
        ) from error
    return value
