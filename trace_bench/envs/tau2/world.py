"""One episode's databases and tools. The benchmark's tools find their database in the store of the
current context, so every episode has its own store and context."""

from __future__ import annotations

import contextvars
import json
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from trace_bench.core.chat import tool_json
from trace_bench.core.types import Tool
from trace_bench.envs.tau2.domains import IDS, USER, Domain


@dataclass(frozen=True)
class ToolAnswer:
    text: str
    failed: bool = False


def failed(why: str) -> ToolAnswer:
    return ToolAnswer(f"Error: {why}", failed=True)


class DomainTools:
    """A domain's tools by side and name, with their schemas; shared by all its episodes."""

    def __init__(self, domain: Domain) -> None:
        from inspect_ai.tool import ToolDef

        self.domain, self.policy = domain, domain.policy()
        self._definitions = {
            side: {
                d.name.removeprefix(domain.prefix): d for d in (ToolDef(make()) for make in makers)
            }
            for side, makers in domain.tools().items()
        }
        self.schemas: dict[str, tuple[Tool, ...]] = {
            side: tuple(starmap(_schema, found.items()))
            for side, found in self._definitions.items()
        }
        self._started: dict[str, bytes] = {}  # where they are copied: databases as a task begins

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
        context.run(IDS.set, ids)
        if (kept := self._started.get(record["id"])) is not None:
            values, state = pickle.loads(kept)
            ids.setstate(state)
            for key, value in values.items():
                store.set(key, value)
            return Tau2World(self, context)
        for toolkit, name, db in self.domain.databases():
            toolkit(store=store, instance=name, db=db, initialized=True)
        context.run(self.domain.begin, record.get("initial_state") or {})
        if self.domain.copied:
            snapshot = (dict(store.items()), ids.getstate())
            self._started[record["id"]] = pickle.dumps(snapshot, protocol=5)
        return Tau2World(self, context)

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
    """One episode's state. `context`: its store holds the databases."""

    toolbox: DomainTools
    context: contextvars.Context

    def call(self, side: str, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        return self.context.run(self.toolbox.call, side, name, arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in the episode's context, where it finds the databases."""
        return self.context.run(function, *arguments)

    def changes(self) -> str:
        """See `Domain.changes`."""
        return self.run(self.toolbox.domain.changes)  # type: ignore[no-any-return]


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
