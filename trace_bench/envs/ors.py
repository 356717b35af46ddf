"""Environments of an Open Reward Standard server (`env=ors env.url=...`).

An episode is a session over HTTP: a prompt, the tools of the task, and calls whose results bear a
reward and whether the episode is finished. Splits and tasks are the server's. The wire format is
small, so it is spoken here, without a package: the standard's own client asks again, up to three
times, where an answer fails, and a call that was asked twice may have acted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trace_bench.core.decode import shown
from trace_bench.core.errors import EpisodeError, unknown
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
    tool_of,
)
from trace_bench.envs.outside.web import TaskApi, place


@dataclass(frozen=True, kw_only=True)
class OrsSettings(Outside):
    """The worker needs no package."""

    url: str
    """The server's address, http://127.0.0.1:8080. Nothing else is contacted."""
    environment: str = ""
    """Which of the server's environments; by default its first."""


class OrsEnv(OutsideEnv):
    """A session for each episode."""

    def __init__(self, settings: OrsSettings, server: TaskApi) -> None:
        super().__init__(settings)
        self._server, self._path = server, f"/{quote(server.name)}"
        self._session: dict[str, str] | None = None

    def begin(self, task: Task) -> tuple[str, Sequence[Tool]]:
        split, index = task.data["split"], task.data["index"]
        self._server.same(split, index, task.data.get("spec"))
        session, _ = self._server.stream("/create_session", {}, {})
        if not session:
            refuse("the server names no session")
        self._session = {"X-Session-ID": session}
        wanted = {"env_name": self._server.name, "split": split, "index": index}
        self._ask("/create", wanted)
        text = _blocks(self._ask(f"{self._path}/prompt"))
        listed = self._ask(f"{self._path}/task_tools")
        tools = listed.get("tools") if isinstance(listed, dict) else None
        if not isinstance(tools, list) or not 0 < len(tools) <= MOST_TOOLS:
            refuse(f"the server's tools are {shown(listed)}; allowed: 1 to {MOST_TOOLS}")
        return text, [_tool(one) for one in tools]

    def _ask(self, path: str, data: Mapping[str, Any] | None = None) -> Any:
        found = self._server.ask(path, data, self._session or {})
        if found is None:
            refuse(f"the server has no {path}, or no such session")
        return found

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        sent = {"name": name, "input": dict(arguments)}
        _, found = self._server.stream(f"{self._path}/call", sent, self._session or {})
        if isinstance(found, dict) and found.get("ok") is False:  # no such tool, or its arguments
            return Answer(f"Error: {answer_of(found.get('error')).text}")
        output = found.get("output") if isinstance(found, dict) else None
        if not isinstance(output, dict):
            refuse(f"the server answered {shown(found)}; allowed: an object with `output`")
        return answer_of(
            _blocks(output.get("blocks")), output.get("reward"), output.get("finished", False)
        )

    def close(self) -> None:
        if self._session is None:
            return
        session, self._session = self._session, None
        for path in ("/delete", "/delete_session"):
            try:
                self._server.ask(path, {}, session)
            except EpisodeError:  # it is gone, and so is the session
                return


def _tool(given: Any) -> Tool:
    if not isinstance(given, dict):
        refuse(f"a tool is {shown(given)}; allowed: an object")
    schema = {} if given.get("input_schema") is None else given["input_schema"]
    return tool_of(given.get("name"), given.get("description"), schema)


def _blocks(given: Any) -> str:
    """Their texts, one below the other; of an image, that it is one."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        refuse(f"the server shows {shown(given)}; allowed: a list of blocks")
    texts = [one["text"] if one.get("type") == "text" else f"[{one.get('type')}]" for one in given]
    return answer_of("\n".join(map(str, texts))).text


class OrsSuite(OutsideSuite):
    """The tasks of one environment of a server. Raises UserError."""

    name = "ors"

    def __init__(self, settings: OrsSettings) -> None:
        super().__init__(settings)
        self._server = TaskApi(settings.url, settings.deadline)
        asked("the ORS server", self._describe, "env.url")
        self.variant = plain_name(self._server.name, "env")

    def _describe(self) -> None:
        names = self._server.ask("/list_environments")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            refuse(f"its environments are {shown(names)}; allowed: a list of names")
        wanted = self._settings.environment or names[0]
        if wanted not in names:
            raise unknown("environment", wanted, names, "env.environment")
        self._server.name = wanted
        self.sizes = self._server.splits()
        if not self.sizes:
            refuse("it lists no splits")
        self._specs = {split: self._server.digests(split, n) for split, n in self.sizes.items()}

    def facts(self) -> dict[str, Any]:
        return {"data": f"{self.variant}, tasks {digest(self._specs)}"}

    def data_of(self, split: str, number: int) -> dict[str, Any]:
        return place(self._specs, split, number)

    def make(self) -> OrsEnv:
        return OrsEnv(self._settings, self._server)
