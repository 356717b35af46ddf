"""A run's identity: all settings that affect its results, and code from outside the package; and
the folder that belongs to it: its settings, the lock of its writer.

Settings whose field has `metadata={"identity": False}` (addresses, deadlines) are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core import store
from trace_bench.core.beginning import hash_of, read_beginning
from trace_bench.core.checked import choices, identifying
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.run_files import CONFIG, ELSEWHERE
from trace_bench.core.store import LOCK, read_object
from trace_bench.core.summary import read_settings
from trace_bench.core.types import flat, to_json
from trace_bench.settings.registry import Offered, Part, find
from trace_bench.settings.schema import PARTS, EnvSettings, ModelSettings, PartSettings, Settings

WEIGHTS = "model.safetensors"
NOT_NAMED = ("factory", "options", "image")  # how a part is specified, not what it is


def parts_of(settings: Settings) -> dict[str, Part]:
    """The parts that the settings name, by group. Raises UserError."""
    suite = settings.env.suite
    return {g: find(g, vars(settings)[g], suite if g == "env" else None) for g in PARTS}


def identity(settings: Settings, parts: Mapping[str, Part]) -> dict[str, Any]:
    """The run's identity as plain data; its fingerprint names the run."""
    data = identifying(settings, without=(*ELSEWHERE, *PARTS))
    for group in PARTS:
        if group not in ELSEWHERE:
            data[group] = of_part(getattr(settings, group), parts[group])
    data["llm"] = {
        name: role.by if role.by == "program" else identifying(role)
        for name, role in settings.llm.roles.items()
    }
    path = None if parts["policy"].declared.scripted else model_path(settings, parts)
    data["model"]["sha256"] = None if path is None else weights_hash(path)
    if settings.agent is not None:
        data["beginning"] = read_beginning(settings.agent).identity(settings.accounting)
    return data


def suite_identity(env: str, variant: str | None) -> dict[str, Any]:
    """What a suite of this name and its default settings is in a run's identity."""
    chosen = EnvSettings(env, suite=variant)
    return of_part(chosen, find("env", chosen, variant))


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as JSON-safe data, from which another process can build the same parts."""
    data = dict(to_json(settings))
    for group in PARTS:
        if not isinstance(data[group]["factory"], str | None):
            data[group]["factory"] = None  # an object that only this process has
    return data


def model_path(settings: Settings, parts: Mapping[str, Part]) -> str:
    """The base model's weights: a folder, or a name on the hub."""
    run = RunContext(served_model=served_name(settings.model), settings=plain(settings))
    return str(parts["model"].make(run))


def served_name(model: ModelSettings) -> str:
    return model.served_as or model.name


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Keys in which two identities differ, each as `key: old -> new`."""
    before, after = dict(flat(old)), dict(flat(new))
    keys = sorted(before.keys() | after.keys())
    pairs = [(key, before.get(key, "absent"), after.get(key, "absent")) for key in keys]
    return [f"{key}: {one} -> {two}" for key, one, two in pairs if one != two]


def weights_hash(path: str) -> str | None:
    """Hash of local weights, so that a rebuilt model gives a different run; None for a hub name. Of
    both formats transformers reads the first."""
    place = Path(path)
    files = sorted(place.glob("*.safetensors")) or sorted(place.glob("*.bin"))
    return hash_of(files) if place.is_dir() else None


def weights_count(path: str) -> int | None:
    """Number of values by the headers of a folder's weights; None without readable ones."""
    from safetensors import SafetensorError, safe_open

    count, index = 0, Path(path, f"{WEIGHTS}.index.json")
    try:
        # Of the model itself, without adapters or copies that lie beside it.
        files = read_object(index)["weight_map"].values() if index.is_file() else [WEIGHTS]
        for name in set(files):
            with safe_open(Path(path, name), framework="numpy") as tensors:
                shapes = [tensors.get_slice(n).get_shape() for n in tensors.keys()]  # noqa: SIM118
            count += sum(map(math.prod, shapes))
    # What cannot be read here is read by whatever needs it, and refused there.
    except (UserError, OSError, ValueError, LookupError, AttributeError, SafetensorError):
        return None
    return count or None


def of_part(chosen: PartSettings, part: Part) -> dict[str, Any]:
    data = identifying(chosen, without=NOT_NAMED)
    options = part.factory.identity(part.options)
    for key, parameter in part.factory.parameters().items():
        offered = choices(parameter.hint)
        if key in options and isinstance(offered, Offered):
            options[key] = {**options[key], **offered.origin(options[key]["name"])}
    if part.origin is not None:
        return {**data, **options, "origin": to_json(part.origin)}
    named = {} if chosen.factory is None else {"factory": part.factory.text}  # a part of our own
    return {**data, **options, **named}


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
