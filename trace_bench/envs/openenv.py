"""Environments of an OpenEnv server (`env=openenv env.url=...`).

An episode is a session over a WebSocket: a reset with the task, then a step for each call. Tools
are the environment's MCP tools; an environment without them has one, `step`, with the arguments of
its action. Splits and tasks are those of the server's Task API; without one a task is a seed. The
wire format is small, so it is spoken here: the standard's own client would begin a new session,
without a reset, where a connection was lost in the middle of an episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlsplit

from trace_bench.core.decode import Limits, Unreadable, brief, read
from trace_bench.core.errors import UserError
from trace_bench.core.text import described
from trace_bench.core.types import Task, Tool
from trace_bench.envs import SplitsByNumber, outside

SEEDS = {"train": (0, 512), "dev": (1_000_000, 128), "test": (2_000_000, 256)}
"""First seed and number of the tasks of a server without a Task API."""
MOST_TASKS = 100_000  # of a split
LONGEST = Limits(4 * 2**20)
_BASE = {"metadata", "type"}  # of every action, and not the agent's affair


@dataclass(frozen=True, kw_only=True)
class OpenEnvSettings(outside.Settings):
    """The worker's interpreter needs the package websockets."""

    url: str
    """The server's address, http://127.0.0.1:8000. Nothing else is contacted."""
    ask: str = ""
    """A text before what the reset shows, for a world that does not say what is to be done."""


class Server:
    """The server of `env.url`, by plain HTTP: no redirect, no proxy. UserError for another."""

    name = ""  # of its environment

    def __init__(self, url: str, deadline: float) -> None:
        self._parts, self.deadline = urlsplit(url.rstrip("/")), deadline
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise UserError(f"env.url={url!r} is no http:// or https:// address.")
        self.url = url.rstrip("/")

    def ask(self, path: str, data: Mapping[str, Any] | None = None) -> Any:
        """What a route answers; None for one that the server has not. Raises EpisodeError."""
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        body = None if data is None else json.dumps(data)
        method = "GET" if data is None else "POST"
        headers = {"Content-Type": "application/json"}
        try:
            with closing(kind(self._parts.netloc, timeout=self.deadline)) as connection:
                connection.request(method, self._parts.path + path, body, headers)
                answer = connection.getresponse()
                if answer.status in (404, 405, 501):
                    return None
                if answer.status != 200:
                    outside.refuse(f"{path} answered with status {answer.status}")
                return read(answer.read(LONGEST.size + 1), LONGEST)
        except (OSError, HTTPException, ValueError) as error:
            outside.refuse(f"{path}: {described(error)}")

    def splits(self) -> dict[str, int]:
        """How many tasks each split has; none without a Task API. Raises EpisodeError."""
        listed, sizes = self.ask(f"/{quote(self.name)}/splits"), {}
        for one in listed if isinstance(listed, list) else ():
            split = one.get("name") if isinstance(one, dict) else one
            if outside.plain_name(split, "") != split:
                outside.refuse(
                    f"a split is called {brief(split)}; allowed: letters, digits, _, . and -"
                )
            counted = self.ask(f"/{quote(self.name)}/num_tasks", {"split": split})
            size = counted.get("num_tasks") if isinstance(counted, dict) else None
            if type(size) is not int or not 0 <= size <= MOST_TASKS:
                outside.refuse(
                    f"the split {split} has {brief(size)} tasks; allowed: 0 to {MOST_TASKS}"
                )
            sizes[split] = size
        return sizes

    def tasks(self, sizes: Mapping[str, int]) -> list[Any]:
        """What it says of the tasks of each split, for a digest."""
        path = f"/{quote(self.name)}/task_range"
        return [self.ask(path, {"split": s, "start": 0, "stop": n}) for s, n in sizes.items()]


class OpenEnvEnv(outside.Episode):
    """An episode in a session, a WebSocket. `action`: the schema of an environment's own action."""

    _socket: Any = None  # from `begin` to `close`

    def __init__(self, settings: OpenEnvSettings, server: Server, action: Any) -> None:
        super().__init__(settings)
        self._server, self._action = server, action

    def begin(self, task: Task) -> tuple[outside.Answer, Sequence[Tool]]:
        from websockets.sync.client import connect

        options: dict[str, Any] = {"max_size": LONGEST.size, "proxy": None, "compression": None}
        address, deadline = f"ws{self._server.url[4:]}/ws", self._settings.deadline
        try:
            self._socket = connect(address, open_timeout=deadline, **options)
        except Exception as error:
            outside.refuse(f"no session: {described(error)}")
        start = self._read(self._send("reset", task.data))
        text = "\n".join(filter(None, (self._settings.ask, start.text))) or "Begin."
        return outside.Answer(text, start.reward, start.over), self._list_tools()

    def _send(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The server's data, or {"error": code, "message": text}. Raises EpisodeError."""
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = read(self._socket.recv(self._settings.deadline), LONGEST)
        except TimeoutError:
            outside.refuse(f"no answer within {self._settings.deadline:g} s (env.deadline)")
        except Unreadable as error:
            outside.refuse(f"the server's answer cannot be used: {error}")
        except Exception as error:
            outside.refuse(f"the session is lost: {described(error)}")
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict):
            outside.refuse(f"the server answered {answer!r:.100}; allowed: an object with `data`")
        if answer.get("type") == "error":
            return {"error": content.get("code"), "message": str(content.get("message"))[:2000]}
        return content

    def _list_tools(self) -> list[Tool]:
        """MCP tools; without them one for the action of the environment's own."""
        listed = self._send("step", {"type": "list_tools"})
        observation = listed.get("observation")
        tools = observation.get("tools") if isinstance(observation, dict) else None
        self._mcp = isinstance(tools, list) and "error" not in listed
        if not self._mcp:
            schema = dict(self._action) if isinstance(self._action, dict) else {}
            properties = schema.get("properties")
            arguments = properties.items() if isinstance(properties, dict) else ()
            schema["properties"] = {name: kind for name, kind in arguments if name not in _BASE}
            return [outside.tool_of("step", "Act in the environment.", schema)]
        if not tools or not all(isinstance(tool, dict) for tool in tools):
            outside.refuse(f"the server lists {brief(tools)} as its tools; allowed: objects")
        return [
            outside.tool_of(
                t.get("name"), t.get("description"), t.get("input_schema", t.get("inputSchema"))
            )
            for t in tools
        ]

    def call(self, name: str, arguments: Mapping[str, Any]) -> outside.Answer:
        mcp = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        return self._read(self._send("step", mcp if self._mcp else arguments))

    def _read(self, answer: dict[str, Any]) -> outside.Answer:
        if answer.get("error") == "VALIDATION_ERROR":  # of the action, as the agent made it
            return outside.Answer(f"ValueError: {answer['message']}")
        if "error" in answer:
            outside.refuse(f"the server answered {answer['error']}: {answer['message']}")
        observation = answer.get("observation")
        if not isinstance(observation, dict):
            outside.refuse(f"the observation is {observation!r:.100}; allowed: an object")
        return outside.answer_of(_shown(observation), answer.get("reward"), answer.get("done"))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _shown(observation: dict[str, Any]) -> Any:
    """What the agent reads of an observation: a tool's result or its error; of another one what is
    in it, as a text where that is all, its `metadata` only where there is nothing else."""
    if isinstance(error := observation.get("error"), dict):
        return f"Error: {error.get('message')}"
    result = observation.get("result")
    if "tool_name" in observation:
        whole = {"content", "structuredContent", "structured_content"}
        is_result = isinstance(result, dict) and whole & result.keys()
        return outside.result_of(result) if is_result else result
    content = {k: v for k, v in observation.items() if v not in (None, "", [], {})}
    about = content.pop("metadata", {})
    content = content or (about if isinstance(about, dict) else {"metadata": about})
    [first, *others] = content.values() or [""]
    return content if others or not isinstance(first, str) else first


class OpenEnvSuite(SplitsByNumber):
    """A server's tasks. Raises UserError."""

    name = "openenv"

    def __init__(self, settings: OpenEnvSettings) -> None:
        if find_spec("websockets") is None:
            raise UserError("env=openenv needs the package websockets. Change `env.python`.")
        self._settings = settings
        self._server = Server(settings.url, settings.deadline)
        outside.asked("the OpenEnv server", self._describe, "env.url")

    def _describe(self) -> None:
        server = self._server
        metadata, schema = server.ask("/metadata"), server.ask("/schema")
        about = metadata if isinstance(metadata, dict) else {}
        self._action = schema.get("action") if isinstance(schema, dict) else None
        names = server.ask("/list_environments")
        first = names[0] if isinstance(names, list) and names else about.get("name")
        server.name = first if isinstance(first, str) else "env"
        self.variant = outside.plain_name(server.name, "env")
        sizes = server.splits()
        self._seeds = {} if sizes else SEEDS
        self.sizes = sizes or {split: number for split, (_, number) in SEEDS.items()}
        self._about = {
            "data": f"{self.variant} {outside.plain_name(about.get('version'), 'unknown')}",
            "tasks": f"Task API {outside.digest(server.tasks(sizes))}" if sizes else "seeds",
            "reward": self._settings.reward,
        }

    def about(self) -> Mapping[str, Any]:
        return self._about

    def data_of(self, split: str, number: int) -> dict[str, Any]:
        """What the reset is given: a place in a split, or a seed."""
        if split in self._seeds:
            return {"seed": self._seeds[split][0] + number}
        return {"seed": number, "split": split, "index": number}

    def make(self) -> OpenEnvEnv:
        return OpenEnvEnv(self._settings, self._server, self._action)
