"""A run's folder: its settings, the lock of its writer, and whether the run is finished."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core import store
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import CONFIG, ELSEWHERE
from trace_bench.core.store import LOCK
from trace_bench.core.summary import read_settings
from trace_bench.settings.identity import differences, identity, plain
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import Settings


@dataclass(frozen=True)
class Place:
    folder: Path
    identity: Mapping[str, Any]
    fingerprint: str

    def belongs(self) -> bool:
        """Whether the folder already belongs to this run; False if there is none yet. Raises
        UserError if it belongs to another run, with the keys that differ, or is no run folder."""
        folder, path = self.folder, self.folder / CONFIG
        if path.exists():
            stored = read_settings(path).items()
            old = {key: value for key, value in stored if key not in ELSEWHERE}
            if changed := differences(old, self.identity):
                raise UserError(
                    f"{folder} belongs to a run with other settings: {'; '.join(changed)}. Change "
                    "`run_dir`, or use the folder's settings."
                )
            return True
        if folder.exists() and any(p.name != LOCK for p in folder.iterdir()):
            raise UserError(
                f"{folder} is not empty and not a run folder (no {CONFIG}). Change `run_dir`."
            )
        return False

    def holds_run(self) -> bool:
        """Whether a run lies in the folder, of whatever settings."""
        try:
            return (self.folder / CONFIG).exists()
        except OSError:  # a name that no folder can have: making it says so
            return False

    def claim(self, settings: Settings) -> None:
        """Claims the folder for this run: writes its config."""
        import yaml

        data = plain(settings)
        text = {**self.identity, **{key: data[key] for key in ELSEWHERE}}
        dumped = yaml.safe_dump(text, sort_keys=False, allow_unicode=True)
        store.write_text(self.folder / CONFIG, dumped)


def locate(settings: Settings, parts: Mapping[str, Part]) -> Place:
    """The folder, identity and fingerprint of the run with these settings."""
    facts = identity(settings, parts)
    digest = store.fingerprint(facts)
    names = [re.sub(r"[^\w.+-]+", "_", parts[group].label) for group in ("env", "method")]
    default = Path(settings.runs_root, *names, digest)
    return Place(Path(settings.run_dir) if settings.run_dir else default, facts, digest)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds a lock so that only one process writes the folder; a killed one leaves none behind."""
    missing: list[Path] = []  # innermost first
    try:
        try:
            missing += [p for p in (folder, *folder.parents) if not p.exists()]
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a ValueError: the name has a zero byte
            raise UserError(
                f"the run folder {store.brief(folder)} cannot be made: {store.reason(error)}. "
                "Change `run_dir` or `runs_root`."
            ) from error
        with _lock(folder):
            yield
    finally:
        for made in missing:  # of a run that never started
            with suppress(OSError):
                made.rmdir()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    lock = folder / LOCK
    there = lock.exists()
    refusal = f"another process is writing {folder}. Wait for it, or change `run_dir` or `seed`."
    with store.locked(folder, refusal):
        try:
            store.remove_leftovers(folder.rglob(".*.tmp"))
            yield
        finally:
            # Also in a folder that was refused; while it is held, as later it may be another's.
            if not there and not (folder / CONFIG).exists():
                lock.unlink(missing_ok=True)
