"""A suite from files: environments in the AgentWorldModel format (arXiv 2602.10090).

    python -m trace_bench.check env.factory=awm:Suite env.options.folder=FOLDER
    python -m trace_bench method=grpo env=custom env.factory=awm:Suite env.options.folder=FOLDER
    python -m trace_bench method=base agent=RUN env=tau2  # what that brings elsewhere

A scenario is a SQLite database, a FastAPI program over it, whose endpoints are the agent's tools,
and for each of its tasks a program that looks at the database before and after the episode. All of
it is code that models wrote, so it belongs into a container (`sandbox=docker env.image=...`), of an
image of your own (docs/sandbox.md) with this file, the folder, fastapi, sqlalchemy and httpx. A
line of a file is a scenario, of the last one a task:

    gen_tasks.jsonl                {"scenario", "tasks": [text, ...]}
    gen_db.jsonl                   {"scenario", "db_schema": {"tables": [{"ddl", "indexes"}]}}
    gen_sample.jsonl               {"scenario", "sample_data": {"tables": [{"insert_statements"}]}}
    gen_spec.jsonl                 {"scenario", "api_spec": {"api_groups": [{"endpoints": [...]}]}}
    gen_envs.jsonl                 {"scenario", "full_code": a FastAPI program}
    gen_verifier.pure_code.jsonl   {"scenario", "task_idx", "verification": {"code"}}
"""

import inspect
import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import trace_bench as tb

SYSTEM = "You work on a platform through its tools. Do what the user asks, then tell the result."
PARTS = {
    "db_schema": "gen_db.jsonl",
    "sample_data": "gen_sample.jsonl",
    "api_spec": "gen_spec.jsonl",
    "full_code": "gen_envs.jsonl",
    "tasks": "gen_tasks.jsonl",
}
VERIFIERS, VERIFY = "gen_verifier.pure_code.jsonl", "verify_task_completion"
TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array"}
TYPES |= {"dict": "object", **{name: name for name in TYPES.values()}, "object": "object"}
Scenario = dict[str, Any]


class Suite(tb.Suite):
    """`scenarios` of the folder for training, a quarter as many for development and for testing.
    Left out are tasks that cannot be started and those that are solved by doing nothing."""

    name, variant = "awm", "own"

    def __init__(self, folder: str, scenarios: int = 16) -> None:
        whole, rest = read(Path(folder)), max(1, scenarios // 4)
        names = sorted(whole)
        random.Random(0).shuffle(names)
        if len(names) < scenarios + 2 * rest:
            raise tb.UserError(
                f"env.options.folder={folder} has {len(names)} whole scenarios; needed for "
                f"env.options.scenarios={scenarios}: {scenarios + 2 * rest}."
            )
        self.scenarios, self.split = whole, {"train": names[:scenarios]}
        self.split["dev"] = names[scenarios : scenarios + rest]
        self.split["test"] = names[scenarios + rest : scenarios + 2 * rest]
        self.usable: dict[str, list[tb.Task]] = {}

    def splits(self) -> list[str]:
        return list(self.split)

    def tasks(self, split: str) -> list[tb.Task]:
        if split not in self.usable:
            tasks = [
                self.task(f"awm/{split}/{name}/{number}")
                for name in self.split[split]
                for number in sorted(self.scenarios[name]["verifiers"])
            ]
            self.usable[split] = list(filter(self.is_usable, tasks))
        return self.usable[split]

    def is_usable(self, task: tb.Task) -> bool:
        env = self.make()
        try:
            env.reset(task)
            return not env.score().success
        except Exception as error:  # of a program that a model wrote
            print(f"left out: {task.id}: {type(error).__name__}: {error}", file=sys.stderr)
            return False
        finally:
            env.close()

    def task(self, task_id: str) -> tb.Task:
        _, split, name, number = task_id.split("/")
        data = {"scenario": name, "number": int(number)}
        return tb.Task(task_id, "awm", split, int(number), data)

    def make(self) -> "AwmEnv":
        return AwmEnv(self.scenarios)


class AwmEnv(tb.Env):
    """One episode: a database of its own and the scenario's program on it."""

    def __init__(self, scenarios: dict[str, Scenario]) -> None:
        self.scenarios = scenarios
        self.client: Any = None

    def reset(self, task: tb.Task) -> tb.Step:
        self.close()
        scenario = self.scenarios[task.data["scenario"]]
        self.verifier = scenario["verifiers"][task.data["number"]]
        self.folder = Path(tempfile.mkdtemp(prefix="awm-"))
        make_database(self.folder / "before.db", scenario)
        shutil.copyfile(self.folder / "before.db", self.folder / "now.db")
        self.start(scenario["full_code"])
        self.endpoints = {e["operation_id"]: e for e in endpoints(scenario)}
        ask = {"role": "user", "content": scenario["tasks"][task.data["number"]]}
        opening = ({"role": "system", "content": SYSTEM}, ask)
        return tb.Step(opening, tuple(map(tool, self.endpoints.values())))

    def start(self, code: str) -> None:
        """The scenario's program as a module of its own, on this episode's database."""
        from fastapi.testclient import TestClient

        url = os.environ["DATABASE_PATH"] = f"sqlite:///{self.folder / 'now.db'}"
        module = ModuleType(self.folder.name)
        module.__dict__["DATABASE_PATH"] = url
        sys.modules[module.__name__] = module  # annotations of its models are looked up there
        try:
            exec(compile(code, module.__name__, "exec"), module.__dict__)
            self.client = TestClient(module.__dict__["app"], raise_server_exceptions=False)
        finally:
            del os.environ["DATABASE_PATH"]

    def step(self, action: tb.Message) -> tb.Step:
        if calls := action.get("tool_calls"):
            return tb.Step(tuple(tb.answer_call(call, self.answer(call)) for call in calls))
        score = self.verify(str(action.get("content") or ""))
        return tb.Step(done=True, score=score, stop=tb.StopReason.DONE)

    def answer(self, call: Any) -> str:
        try:
            name, arguments = tb.read_call(call)
            endpoint = self.endpoints[name]
        except (KeyError, ValueError) as error:
            return f"Error: {error}; the tools are {', '.join(self.endpoints)}"
        if strange := sorted(set(arguments) - set(endpoint.get("request_params") or {})):
            return f"Error: {name} has no {', '.join(strange)}"
        path, query, body = request(endpoint, arguments)
        method = endpoint["method"].upper()
        reply = self.client.request(method, path, params=query or None, json=body or None)
        failed = f"Error: HTTP {reply.status_code}: " if reply.status_code >= 400 else ""
        return f"{failed}{reply.text}"

    def score(self) -> tb.Score:
        return self.verify("")

    def verify(self, answer: str) -> tb.Score:
        """An exception of the verifying program is a failure of the environment."""
        space: dict[str, Any] = {"__name__": "verifier"}
        exec(compile(self.verifier, "<verifier>", "exec"), space)
        facts = {
            "initial_db_path": str(self.folder / "before.db"),
            "final_db_path": str(self.folder / "now.db"),
            "final_answer": answer,
        }
        wanted = inspect.signature(space[VERIFY]).parameters
        result = space[VERIFY](**{key: value for key, value in facts.items() if key in wanted})
        success = isinstance(result, dict) and result.get("result") == "complete"
        return tb.Score(float(success), success)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
            sys.modules.pop(self.folder.name, None)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.client = None


def read(folder: Path) -> dict[str, Scenario]:
    """The scenarios that have every part and a task that can be verified, by name."""
    scenarios: dict[str, Scenario] = {}
    for key, file in PARTS.items():
        for line in lines(folder / file):
            scenarios.setdefault(line["scenario"], {"verifiers": {}})[key] = line.get(key)
    for line in lines(folder / VERIFIERS):
        scenario, number = scenarios.get(line["scenario"], {}), int(line["task_idx"])
        if number < len(scenario.get("tasks") or ()):
            scenario["verifiers"][number] = line["verification"]["code"]
    return {n: s for n, s in scenarios.items() if s["verifiers"] and all(map(s.get, PARTS))}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        yield from map(json.loads, path.read_text().splitlines())
    except (OSError, ValueError) as error:
        raise tb.UserError(f"{path} cannot be read: {error}. Change env.options.folder.") from error


def make_database(path: Path, scenario: Scenario) -> None:
    """Statements that fail are skipped, as in the format's own loader, since models wrote them."""
    tables, rows = scenario["db_schema"]["tables"], scenario["sample_data"]["tables"]
    statements = [s for t in tables for s in (t["ddl"], *(t.get("indexes") or ()))]
    statements += [s for t in rows for s in t.get("insert_statements") or ()]
    with sqlite3.connect(path) as connection:
        for statement in statements:
            try:
                connection.execute(statement)
            except sqlite3.Error as error:
                print(f"left out: {error}: {statement[:100]}", file=sys.stderr)
    connection.close()


def endpoints(scenario: Scenario) -> list[dict[str, Any]]:
    groups = scenario["api_spec"]["api_groups"]
    return [e for group in groups for e in group["endpoints"] if e.get("operation_id")]


def tool(endpoint: dict[str, Any]) -> tb.Tool:
    parameters = endpoint.get("request_params") or {}
    properties = {
        name: {
            "type": TYPES.get(str(p.get("type", "")).lower().split("[")[0], "string"),
            "description": str(p.get("description") or ""),
        }
        for name, p in parameters.items()
    }
    about = (endpoint.get("summary"), endpoint.get("description"))
    text = ". ".join(dict.fromkeys(part.rstrip(".") for part in about if part))
    required = [name for name, p in parameters.items() if p.get("required")]
    schema = {"type": "object", "properties": properties, "required": required}
    function = {"name": endpoint["operation_id"], "description": text, "parameters": schema}
    return {"type": "function", "function": function}


def request(endpoint: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, dict, dict]:
    """(path, query, body). A value stays within its place in the path, else it could name an
    endpoint that is not offered; a parameter without a place is in the query."""
    path, places = endpoint["path"], {"query": dict[str, Any](), "body": dict[str, Any]()}
    for name, value in arguments.items():
        place = endpoint["request_params"][name].get("param_type", "query")
        if place == "path":
            path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
        elif value is not None:
            places["body" if place == "body" else "query"][name] = value
    return path, places["query"], places["body"]
