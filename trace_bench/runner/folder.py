"""A run's folder: which settings it belongs to, who is writing it, whether it is finished."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import fingerprint, read_json, write_text
from trace_bench.core.types import to_json
from trace_bench.settings.compose import NOT_IDENTITY, differences, identity
from trace_bench.settings.schema import Settings

CONFIG = "config.yaml"
SUMMARY = "summary.json"


def locate(settings: Settings) -> tuple[Path, dict[str, Any], str]:
    """The run's folder, its identity and the fingerprint of it."""
    who = identity(settings)
    mark = fingerprint(who)
    default = Path("runs") / settings.env.name / settings.method["name"] / mark
    return Path(settings.run_dir) if settings.run_dir else default, who, mark


def claim(folder: Path, who: Mapping[str, Any], settings: Settings) -> bool:
    """Makes the folder this run's; True when it was already.

    Raises UserError naming the keys that differ when it belongs to another run.
    """
    path = folder / CONFIG
    if path.exists():
        _check_same(path, who)
        return True
    if folder.exists() and not folder.is_dir():
        raise UserError(f"run_dir={folder} is a file; a folder is needed. Change `run_dir`.")
    strangers = [p.name for p in folder.iterdir() if p.name != LOCK] if folder.exists() else []
    if strangers:
        raise UserError(
            f"{folder} is not empty and not a run folder (no {CONFIG}). Change `run_dir`."
        )
    import yaml

    extra = {key: to_json(getattr(settings, key)) for key in NOT_IDENTITY}
    write_text(path, yaml.safe_dump({**who, **extra}, sort_keys=False, allow_unicode=True))
    return False


def stored_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None when the run is not finished."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    summary = read_json(path)
    return dict(summary) if summary.get("complete") else None


LOCK = ".lock"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keeps two processes from writing one folder; a killed process leaves no lock behind."""
    try:
        import fcntl
    except ImportError:  # no such lock on Windows; the folder is then unguarded
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"another process is writing {folder}. Wait for it, or change `run_dir` or `seed`."
            ) from error
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _check_same(path: Path, who: Mapping[str, Any]) -> None:
    import yaml

    try:
        old = yaml.safe_load(path.read_text(encoding="utf-8"))
        old = {key: value for key, value in old.items() if key not in NOT_IDENTITY}
    except (yaml.YAMLError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}). Change `run_dir`.") from error
    if changed := differences(old, who):
        raise UserError(
            f"{path.parent} belongs to a run with other settings: {'; '.join(changed)}. Change "
            "`run_dir`, or use the folder's settings."
        )
