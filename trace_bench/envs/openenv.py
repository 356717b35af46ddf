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
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Unreadable, read
from trace_bench.core.text import described
from trace_bench.core.types import Task, Tool
from trace_bench.envs.outside import (
    MOST_TOOLS,
    Answer,
    Outside,
    OutsideEnv,
    OutsideSuite,
    answer_of,
    asked,
    digest,
    plain_name,
    refuse,
    reward_of,
    tool_of,
)
from trace_bench.envs.outside.web import LONGEST, TaskApi, place

SEEDS = {"train": (0, 512), "dev": (1_000_000, 128), "test": (2_000_000, 256)}
"""First seed and number of the tasks of a server without a Task API."""
_BASE = {"metadata", "type"}  # of every action, and not the agent's affair


@dataclass(frozen=True, kw_only=True)
class OpenEnvSettings(Outside):
    """The worker's interpreter needs the package websockets."""

    url: str
    """The server's address, http://127.0.0.1:8000. Nothing else is contacted."""
    ask: str = ""
    """A text before what the reset shows, for a world that does not say what is to be done."""


class Session:
    """A WebSocket, and with it an environment of one's own."""

    def __init__(self, url: str, deadline: float) -> None:
        from websockets.sync.client import connect

        self._deadline = deadline
        try:
            self._socket = connect(
                url, open_timeout=deadline, max_size=LONGEST.size, proxy=None, compression=None
            )
        except Exception as error:
            refuse(f"no session: {described(error)}")

    def send(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """What the server answers: its data, or {"error": code, "message": text}. Raises
        EpisodeError."""
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = read(self._socket.recv(timeout=self._deadline), LONGEST)
        except TimeoutError:
            refuse(f"no answer within {self._deadline:g} s (env.deadline)")
        except Unreadable as error:
            refuse(f"the server's answer cannot be used: {error}")
        except Exception as error:
            refuse(f"the session is lost: {described(error)}")
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict):
            refuse(f"the server answered {answer!r:.100}; allowed: an object with `data`")
        if answer.get("type") == "error":
            return {"error": found.get("code"), "message": str(found.get("message"))[:2000]}
        return found

    def close(self) -> None:
        self._socket.close()


class OpenEnvEnv(OutsideEnv):
    """A session for each episode. `action`: the schema of an environment's own action."""

    def __init__(self, settings: OpenEnvSettings, server: TaskApi, action: Any) -> None:
        super().__init__(settings)
        self._server, self._action = server, action
        self._session: Any = None  # from `begin` to `close`

    def begin(self, task: Task) -> tuple[str, Sequence[Tool]]:
        data = dict(task.data)
        if "split" in data:
            self._server.same(data["split"], data["index"], data.pop("spec", None))
        self._session = Session(f"ws{self._server.url[4:]}/ws", self._settings.deadline)
        start = self._said(self._session.send("reset", data))
        if start.over:
            refuse("the episode is over at its start")
        if start.reward is not None:
            self._rewards.append(start.reward)
        return "\n".join(filter(None, (self._settings.ask, start.text))) or "Begin.", self._found()

    def _found(self) -> list[Tool]:
        """MCP tools; without them one for the action of the environment's own."""
        listed = self._session.send("step", {"type": "list_tools"})
        seen = listed.get("observation")
        tools = seen.get("tools") if isinstance(seen, dict) else None
        self._mcp = isinstance(tools, list) and "error" not in listed
        if not self._mcp:
            return [tool_of("step", "Act in the environment.", _own(self._action))]
        if not tools or len(tools) > MOST_TOOLS or not all(isinstance(t, dict) for t in tools):
            refuse(f"the server lists {len(tools or ())} tools; allowed: 1 to {MOST_TOOLS}")
        return [
            tool_of(
                t.get("name"), t.get("description"), t.get("input_schema", t.get("inputSchema"))
            )
            for t in tools
        ]

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        called = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        return self._said(self._session.send("step", called if self._mcp else arguments))

    def _said(self, answer: dict[str, Any]) -> Answer:
        if answer.get("error") == "VALIDATION_ERROR":  # of the action, as the agent made it
            return Answer(f"ValueError: {answer['message']}")
        if "error" in answer:
            refuse(f"the server answered {answer['error']}: {answer['message']}")
        if not isinstance(seen := answer.get("observation"), dict):
            refuse(f"the observation is {seen!r:.100}; allowed: an object")
        return answer_of(_text(seen), reward_of(answer.get("reward")), answer.get("done"))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _own(schema: Any) -> dict[str, Any]:
    """The arguments of an environment's own action, without what every action has."""
    found = dict(schema) if isinstance(schema, dict) else {}
    known = found.get("properties")
    own = known.items() if isinstance(known, dict) else ()
    return {**found, "properties": {key: kind for key, kind in own if key not in _BASE}}


def _text(seen: dict[str, Any]) -> Any:
    """What the agent reads of an observation: a tool's result or its error; of another one what is
    in it, without a name where it is a single text."""
    if isinstance(error := seen.get("error"), dict):
        return f"Error: {error.get('message')}"
    result = seen.get("result")
    if "tool_name" in seen and isinstance(result, dict) and isinstance(result.get("content"), list):
        parts = [
            p.get("text") or f"[{p.get('type')}]" for p in result["content"] if dict is type(p)
        ]
        return ("Error: " if result.get("is_error") else "") + "\n".join(map(str, parts))
    if "tool_name" in seen:
        return result
    left = {key: value for key, value in seen.items() if value not in (None, "", [], {})}
    left = left if len(left) != 1 or "metadata" not in left else left["metadata"]
    one = next(iter(left.values())) if isinstance(left, dict) and len(left) == 1 else None
    return one if isinstance(one, str) else left or ""


class OpenEnvSuite(OutsideSuite):
    """A server's tasks. Raises UserError."""

    name = "openenv"

    def __init__(self, settings: OpenEnvSettings) -> None:
        if find_spec("websockets") is None:
            raise UserError("env=openenv needs the package websockets. Change `env.python`.")
        super().__init__(settings)
        self._server = TaskApi(settings.url, settings.deadline)
        asked("the OpenEnv server", self._describe, "env.url")

    def _describe(self) -> None:
        server = self._server
        about, schema = server.ask("/metadata"), server.ask("/schema")
        self._about = about if isinstance(about, dict) else {}
        self._action = schema.get("action") if isinstance(schema, dict) else None
        names = server.ask("/list_environments")
        first = names[0] if isinstance(names, list) and names else self._about.get("name")
        server.name = first if isinstance(first, str) else "env"
        self.variant = plain_name(server.name, "env")
        found = server.splits()
        self._seeds = {} if found else SEEDS
        self.sizes = found or {split: number for split, (_, number) in SEEDS.items()}
        self._specs = {split: server.digests(split, number) for split, number in found.items()}

    def facts(self) -> dict[str, Any]:
        version = plain_name(self._about.get("version"), "unknown")
        return {
            "data": f"{self.variant} {version}",
            "tasks": "seeds" if self._seeds else f"Task API {digest(self._specs)}",
        }

    def data_of(self, split: str, number: int) -> dict[str, Any]:
        """What the reset is given: a place in a split, or a seed."""
        if split in self._seeds:
            return {"seed": self._seeds[split][0] + number}
        return {"seed": number, **place(self._specs, split, number)}

    def make(self) -> OpenEnvEnv:
        return OpenEnvEnv(self._settings, self._server, self._action)
