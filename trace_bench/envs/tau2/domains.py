"""The benchmark's domains as inspect-evals ships them: tasks, splits, rules, tools and databases.

The benchmark's tools find their database in the store of the current context; what says so below
is called there."""

from __future__ import annotations

import contextvars
import copy
import gzip
import hashlib
import json
import random
import tomllib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from trace_bench.envs import package_folder
from trace_bench.envs.tau2.shared import Shared, canonical

USER, AGENT = "user", "assistant"
PACKAGE, VERSION = "inspect-evals", "0.26.0"
IDS: contextvars.ContextVar[random.Random] = contextvars.ContextVar("ids")
"""What an episode's tools draw ids from."""

Database = tuple[Any, str, Any]  # the class of its toolkit, its name in a store, and itself


def port() -> Path:
    """Where the τ² port is installed. Raises UserError."""
    return package_folder("tau2", PACKAGE, VERSION, "pip install '.[tau2]'", "inspect_evals.tau2")


def part(place: str) -> Any:
    """A part of the port. `place`: module:name."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"inspect_evals.tau2.{module}"), name)


def read(path: Path) -> bytes:
    """A file of the port, unpacked where its name ends in .gz."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@cache
def user_guidelines(tools: bool) -> str:
    """The benchmark's instructions for the behaviour of a simulated user with or without tools."""
    name = "simulation_guidelines_tools.txt" if tools else "simulation_guidelines.txt"
    return read(port() / "data" / "user_simulator" / name).decode()


class Domain(ABC):
    """`records`: the benchmark's own, by the task's id; `splits`: ids by split; `revision`: a line
    that names the release of all of it. Raises UserError if the package is missing or has another
    version than the tested one."""

    release = "v0.2 of sierra-research/tau2-bench 377cecf"
    file = "tasks.json"
    prefix = ""  # of the tools' names in the port
    copied = True  # the databases are small: each episode has all of them

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, port() / "data" / "domains" / name
        text = read(self.folder / self.file)
        self.records: Mapping[str, Mapping[str, Any]] = {r["id"]: r for r in json.loads(text)}
        self.splits: Mapping[str, Sequence[str]] = self.parts()
        digest = hashlib.sha256(text).hexdigest()[:12]
        self.revision = (
            f"tasks {self.release}, sha256 {digest}; databases and tools of {PACKAGE} {VERSION}"
        )

    def parts(self) -> Mapping[str, Sequence[str]]:
        """The benchmark's own splits: ids of tasks by name."""
        parts: Mapping[str, Sequence[str]] = json.loads(read(self.folder / "split_tasks.json"))
        return parts

    def policy(self) -> str:
        """The benchmark's rules that the agent must follow."""
        return read(self.folder / "policy.txt").decode()

    @abstractmethod
    def tools(self) -> Mapping[str, Sequence[Any]]:
        """By side: what makes each tool."""

    @abstractmethod
    def databases(self) -> list[Database]:
        """Fresh ones, one for each toolkit."""

    @abstractmethod
    def begin(self, initial: Mapping[str, Any]) -> None:
        """Brings about a task's initial state. Called in the episode's context."""

    def changes(self) -> str:
        """What the episode has changed in the database, as a text that is equal exactly if the
        databases are. Called in the episode's context."""
        raise NotImplementedError(f"no task of {self.name} is scored by its database")


class OneSided(Domain):
    """Airline and retail: only the agent has tools, and the database is shared by all episodes."""

    copied = False
    models: Mapping[str, str] = {"airline": "FlightDB", "retail": "RetailDB"}

    def tools(self) -> Mapping[str, Sequence[Any]]:
        return {AGENT: list(part(f"{self.name}.tools:all_{self.name}_tools")), USER: ()}

    def databases(self) -> list[Database]:
        kit = f"{self.name.title()}AgentTools"
        own = {table: Shared(records) for table, records in self._tables.items()}
        model = part(f"{self.name}.data_model:{self.models[self.name]}")
        toolkit = part(f"{self.name}.{kit}:{kit}")
        return [(toolkit, f"{self.name.title()}Tools", model.model_construct(**own))]

    def begin(self, initial: Mapping[str, Any]) -> None:
        """All tasks start with the database as it is."""

    def changes(self) -> str:
        """A hundred times faster to compute than the port's hash."""
        db = part(f"{self.name}.tools:get_{self.name}_tools")().db
        tables = {name: getattr(db, name).changes() for name in type(db).model_fields}
        return json.dumps(tables, sort_keys=True, default=str)

    @cached_property
    def _tables(self) -> Mapping[str, Mapping[str, Any]]:
        model = part(f"{self.name}.data_model:{self.models[self.name]}")
        base = model.model_validate(json.loads(read(self.folder / "db.json.gz")))
        return {table: getattr(base, table) for table in type(base).model_fields}


class Telecom(Domain):
    """Agent and user have databases of their own, and tasks start with actions on both sides."""

    file = "tasks.json.gz"

    def policy(self) -> str:
        names = ("main_policy.txt", "tech_support_manual.txt")
        return "\n\n".join(read(self.folder / name).decode() for name in names)

    def tools(self) -> Mapping[str, Sequence[Any]]:
        part("telecom:TelecomAgentTools").uuid = _Ids
        return {
            AGENT: list(part("telecom.tools:all_telecom_agent_tools")),
            USER: list(part("telecom.user_tools:all_telecom_user_tools")),
        }

    def databases(self) -> list[Database]:
        return copy.deepcopy(self._databases)

    def begin(self, initial: Mapping[str, Any]) -> None:
        env = environment()
        for action in initial.get("initialization_actions") or ():
            tools = env.user_tools if action["env_type"] == USER else env.tools
            getattr(tools, action["func_name"])(**action["arguments"])
            env.sync_tools()

    @cached_property
    def _databases(self) -> list[Database]:
        saved: list[Database] = []
        for side, file, place in (
            ("TelecomAgentTools", "db.toml", "data_model:TelecomDB"),
            ("TelecomUserTools", "user_db.toml", "user_data_model:TelecomUserDB"),
        ):
            text = (self.folder / file).read_text(encoding="utf-8")
            base = part(f"telecom.{place}").model_validate(tomllib.loads(text))
            saved.append((part(f"telecom.{side}:{side}"), side, base))
        return saved


class Banking(Domain):
    """The rules are documents, which the agent searches. The two sides have one database in common,
    whose records the tools change while they iterate over them."""

    release = "v1.0.0 (graded as before 1.0.1) of sierra-research/tau2-bench fcc9ed6"
    prefix = "banking_"

    def parts(self) -> Mapping[str, Sequence[str]]:
        """The benchmark has none: every third task is held out."""
        names = list(self.records)
        train = [name for number, name in enumerate(names) if number % 3 != 2]
        return {"train": train, "test": names[2::3], "base": names}

    def policy(self) -> str:
        """It says how to search the documents with the tool `grep`."""
        return str(part("banking.agents:_get_domain_policy")())

    def tools(self) -> Mapping[str, Sequence[Any]]:
        search = part("banking.tools:banking_grep")
        return {
            AGENT: [*part("banking.tools:all_banking_agent_tools"), search],
            USER: list(part("banking.user_tools:all_banking_user_tools")),
        }

    def databases(self) -> list[Database]:
        return copy.deepcopy(self._databases)

    def begin(self, initial: Mapping[str, Any]) -> None:
        sides = (part(f"banking.environment:get_{side}_tools")() for side in ("agent", "user"))
        # A copy: the tools change the records.
        state = part("data_model.tasks:InitialState").model_validate(copy.deepcopy(initial))
        part("banking.environment:apply_initial_state")(*sides, state)

    def changes(self) -> str:
        """The benchmark's own hash, without the table that only the port keeps."""
        db = part("banking.tools:get_banking_agent_tools")().db
        whole = canonical(db.model_dump(exclude={"interest_discrepancy_reports"}))
        return hashlib.sha256(whole.encode()).hexdigest()

    @cached_property
    def _databases(self) -> list[Database]:
        db = part("banking.data_model:TransactionalDB").load(str(self.folder / "db.json"))
        sides = ("BankingAgentTools", "BankingUserTools")
        return [(part(f"banking.{side}:{side}"), side, db) for side in sides]


DOMAINS: Mapping[str, type[Domain]] = {
    "airline": OneSided,
    "retail": OneSided,
    "telecom": Telecom,
    "banking_knowledge": Banking,
}


def environment() -> Any:
    """Telecom's environment in the current context, with its two sides synchronized."""
    return part("telecom.environment:get_environment")()


class _Ids:
    """Replaces the module `uuid` in tools that draw ids: gives the same ids in every replay."""

    @staticmethod
    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=IDS.get().getrandbits(128), version=4)
