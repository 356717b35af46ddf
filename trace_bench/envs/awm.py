"""Environments in the AgentWorldModel format (arXiv 2602.10090), run inside a worker.

A scenario is a SQLite database (schema and rows), a FastAPI program over it, whose endpoints are
the agent's tools, and for each of its tasks a program that compares the database before and after
the episode and the agent's last message: {"result": "complete"} is a success. All of it is
generated code.
Needs fastapi, sqlalchemy and httpx: `pip install '.[awm]'`, or the image `awm`.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from trace_bench.checklists.talk import text_of
from trace_bench.core.chat import answer_call, opening_of, read_call, tool_json
from trace_bench.core.protocols import Env
from trace_bench.core.types import Message, Score, Step, StopReason, Task, Tool

SYSTEM = "You work on a platform through its tools. Do what the user asks, then tell the result."
VERIFY = "verify_task_completion"
_TYPES = {
    **{"str": "string", "string": "string", "int": "integer", "integer": "integer"},
    **{"float": "number", "number": "number", "bool": "boolean", "boolean": "boolean"},
    **{"list": "array", "array": "array", "dict": "object", "object": "object"},
}


def world(
    scenarios: Sequence[Mapping[str, Any]],
) -> tuple[Callable[[int], dict[str, Any]], Callable[[Any], list[Message]], Callable[[], AwmEnv]]:
    """The names that envs/generated.py needs: tasks by seed, references (there are none), Env."""
    by_name = {str(s["name"]): s for s in scenarios}
    tasks = [(str(s["name"]), int(n)) for s in scenarios for n in sorted(s["verifiers"], key=int)]

    def make_task(seed: int) -> dict[str, Any]:
        name, number = tasks[seed % len(tasks)]
        return {"scenario": name, "task": number, "of": len(tasks)}

    return make_task, lambda data: [], lambda: AwmEnv(by_name)


class AwmEnv(Env):
    """One episode: a database of its own and the scenario's program on it."""

    def __init__(self, scenarios: Mapping[str, Mapping[str, Any]]) -> None:
        self._scenarios = scenarios
        self._folder: Path | None = None
        self._client: Any = None
        self._name = ""

    def reset(self, task: Task) -> Step:
        self.close()
        self._scenario = self._scenarios[task.data["scenario"]]
        self._task = int(task.data["task"])
        self._folder = Path(tempfile.mkdtemp(prefix="awm-"))
        make_database(self._folder / "before.db", self._scenario)
        shutil.copyfile(self._folder / "before.db", self._folder / "now.db")
        self._client = self._start(self._folder / "now.db")
        self._endpoints = {e["operation_id"]: e for e in endpoints(self._scenario)}
        opening = opening_of(SYSTEM, str(self._scenario["tasks"][self._task]))
        return Step(tuple(opening), tuple(map(tool, self._endpoints.values())))

    def step(self, action: Message) -> Step:
        assert self._client is not None, "step before reset"
        if calls := action.get("tool_calls"):
            return Step(tuple(self._answer(call) for call in calls))
        return Step(done=True, score=self._verify(text_of(action)), stop=StopReason.DONE)

    def score(self) -> Score:
        """The score of the current state, without a last message."""
        return self._verify("")

    def close(self) -> None:
        sys.modules.pop(self._name, None)
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, database: Path) -> Any:
        """The scenario's program as a module of its own, on this episode's database."""
        from fastapi.testclient import TestClient

        url = f"sqlite:///{database}"
        self._name = f"awm_{database.parent.name.replace('-', '_')}"
        module = ModuleType(self._name)
        module.__dict__["DATABASE_PATH"] = url
        sys.modules[self._name] = module  # annotations of its models are looked up there
        before = os.environ.get("DATABASE_PATH")
        os.environ["DATABASE_PATH"] = url
        try:
            exec(compile(self._scenario["code"], self._name, "exec"), module.__dict__)
        finally:
            os.environ.pop("DATABASE_PATH")
            if before is not None:
                os.environ["DATABASE_PATH"] = before
        return TestClient(module.__dict__["app"], raise_server_exceptions=False)

    def _answer(self, call: Any) -> Message:
        try:
            return answer_call(call, self._call(*read_call(call)))
        except ValueError as error:
            return answer_call(call, f"Error: {error}")

    def _call(self, name: str, given: Mapping[str, Any]) -> str:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return f"Error: there is no tool {name!r}"
        if strange := sorted(set(given) - set(endpoint.get("request_params") or {})):
            return f"Error: {name} has no {', '.join(strange)}"
        path, query, body = _split(endpoint, given)
        reply = self._client.request(
            endpoint["method"].upper(), path, params=query or None, json=body or None
        )
        text = str(reply.text)
        return text if reply.status_code < 400 else f"Error: HTTP {reply.status_code}: {text}"

    def _verify(self, said: str) -> Score:
        """The verifying program's score. Its exceptions are passed on: they are not a failure of
        the agent."""
        assert self._folder is not None
        space: dict[str, Any] = {"__name__": "verifier"}
        exec(compile(self._scenario["verifiers"][str(self._task)], "<verifier>", "exec"), space)
        given = {
            "initial_db_path": str(self._folder / "before.db"),
            "final_db_path": str(self._folder / "now.db"),
            "final_answer": said,
        }
        wanted = inspect.signature(space[VERIFY]).parameters
        result = space[VERIFY](**{k: v for k, v in given.items() if k in wanted})
        success = isinstance(result, Mapping) and result.get("result") == "complete"
        return Score(float(success), success)


def make_database(path: Path, scenario: Mapping[str, Any]) -> None:
    """Creates tables, indexes and rows. Statements that fail are skipped, as in the format's own
    loader, since models wrote them."""
    with sqlite3.connect(path) as connection:
        for table in scenario["db_schema"].get("tables", ()):
            for statement in (table.get("ddl"), *(table.get("indexes") or ())):
                _execute(connection, statement)
        for rows in scenario["sample_data"].get("tables", ()):
            for statement in rows.get("insert_statements") or ():
                _execute(connection, statement)
    connection.close()


def _execute(connection: sqlite3.Connection, statement: str | None) -> None:
    try:
        connection.execute(statement or "")
    except sqlite3.Error as error:
        print(f"left out: {error}: {str(statement)[:100]}", file=sys.stderr)


def endpoints(scenario: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The scenario's endpoints that have a name to call them by."""
    groups = scenario["api_spec"].get("api_groups") or ()
    return [e for group in groups for e in group.get("endpoints") or () if e.get("operation_id")]


def tool(endpoint: Mapping[str, Any]) -> Tool:
    """An endpoint in OpenAI's format."""
    given = endpoint.get("request_params") or {}
    properties = {
        name: {
            "type": _TYPES.get(str(p.get("type", "")).lower().split("[")[0].strip(), "string"),
            "description": str(p.get("description") or ""),
        }
        for name, p in given.items()
    }
    said = (endpoint.get("summary"), endpoint.get("description"))
    text = ". ".join(dict.fromkeys(str(part).rstrip(".") for part in said if part))
    required = [name for name, p in given.items() if p.get("required")]
    parameters = {"type": "object", "properties": properties, "required": required}
    return tool_json(endpoint["operation_id"], text, parameters)


def _split(
    endpoint: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(path, query, body) from a tool's arguments. A parameter without a place is in the query."""
    path = str(endpoint["path"])
    query: dict[str, Any] = {}
    body: dict[str, Any] = {}
    for name, value in given.items():
        place = (endpoint.get("request_params") or {}).get(name, {}).get("param_type", "query")
        if place == "path":
            path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
        elif value is not None:
            (body if place == "body" else query)[name] = value
    return path, query, body
