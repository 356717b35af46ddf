"""Crash-safe files and machine-independent seeds. Everything a run writes goes through here: whole
files are replaced atomically, JSONL files are appended line by line and repaired on open, and a
full disk is reported as a UserError."""

from __future__ import annotations

import dataclasses
import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, overload

from trace_bench.core.decode import FILE, Unreadable, decode, read
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.types import to_json, written

T = TypeVar("T")


def stable_seed(*parts: object) -> int:
    """A 63-bit seed from strings and numbers: the same on every machine and in every process."""
    # Joined as JSON, so that ("a", "b") and ("ab",) differ.
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
    """Turns what a disk refuses into a UserError that names the path and the reason, and the folder
    above it that is refused, if one is."""
    try:
        yield
    except OSError as error:
        above = f"{error.filename}: " if error.filename in map(str, path.parents) else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk is full: could not write {path}. Free some space, or change the setting "
                "`run_dir`, then run the same command again: it resumes where it stopped."
            ) from error
        raise UserError(
            f"could not write {path}: {above}{reason(error)}. Change the setting `run_dir` (or "
            "`--out`), or make that place writable, then run the same command again."
        ) from error


def reason(error: OSError | ValueError) -> str:
    """What the system says of a path, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def brief(path: Path) -> str:
    """A path in a message, which a name of any length and any characters shall not spoil."""
    text = str(path) if str(path).isprintable() else ascii(str(path))[1:-1]
    return text if len(text) <= 200 else f"{text[:60]}..."


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replaces a file atomically: readers see the old or the new content, never a part."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def remove_leftovers(files: Iterable[Path]) -> None:
    """Removes, where allowed, what a killed program of this machine has left half written."""
    for path in [*files]:
        name = re.fullmatch(r"\..+\.(\d{1,10})\.tmp", path.name)
        if name is not None and not running(int(name[1])):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink(missing_ok=True)


def running(pid: int) -> bool:
    """Whether a process of this machine has the number and has not ended, as one has that was
    killed and that its parent never waits for."""
    try:
        with suppress(PermissionError):  # that of another user
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return process(pid)[:1] not in (["Z"], ["X"])


def process(pid: int) -> list[str]:
    """What /proc says of a process from its state on (see proc(5), `stat`); [] for nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


LOCK = ".lock"


@contextmanager
def locked(folder: Path, refusal: str = "") -> Iterator[None]:
    """Holds the lock of a folder, which ends with the process. While another one holds it, raises
    UserError with the text of the refusal, or waits if there is none."""
    import fcntl  # systems without it can read what others have made

    while True:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
            except OSError as error:
                raise UserError(refusal) from error
            if os.fstat(file.fileno()).st_nlink == 0:
                continue  # its last holder has removed it, and others would lock another file
            with disk_errors(folder / LOCK):
                file.write(f"{os.getpid()}\n")
                file.flush()
            yield
            return


@contextmanager
def whole(out: Path, fix: str = "Name another place in --out.") -> Iterator[Path]:
    """An empty folder that gets the name `out` at the end of the block, or is removed. UserError
    for a place that is taken or cannot be written. `fix`: what to do about it."""
    with disk_errors(out):
        if out.exists():
            raise UserError(f"{brief(out)} exists already. {fix}")
    with _beside(out.resolve()) as building:
        with disk_errors(out):
            building.mkdir(parents=True)
        yield building
        with disk_errors(out):
            building.rename(out)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A place for a folder that takes the place of `folder` at the end of the block."""
    with _beside(folder) as building:
        yield building
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A place beside a folder for this process, where nothing is before and after the block."""
    building = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    remove_leftovers(folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"))
    shutil.rmtree(building, ignore_errors=True)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Any of the project's values as an indented JSON file, atomically."""
    write_bytes(path, _encoded(value, path, indent=2) + b"\n")


def _encoded(value: Any, path: Path, **how: Any) -> bytes:
    """The JSON of `to_json(value)`, without escapes where possible; a lone surrogate in a text
    needs one. Raises UserError for a number that is not finite, which JSON does not have."""
    how |= {"allow_nan": False}
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, **how).encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, default=_plain, **how).encode()
    except TypeError:  # keys that the encoder does not accept
        return _encoded(to_json(value), path, **how)
    except ValueError as error:
        key, number = next(_not_finite(to_json(value)), ("", error))
        raise UserError(
            f"{path}: `{key}` would be {number}; allowed: finite numbers. If training has made it, "
            "lower `trainer.learning_rate`; else the part that wrote it has an error."
        ) from error


def _not_finite(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in plain data that are not finite, each with its key."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value
    elif isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _not_finite(part, f"{key}.{name}" if key else str(name))


def _plain(value: Any) -> Any:
    """One level of a value unknown to the encoder, which does the rest: faster than `to_json`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return written(value)
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is no JSON")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises UserError if the file is missing or not JSON."""
    try:
        return read(read_bytes(path), FILE)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist. Check the setting `run_dir`.") from error
    except Unreadable as error:
        raise UserError(f"{path} is not JSON ({error}). {repair(path)}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError if it holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds {type(value).__name__}, no JSON object. {repair(path)}")
    return value


def read_if_there(path: Path) -> dict[str, Any]:
    """The object in a JSON file as `read_object` gives it; {} where there is no such file."""
    return read_object(path) if path.exists() else {}


@contextmanager
def plain_file(path: Path, fix: str = "") -> Iterator[BufferedReader]:
    """A file to read, of which any path goes through here that a person or another file names.
    Raises UserError for what is no plain file and might never end (a pipe, a device, also behind a
    symbolic link) and for what may not be read; FileNotFoundError. `fix`: what to do about it."""
    without_waiting = os.O_RDONLY | os.O_NONBLOCK  # also for a pipe without a writer
    try:
        with os.fdopen(os.open(path, without_waiting), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path} is no plain file. {fix or repair(path)}")
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}. {fix or repair(path)}") from error


def read_bytes(path: Path, fix: str = "") -> bytes:
    with plain_file(path, fix) as file:
        return file.read()


def bounded_lines(path: Path, longest: int, fix: str = "") -> Iterator[tuple[int, bytes]]:
    """The lines of a `plain_file` that are not empty, with their numbers. Raises UserError for one
    of more than `longest` bytes, of which no more is read."""
    with plain_file(path, fix) as file:
        for number in count(1):
            if not (line := file.readline(longest + 1)):
                return
            if len(line) > longest:
                raise UserError(f"{path}, line {number} is longer than {longest} bytes. {fix}")
            if line.strip():
                yield number, line


class Lines(Generic[T]):
    """An append-only JSONL file; iterating over it reads its values, of the `kind`. Opening it
    removes a last line that was cut off by a kill; a line before it that is no such value raises
    UserError when it is read, since this program never writes one."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self._kind = kind
        self._file: IO[bytes] | None = None
        if not path.exists():
            return
        if not path.is_file():
            raise UserError(f"{path} is no plain file. {repair(path)}")
        with disk_errors(path), path.open("rb+") as file:
            size = start = file.seek(0, os.SEEK_END)
            end = 0  # of the last complete line
            while start and not end:
                file.seek(start := max(0, start - 2**16))
                after = file.read(2**16).rfind(b"\n") + 1
                end = start + after if after else 0
            if size > end:
                file.truncate(end)

    def __iter__(self) -> Iterator[T]:
        return each_line(self.path, self._kind)

    def append(self, value: Any, *, sync: bool = False) -> None:
        """Writes one line, whole or not at all. `sync`: so that it survives a machine's crash."""
        line = _encoded(value, self.path, separators=(",", ":"))
        with disk_errors(self.path):
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab", buffering=0)
            _write_all(self._file, line + b"\n")
            if sync:
                os.fsync(self._file.fileno())

    def drop(self, unwanted: Callable[[T], bool]) -> int:
        """Removes the unwanted lines, and says how many: readers see the old or the new file."""
        self.close()
        gone = {number for number, line in enumerate(self, start=1) if unwanted(line)}
        if gone:
            write_bytes(self.path, (x for n, _, x in whole_lines(self.path) if n not in gone))
        return len(gone)

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def file_hash(path: Path) -> str | None:
    if not path.exists():
        return None
    with plain_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_line(line: bytes, path: Path, number: int, kind: type[T]) -> T:
    """The value in a line of a JSONL file, the `number`-th from 1. Raises UserError."""
    try:
        return decode(line, kind)
    except Unreadable as error:
        raise damaged(path, number, f"{error}: {line[:60].rstrip()!r}") from error


@overload
def read_lines(path: Path) -> list[dict[str, Any]]: ...
@overload
def read_lines(path: Path, kind: type[T]) -> list[T]: ...
def read_lines(path: Path, kind: Any = dict) -> list[Any]:
    """All complete lines of a JSONL file, read-only (a torn last line is left out): values of the
    `kind`, or objects as they are. Raises UserError for a line that is none."""
    return [*each_line(path, kind)]


def each_line(path: Path, kind: type[T]) -> Iterator[T]:
    """The same one by one, so that those before a damaged line can be used."""
    for number, _, line in whole_lines(path):
        yield parse_line(line, path, number, kind)


def whole_lines(path: Path, after: int = 0, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """The complete lines of a file, if it is there, `after` a number of them, which end at the
    offset `start`: the number (from 1), the offset, the line. A longer one than `FILE` is cut."""
    if not path.exists():
        return
    with plain_file(path) as file:
        file.seek(start)
        for number in count(after + 1):
            line = file.readline(FILE.size + 2)
            if not line.endswith(b"\n") and len(line) <= FILE.size:
                return
            yield number, start, line
            start += len(line)


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Writes all data or none: an unbuffered write may stop half-way on a nearly full disk."""
    start = file.seek(0, os.SEEK_END)
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError:
        os.ftruncate(file.fileno(), start)
        raise


def damaged(path: Path, number: int, why: str) -> UserError:
    """The UserError for a damaged line of a file, with what makes its content again."""
    return UserError(f"{path}, line {number} is corrupt ({why}). {repair(path)}")


def repair(path: Path) -> str:
    """What to do about a damaged file, as the end of a message."""
    texts = (text for place, text in REPAIRS.items() if path.match(place))
    return next(texts, "Restore it from a copy, or name another place.")
