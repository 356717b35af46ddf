"""The agent of an earlier run as the base agent of another one (the setting `agent`): the agent,
under adapter names that hold a hash of their content, and what was spent on it by all the runs that
made it. Its adapters are copied, so that the earlier run's folder may change."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_bench.core import store
from trace_bench.core.decode import Limits, Unreadable, convert, fault_of
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import AGENT, BEGINNING, CONFIG, REPAIRS, SUMMARY
from trace_bench.core.summary import EarlierRun, read_settings, read_summary
from trace_bench.core.text import file_name
from trace_bench.core.types import AdapterRef, AgentSpec, charged

WEIGHTS = ("adapter_config.json", "adapter_model.safetensors")
"""The files of an adapter."""
PROMPT = Limits(2**18)
"""Of an agent's prompt: more than any context holds."""


@dataclass(frozen=True)
class Beginning:
    """`agent`: each adapter's name holds a hash of its files. `runs`: those that made it, the
    first one first. `weights`: the base model's hash."""

    agent: AgentSpec
    runs: tuple[EarlierRun, ...]
    weights: str | None = None

    @property
    def sha256(self) -> str:
        """Hash of all that the agent does: its prompt, its router and its adapters' content."""
        agent = self.agent
        adapters = [[a.name, a.capability] for a in agent.adapters]  # a name holds the content
        parts = {"prompt": agent.prompt, "router": agent.router, "adapters": adapters}
        return store.fingerprint(parts)

    def identity(self, accounting: str) -> dict[str, Any]:
        """What of it belongs to the identity of the run that begins here."""
        rollouts, demonstrations = totals(self.runs, accounting)
        return {"sha256": self.sha256, "rollouts": rollouts, "demonstrations": demonstrations}


def totals(runs: Sequence[EarlierRun], accounting: str) -> tuple[int | None, int]:
    """(rollouts charged in all of these runs, None if one is unknown; demonstrations)."""
    spent = [None if r.rollouts is None else charged(r.rollouts, accounting) for r in runs]
    counted = [n for n in spent if n is not None]
    return sum(counted) if len(counted) == len(spent) else None, sum(r.demonstrations for r in runs)


def read_beginning(place: str) -> Beginning:
    """What lies in a run folder, a folder with an agent.json, or such a file (or a run's
    beginning.json). Raises UserError for a run that is not finished and for what holds no agent."""
    path = _path(place)
    try:
        if path.name == BEGINNING:
            data = store.read_object(path)
            agent = placed(convert(data["agent"], AgentSpec), path.parent)
            runs = convert(data["runs"], tuple[EarlierRun, ...])
            return Beginning(_named(agent), runs, data["weights"])
        agent = _named(_plain(read_agent(path)))
        return Beginning(agent, _runs(path.parent), _weights(path.parent))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(
            f"agent={place}: {path} or the summary beside it is damaged "
            f"({type(error).__name__}: {error}). Restore it from a copy, or change `agent`."
        ) from error


def base_agent(model: str, beginning: Beginning | None, folder: Path) -> AgentSpec:
    """The base agent on the model, with its adapters in the run's folder. Its version names its
    content. Raises UserError if an adapter has changed since it was looked at."""
    if beginning is None:
        return AgentSpec(model=model)
    adapters = tuple(_copy(adapter, folder / "adapters") for adapter in beginning.agent.adapters)
    agent = replace(beginning.agent, adapters=adapters)
    store.write_json(folder / BEGINNING, replace(beginning, agent=agent))
    return replace(agent, model=model, version=f"start-{beginning.sha256}")


def adapter_hash(adapter: AdapterRef) -> str:
    """Hash of an adapter's files. Raises UserError if one is missing."""
    files = [Path(adapter.path) / name for name in WEIGHTS]
    if gone := [file for file in files if not file.is_file()]:
        raise UserError(
            f"the adapter {adapter.name!r} is gone: {gone[0]} does not exist, and there is none of "
            "its name beside the agent. Change `agent`."
        )
    return hash_of(files)


def hash_of(files: Sequence[Path]) -> str:
    """Hash of the files' content; read again only if the time or size of one differs."""
    return _hash_of(tuple((f, f.stat().st_mtime_ns, f.stat().st_size) for f in files))


@functools.lru_cache(maxsize=64)
def _hash_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, _, _ in files:
        with store.plain_file(file) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def renamed(router: Mapping[str, Any] | None, name: Callable[[Any], Any]) -> Any:
    """A router's description with other adapters' names, by `name`; None is the base model."""
    if router is None:
        return None
    out = dict(router)
    for key in ("adapter", "otherwise"):
        if key in out:
            out[key] = name(out[key])
    for key in ("skills", "parts"):
        if key in out:
            out[key] = [[name(first), *rest] for first, *rest in out[key]]
    if "labels" in out:
        out["labels"] = [name(label) for label in out["labels"]]
    return out


def _path(agent: str) -> Path:
    path = Path(agent)
    path = path / AGENT if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"agent={agent!r} holds no agent ({path} does not exist); allowed: the folder of a "
            f"finished run, a folder with an {AGENT}, or such a file. A run that began at an agent "
            f"which is gone has kept it: <its folder>/{BEGINNING}. Change `agent`."
        )
    return path


def _plain(agent: AgentSpec) -> AgentSpec:
    """The agent without a router that always makes the same choice."""
    router = agent.router
    if router is None or router.get("kind") != "fixed":
        return agent
    kept = tuple(a for a in agent.adapters if a.name == router["adapter"])
    return replace(agent, adapters=kept, router=None)


def _named(agent: AgentSpec) -> AgentSpec:
    """The agent with the content of each adapter in its name ("grpo-1a2b3c4d@0008"), so that no new
    adapter has the name of an old one; a name that holds it already stays."""
    names: dict[Any, Any] = {None: None}
    for adapter in agent.adapters:
        stem, _, version = adapter.name.partition("@")
        suffix = f"-{adapter_hash(adapter)[:8]}"
        stem = file_name(re.sub(r"[^\w.+-]", "_", stem.removesuffix(suffix))) + suffix
        version = re.sub(r"[^0-9A-Za-z]", "_", file_name(version or "0000"))
        names[adapter.name] = f"{stem}@{version}"
    adapters = tuple(replace(a, name=names[a.name]) for a in agent.adapters)
    return replace(agent, adapters=adapters, router=renamed(agent.router, names.__getitem__))


def _runs(folder: Path) -> tuple[EarlierRun, ...]:
    """The run of a folder after those that it began with. A folder that only holds an agent does
    not say what was spent. Raises UserError for a run that is not finished."""
    if not (folder / CONFIG).exists() and not (folder / SUMMARY).exists():
        return (EarlierRun("unknown", "", 0, 0, "", None, 0),)
    if (summary := read_summary(folder)) is None:
        raise UserError(
            f"the run in {folder} is not finished, so nothing can begin with its agent. Run its "
            "command again, or change `agent`."
        )
    s, rollouts = summary, summary.own_rollouts
    this = EarlierRun(
        s.method, s.world, s.seed, s.budget, s.fingerprint, rollouts, s.demonstrations, s.marks
    )
    before = () if s.beginning is None else s.beginning.runs
    return (*before, this) if s.learns or any(rollouts.values()) else before


def _weights(folder: Path) -> str | None:
    there = (folder / CONFIG).exists()
    digest = read_settings(folder / CONFIG)["model"].get("sha256") if there else None
    return None if digest is None else str(digest)


def read_agent(path: Path) -> AgentSpec:
    """The agent in a file. An adapter that lies in the folder of the file is the one meant, so that
    a copied run uses its own; else the one where the file says. Raises UserError."""
    try:
        agent = convert(store.read_json(path), AgentSpec)
        if fault := fault_of(agent.prompt, PROMPT):
            raise Unreadable(f"`prompt`: {fault}")
        return placed(agent, path.parent)
    except Unreadable as error:
        raise UserError(f"{path} holds no agent ({error}). {REPAIRS['agent.json']}") from error


def placed(agent: AgentSpec, folder: Path) -> AgentSpec:
    """The agent with the adapters that lie in the folder, where they do."""
    adapters = []
    for adapter in agent.adapters:
        beside = folder.joinpath("adapters", *Path(adapter.path).parts[-2:])
        adapters.append(replace(adapter, path=str(beside)) if beside.is_dir() else adapter)
    return replace(agent, adapters=tuple(adapters))


def _copy(adapter: AdapterRef, folder: Path) -> AdapterRef:
    """The adapter's files in the folder of its name and version; written once, whole or not."""
    stem, _, version = adapter.name.partition("@")
    target = folder / stem / version
    copy = replace(adapter, path=str(target))
    expected = stem.rpartition("-")[2]
    if target.is_dir() and adapter_hash(copy).startswith(expected):
        return copy
    with store.disk_errors(target), store.replacing(target) as building:
        for name in WEIGHTS:
            store.write_bytes(building / name, store.read_bytes(Path(adapter.path) / name))
        if not adapter_hash(replace(adapter, path=str(building))).startswith(expected):
            raise UserError(
                f"the adapter {adapter.path} was changed while it was copied. Run the command "
                "again when nothing writes it any more, or change `agent`."
            )
    return copy
