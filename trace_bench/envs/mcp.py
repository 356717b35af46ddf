"""The tools of an MCP server, with tasks and a score of one's own (`env=mcp`).

The Model Context Protocol has tools and no episodes: no tasks, no reset, no reward. So an episode
is a session of its own (with `env.command` a process of its own), the tasks and the score are a
person's functions, and whether a server begins each session alike is measured, not assumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.checked import PLACE
from trace_bench.core.errors import EpisodeError, UserError, attempt
from trace_bench.core.factory import load
from trace_bench.core.limits import Limits, fault_of
from trace_bench.core.text import described
from trace_bench.core.types import Task, Tool
from trace_bench.envs import package_folder
from trace_bench.envs.outside import (
    MOST_TOOLS,
    Answer,
    Loop,
    Outside,
    OutsideEnv,
    OutsideSuite,
    answer_of,
    asked,
    cause_of,
    digest,
    plain_name,
    refuse,
    result_of,
    reward_of,
    tool_of,
)

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


class Session:
    """A session with the server, entered and left in one task, as network libraries need it."""

    def __init__(self, settings: McpSettings, loop: Loop) -> None:
        from mcp import Client, StdioServerParameters

        self._loop, self._deadline, self._leave = loop, settings.deadline, asyncio.Event()
        where: Any = settings.url
        if settings.command:
            program, *arguments = settings.command
            where = StdioServerParameters(command=program, args=arguments)
        entered: Future[Any] = Future()
        live = self._live(Client(where, mode="legacy", cache=None), entered)
        task = asyncio.run_coroutine_threadsafe(live, loop.events)
        try:
            self.client = self._run(asyncio.wrap_future(entered, loop=loop.events))
        except EpisodeError:
            task.cancel()
            raise

    async def _live(self, client: Any, entered: Future[Any]) -> None:
        try:
            async with client as value:
                entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if not entered.done():
                entered.set_exception(cause_of(error))

    def _run(self, work: Awaitable[Any]) -> Any:
        return self._loop.run(work, self._deadline)

    def tools(self) -> list[Tool]:
        return self._run(self._all_tools())

    async def _all_tools(self) -> list[Tool]:
        """Of all pages. Raises EpisodeError for a list that has no end."""
        tools: list[Tool] = []
        cursors: set[str | None] = {None}
        cursor = None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            tools += [tool_of(one.name, one.description, one.input_schema) for one in page.tools]
            if len(tools) > MOST_TOOLS:
                refuse(f"the server has more than {MOST_TOOLS} tools")
            if (cursor := page.next_cursor) is None:
                return tools
            if cursor in cursors:
                refuse("the server's list of tools has no end: it names a page again")
            cursors.add(cursor)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        result = self._run(self.client.call_tool(name, dict(arguments)))
        return answer_of(result_of(result.model_dump(mode="json")))

    def close(self) -> None:
        """Leaves it, beside everything else."""
        self._loop.events.call_soon_threadsafe(self._leave.set)


class McpEnv(OutsideEnv):
    """A session; the scorer's number is the reward that comes at the end."""

    _session: Session | None = None  # from `begin` to `close`

    def __init__(self, suite: McpSuite) -> None:
        super().__init__(suite.settings)
        self._suite = suite

    def begin(self, task: Task) -> tuple[Answer, Sequence[Tool]]:
        self._task, self._session = task, self._suite.open()
        tools = self._session.tools()
        if digest(tools) != self._suite.tools:
            refuse("the server's tools have changed since the suite was made")
        return Answer(str(task.data["ask"])), tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        assert self._session is not None
        return self._session.call(name, arguments)

    def ended(self) -> float | None:
        def call(name: str, arguments: Mapping[str, Any]) -> str:
            return self.call(name, arguments).text

        task, talk = dict(self._task.data), list(self.talk)
        reward = attempt(lambda: self._suite.scorer(task, talk, call))
        if isinstance(reward, BaseException):
            refuse(f"the scorer failed: {described(reward)}")
        return reward_of(reward)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class McpSuite(OutsideSuite):
    """The tasks of `env.tasks`. Raises UserError."""

    name = "mcp"

    def __init__(self, settings: McpSettings) -> None:
        package_folder(self.name, "mcp", VERSION, f"pip install mcp=={VERSION}", "mcp")
        if bool(settings.url) == bool(settings.command):
            raise UserError("env=mcp needs one of `env.url` and `env.command`.")
        super().__init__(settings)
        self.settings, self._loop = settings, Loop()
        self.scorer = load(settings.scorer, "env.scorer").target
        where = "env.url" if settings.url else "env.command"
        session = asked("the MCP server", self.open, where)
        self.tools = digest(asked("its tools", session.tools, where))
        about = session.client.server_info
        self.variant = plain_name(about.name, "server")
        self._version = plain_name(about.version, "unknown")
        session.close()
        self._tasks = _tasks(settings.tasks)
        self.sizes = {split: len(tasks) for split, tasks in self._tasks.items()}

    def open(self) -> Session:
        return Session(self.settings, self._loop)

    def facts(self) -> dict[str, Any]:
        return {"data": f"{self.variant} {self._version}, tools {self.tools}"}

    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        return self._tasks[split][number]

    def make(self) -> McpEnv:
        return McpEnv(self)


def _tasks(text: str) -> dict[str, list[dict[str, Any]]]:
    splits = attempt(load(text, "env.tasks").target)
    if isinstance(splits, BaseException):
        raise UserError(f"env.tasks={text} raised {described(splits)}. Change `env.tasks`.")
    fault = fault_of([splits], DATA)
    if fault or not isinstance(splits, dict) or not splits:
        raise UserError(f"env.tasks={text} gives no splits ({fault or 'a dict is needed'}).")
    for split, tasks in splits.items():
        if not isinstance(tasks, list) or not all(
            isinstance(task, dict) and isinstance(task.get("ask"), str) for task in tasks
        ):
            raise UserError(
                f'env.tasks={text}: the split {split} must be a list of {{"ask": "...", ...}}.'
            )
    return splits
