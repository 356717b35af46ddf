"""The tools of an MCP server, with tasks and a score of one's own (`env=mcp`).

The Model Context Protocol has tools and no episodes: no tasks, no reset, no reward. So an episode
is a session of its own (with `env.command` a process of its own), the tasks and the score are a
person's functions, and whether a server begins each session alike is measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.checked import PLACE
from trace_bench.core.errors import UserError, attempt
from trace_bench.core.factory import load
from trace_bench.core.limits import Limits, fault_of
from trace_bench.core.text import described
from trace_bench.core.types import Task, Tool
from trace_bench.envs import package_folder
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
from trace_bench.envs.outside.loop import Held, Loop

VERSION = "2.3.0"
DATA = Limits(2**24)


@dataclass(frozen=True, kw_only=True)
class McpSettings(Outside):
    """One of `url` and `command` is needed."""

    tasks: str
    """module:attribute of a function without arguments that returns the tasks of each split:
    {"train": [{"ask": "Pay the bill.", ...}], ...}. What else a task has, the scorer may read."""
    scorer: str
    """module:attribute of score(task, messages, call), a number up to env.full. messages: the
    conversation; call(name, arguments): what a tool of the same session answers, as text."""
    url: str = field(default="", metadata=PLACE)
    """The server's address (streamable HTTP), http://127.0.0.1:8000/mcp."""
    command: tuple[str, ...] = ()
    """A command that starts a server which talks over its standard input and output, once for each
    episode: '[python,server.py]'."""


class McpServer:
    """Sessions with the server of the settings."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings, self._loop = settings, Loop()

    def open(self) -> Held[Any]:
        from mcp import Client, StdioServerParameters

        where: Any = self._settings.url
        if self._settings.command:
            program, *arguments = self._settings.command
            where = StdioServerParameters(command=program, args=arguments)
        client = Client(where, mode="legacy", cache=None)
        return self._loop.hold(client, self._settings.deadline)

    def tools(self, held: Held[Any]) -> list[Tool]:
        found: list[Tool] = []
        cursor = None
        while True:
            page = self._loop.run(held.value.list_tools(cursor=cursor), self._settings.deadline)
            found += [tool_of(one.name, one.description, one.input_schema) for one in page.tools]
            if len(found) > MOST_TOOLS:
                refuse(f"the server has more than {MOST_TOOLS} tools")
            if (cursor := page.next_cursor) is None:
                return found

    def call(self, held: Held[Any], name: str, arguments: Mapping[str, Any]) -> Answer:
        """Its texts, one below the other; of what is no text, the kind."""
        work = held.value.call_tool(name, dict(arguments))
        result = self._loop.run(work, self._settings.deadline)
        parts = [p.text if p.type == "text" else f"[{p.type}]" for p in result.content]
        text = answer_of("\n".join(parts)).text
        return Answer(f"Error: {text}" if result.is_error else text)


class McpEnv(OutsideEnv):
    """A session; the scorer's number is the reward that comes at the end."""

    def __init__(
        self, settings: McpSettings, server: McpServer, scorer: Callable[..., Any], tools: str
    ) -> None:
        super().__init__(settings)
        self._server, self._scorer, self._known = server, scorer, tools
        self._held: Any = None  # from `begin` to `close`

    def begin(self, task: Task) -> tuple[str, Sequence[Tool]]:
        self._task, self._held = task, self._server.open()
        tools = self._server.tools(self._held)
        if digest(tools) != self._known:
            refuse("the server's tools have changed since the suite was made")
        return str(task.data["ask"]), tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        return self._server.call(self._held, name, arguments)

    def ended(self) -> float | None:
        def call(name: str, arguments: Mapping[str, Any]) -> str:
            return self.call(name, arguments).text

        found = attempt(lambda: self._scorer(dict(self._task.data), list(self.said), call))
        if isinstance(found, BaseException):
            refuse(f"the scorer failed: {described(found)}")
        return reward_of(found)

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


class McpSuite(OutsideSuite):
    """The tasks of `env.tasks`. Raises UserError."""

    name = "mcp"

    def __init__(self, settings: McpSettings) -> None:
        package_folder(self.name, "mcp", VERSION, f"pip install mcp=={VERSION}", "mcp")
        if bool(settings.url) == bool(settings.command):
            raise UserError("env=mcp needs one of `env.url` and `env.command`.")
        super().__init__(settings)
        self._server = McpServer(settings)
        self._scorer = load(settings.scorer, "env.scorer").target
        where = "env.url" if settings.url else "env.command"
        held = asked("the MCP server", self._server.open, where)
        self._tools = digest(asked("its tools", lambda: self._server.tools(held), where))
        self.variant = plain_name(held.value.server_info.name, "server")
        self._version = plain_name(held.value.server_info.version, "unknown")
        held.close()
        self._given = _tasks(settings.tasks)
        self.sizes = {split: len(tasks) for split, tasks in self._given.items()}

    def facts(self) -> dict[str, Any]:
        return {"data": f"{self.variant} {self._version}, tools {self._tools}"}

    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        return self._given[split][number]

    def make(self) -> McpEnv:
        return McpEnv(self._settings, self._server, self._scorer, self._tools)


def _tasks(text: str) -> dict[str, list[dict[str, Any]]]:
    found = attempt(load(text, "env.tasks").target)
    if isinstance(found, BaseException):
        raise UserError(f"env.tasks={text} raised {described(found)}. Change `env.tasks`.")
    fault = fault_of([found], DATA)
    if fault or not isinstance(found, dict) or not found:
        raise UserError(f"env.tasks={text} gives no splits ({fault or 'a dict is needed'}).")
    for split, tasks in found.items():
        if not isinstance(tasks, list) or not all(
            isinstance(task, dict) and isinstance(task.get("ask"), str) for task in tasks
        ):
            raise UserError(
                f'env.tasks={text}: the split {split} must be a list of {{"ask": "...", ...}}.'
            )
    return found
