"""A domain's data as inspect-evals ships it, and one episode's database and tools. The benchmark's
tools find their database in the store of the current context, so every episode has its own store
and context.

The databases of airline and retail are shared by all episodes, with copy on access: one of airline
has 2,800 records, an episode touches a few, and copying all takes a third of a second. Those of the
other domains are copied whole: they are small, and banking's tools change records that they iterate
over."""

from __future__ import annotations

import contextvars
import copy
import gzip
import hashlib
import json
import pickle
import random
import tomllib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import Any

from trace_bench.core.chat import tool_json
from trace_bench.core.types import Tool
from trace_bench.envs import package_folder

USER, AGENT = "user", "assistant"
PACKAGE, VERSION = "inspect-evals", "0.26.0"
BANKING = "banking_knowledge"
TASKS = "v0.2 of sierra-research/tau2-bench 377cecf"
"""The release of the benchmark's tasks that the package ships, except banking's."""
BANKING_TASKS = "v1.0.0 (graded as before 1.0.1) of sierra-research/tau2-bench fcc9ed6"
_IDS: contextvars.ContextVar[random.Random] = contextvars.ContextVar("ids")


def port() -> Path:
    """Where the τ² port is installed. Raises UserError."""
    return package_folder("tau2", PACKAGE, VERSION, "pip install '.[tau2]'", "inspect_evals.tau2")


@dataclass(frozen=True)
class DomainData:
    """A domain's tasks (the benchmark's own records, by id), the ids of every split, its folder in
    the package, and a line that names the release of all of it."""

    domain: str
    folder: Path
    records: Mapping[str, Mapping[str, Any]]
    splits: Mapping[str, Sequence[str]]
    revision: str


def load(domain: str) -> DomainData:
    """The data of a domain. Raises UserError if the package is missing or has another version than
    the tested one."""
    folder = port() / "data" / "domains" / domain
    text = _read(folder / ("tasks.json.gz" if domain == "telecom" else "tasks.json"))
    records = {record["id"]: record for record in json.loads(text)}
    splits = folder / "split_tasks.json"
    parts = json.loads(_read(splits)) if splits.exists() else thirds(list(records))
    digest = hashlib.sha256(text).hexdigest()[:12]
    release = BANKING_TASKS if domain == BANKING else TASKS
    revision = f"tasks {release}, sha256 {digest}; databases and tools of {PACKAGE} {VERSION}"
    return DomainData(domain, folder, records, parts, revision)


def thirds(names: Sequence[str]) -> dict[str, Sequence[str]]:
    """The splits of a domain for which the benchmark has none: every third task is held out."""
    train = [name for number, name in enumerate(names) if number % 3 != 2]
    return {"train": train, "test": names[2::3], "base": names}


def policy_text(data: DomainData) -> str:
    """The benchmark's rules that the agent must follow. Banking's are its documents: the text says
    how to search them with the tool `grep`."""
    if data.domain == BANKING:
        return str(_port("banking.agents:_get_domain_policy")())
    if data.domain != "telecom":
        return _read(data.folder / "policy.txt").decode()
    names = ("main_policy.txt", "tech_support_manual.txt")
    return "\n\n".join(_read(data.folder / name).decode() for name in names)


@cache
def user_guidelines(tools: bool) -> str:
    """The benchmark's instructions for the behaviour of a simulated user with or without tools."""
    name = "simulation_guidelines_tools.txt" if tools else "simulation_guidelines.txt"
    return _read(port() / "data" / "user_simulator" / name).decode()


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@dataclass(frozen=True)
class ToolAnswer:
    text: str
    failed: bool = False


def failed(why: str) -> ToolAnswer:
    return ToolAnswer(f"Error: {why}", failed=True)


class DomainTools:
    """A domain's tools by side and name, with their schemas; shared by all its episodes."""

    def __init__(self, data: DomainData) -> None:
        from inspect_ai.tool import ToolDef

        self.data = data
        self._definitions = {
            side: {d.name.removeprefix("banking_"): d for d in (ToolDef(make()) for make in makers)}
            for side, makers in _makers(data).items()
        }
        self.schemas: dict[str, tuple[Tool, ...]] = {
            side: tuple(starmap(_schema, found.items()))
            for side, found in self._definitions.items()
        }
        self._databases = _databases(data)
        self._started: dict[str, bytes] = {}  # telecom, banking: the databases as a task begins

    def of_user(self, record: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of the simulated user: those that the task names, or else all."""
        named = record.get("user_tools")
        tools = self.schemas[USER]
        return tuple(t for t in tools if named is None or t["function"]["name"] in named)

    def world(self, record: Mapping[str, Any]) -> Tau2World:
        """A fresh world in the task's initial state. Telecom's tasks start with actions on both
        sides, banking's with records of their own; the result is cached, so that this is done once
        per task."""
        from inspect_ai.util import Store
        from inspect_ai.util._store import init_subtask_store

        store, ids = Store(), random.Random(str(record["id"]))
        context = contextvars.copy_context()
        context.run(init_subtask_store, store)
        context.run(_IDS.set, ids)
        if (kept := self._started.get(record["id"])) is not None:
            values, state = pickle.loads(kept)
            ids.setstate(state)
            for key, value in values.items():
                store.set(key, value)
            return Tau2World(self, store, context)
        for toolkit, name, db in self._databases():
            toolkit(store=store, instance=name, db=db, initialized=True)
        if self.data.domain not in DATABASES:
            context.run(_begin, self.data.domain, record.get("initial_state") or {})
            snapshot = (dict(store.items()), ids.getstate())
            self._started[record["id"]] = pickle.dumps(snapshot, protocol=5)
        return Tau2World(self, store, context)

    def call(self, side: str, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """A tool's answer, in the current context. An exception becomes the answer `Error: ...`.
        The tool gets the arguments as they were given, whatever their types, as in the benchmark:
        a zip code that is a number is no text, and finds no user."""
        definition = self._definitions[side].get(name)
        if definition is None:
            return failed(f"there is no tool {name}")
        try:
            return ToolAnswer(_text(_finish(definition.tool(**arguments))))
        except Exception as error:  # the benchmark shows every error to the agent
            return failed(str(getattr(error, "message", None) or error))


@dataclass(frozen=True)
class Tau2World:
    """One episode's state: `store` holds the databases, `context` points to it."""

    toolbox: DomainTools
    store: Any
    context: contextvars.Context

    def call(self, side: str, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        return self.context.run(self.toolbox.call, side, name, arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in the episode's context, where it finds the databases."""
        return self.context.run(function, *arguments)

    def changes(self) -> str:
        """How the database differs from the domain's, as canonical JSON (airline and retail). Equal
        exactly if the port's hashes are, and a hundred times faster to compute. Banking's as the
        benchmark's own hash, without the table that only the port keeps."""
        domain = self.toolbox.data.domain
        if domain == BANKING:
            db = self.run(_port("banking.tools:get_banking_agent_tools")).db
            whole = _canonical(db.model_dump(exclude={"interest_discrepancy_reports"}))
            return hashlib.sha256(whole.encode()).hexdigest()
        db = self.run(_port(f"{domain}.tools:get_{domain}_tools")).db
        tables = {name: getattr(db, name).changes() for name in type(db).model_fields}
        return json.dumps(tables, sort_keys=True, default=str)


DATABASES = {"airline": "FlightDB", "retail": "RetailDB"}
"""The models of those that a toolkit of the agent's alone works on; the others have two sides."""


def _port(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"inspect_evals.tau2.{module}"), name)


def environment() -> Any:
    """Telecom's environment in the current context, with its two sides synchronized."""
    return _port("telecom.environment:get_environment")()


def _begin(domain: str, initial: Mapping[str, Any]) -> None:
    """Executes the actions of a task's initial state, on either side, and adds its records."""
    if domain == BANKING:
        sides = (_port(f"banking.environment:get_{side}_tools")() for side in ("agent", "user"))
        # A copy: the tools change the records.
        state = _port("data_model.tasks:InitialState").model_validate(copy.deepcopy(initial))
        _port("banking.environment:apply_initial_state")(*sides, state)
        return
    env = environment()
    for action in initial.get("initialization_actions") or ():
        tools = env.user_tools if action["env_type"] == USER else env.tools
        getattr(tools, action["func_name"])(**action["arguments"])
        env.sync_tools()


def _makers(data: DomainData) -> dict[str, list[Any]]:
    if data.domain in DATABASES:
        return {AGENT: list(_port(f"{data.domain}.tools:all_{data.domain}_tools")), USER: []}
    if data.domain == BANKING:
        agent = [
            *_port("banking.tools:all_banking_agent_tools"),
            _port("banking.tools:banking_grep"),
        ]
        return {AGENT: agent, USER: list(_port("banking.user_tools:all_banking_user_tools"))}
    from inspect_evals.tau2.telecom import TelecomAgentTools

    TelecomAgentTools.uuid = _Ids  # type: ignore[assignment]
    return {
        AGENT: list(_port("telecom.tools:all_telecom_agent_tools")),
        USER: list(_port("telecom.user_tools:all_telecom_user_tools")),
    }


def _databases(data: DomainData) -> Callable[[], list[tuple[Any, str, Any]]]:
    """What makes fresh databases, one for each toolkit: its class, its name in a store and its
    database. Banking's two sides have one in common."""
    if data.domain in DATABASES:
        name = data.domain.title()
        toolkit = _port(f"{data.domain}.{name}AgentTools:{name}AgentTools")
        model = _port(f"{data.domain}.data_model:{DATABASES[data.domain]}")
        base = model.model_validate(json.loads(_read(data.folder / "db.json.gz")))
        tables = {table: getattr(base, table) for table in type(base).model_fields}

        def shared() -> list[tuple[Any, str, Any]]:
            own = model.model_construct(**{t: Shared(records) for t, records in tables.items()})
            return [(toolkit, f"{name}Tools", own)]

        return shared
    if data.domain == BANKING:
        db = _port("banking.data_model:TransactionalDB").load(str(data.folder / "db.json"))
        sides = ("BankingAgentTools", "BankingUserTools")
        return partial(copy.deepcopy, [(_port(f"banking.{s}:{s}"), s, db) for s in sides])
    saved: list[tuple[Any, str, Any]] = []
    for side, file, place in (
        ("TelecomAgentTools", "db.toml", "data_model:TelecomDB"),
        ("TelecomUserTools", "user_db.toml", "user_data_model:TelecomUserDB"),
    ):
        text = (data.folder / file).read_text(encoding="utf-8")
        base = _port(f"telecom.{place}").model_validate(tomllib.loads(text))
        saved.append((_port(f"telecom.{side}:{side}"), side, base))
    return partial(copy.deepcopy, saved)


class _Ids:
    """Replaces the module `uuid` in tools that draw ids: gives the same ids in every replay."""

    @staticmethod
    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=_IDS.get().getrandbits(128), version=4)


def _schema(name: str, definition: Any) -> Tool:
    parameters = definition.parameters.model_dump(exclude_none=True, by_alias=True)
    plain = json.loads(json.dumps(parameters, default=str))
    return tool_json(name, definition.description, plain)


def _finish(coroutine: Any) -> Any:
    """Runs a coroutine that never suspends: the tools are plain functions declared async."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("the tool waits for something")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


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
            if key not in self._base or _canonical(now) != _canonical(self._base[key].model_dump()):
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


def _canonical(record: Any) -> str:
    """A record as the benchmark hashes it, in which 0 and 0.0 differ."""
    return json.dumps(record, sort_keys=True, default=str)
