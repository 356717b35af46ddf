"""The tools of an MCP server, with tasks and a score of one's own (`env=mcp`).

The Model Context Protocol has tools and no episodes: no tasks, no reset, no reward. So an episode
is a session of its own (with `env.command` a process of its own), and the tasks and the score are a
person's functions. Whether a server begins each session alike, `trace_bench.check` measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.checked import PLACE
from trace_bench.core.decode import Limits, fault_of
from trace_bench.core.errors import EpisodeError, UserError, attempt
from trace_bench.core.factory import load
from trace_bench.core.text import described
from trace_bench.core.types import Task, Tool
from trace_bench.envs import SplitsByNumber, outside, package_folder

VERSION = "2.3.0"
DATA = Limits(2**24)


@dataclass(frozen=True, kw_only=True)
class McpSettings(outside.Settings):
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

    def __init__(self, settings: McpSettings, loop: outside.Loop) -> None:
        import httpx2
        from mcp import Client, StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client

        self._loop, self._deadline, self._leave = loop, settings.deadline, asyncio.Event()
        http: Any = nullcontext()
        if settings.command:
            program, *arguments = settings.command
            where: Any = StdioServerParameters(command=program, args=arguments)
        else:
            most = httpx2.Timeout(settings.deadline, read=None)  # of an answer, see `Loop.run`
            http = httpx2.AsyncClient(timeout=most, trust_env=False)
            where = streamable_http_client(settings.url, http_client=http)
        entered: Future[Any] = Future()
        live = self._live(http, Client(where, mode="legacy", cache=None), entered)
        task = asyncio.run_coroutine_threadsafe(live, loop.events)
        try:
            self.client = self._run(asyncio.wrap_future(entered, loop=loop.events))
        except EpisodeError:
            task.cancel()
            raise

    async def _live(self, http: Any, client: Any, entered: Future[Any]) -> None:
        try:
            async with http, client as value:
                entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if not entered.done():
                entered.set_exception(outside.cause_of(error))

    def _run(self, work: Awaitable[Any]) -> Any:
        return self._loop.run(work, self._deadline)

    def tools(self) -> list[Tool]:
        return self._run(self._all_tools())

    async def _all_tools(self) -> list[Tool]:
        """Of all pages, until there are too many; a list without end is late."""
        tools: list[Tool] = []
        cursor = None
        while len(tools) <= outside.MOST_TOOLS:
            page = await self.client.list_tools(cursor=cursor)
            tools += [
                outside.tool_of(one.name, one.description, one.input_schema) for one in page.tools
            ]
            if (cursor := page.next_cursor) is None:
                break
        return tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> outside.Answer:
        result = self._run(self.client.call_tool(name, dict(arguments)))
        return outside.answer_of(outside.result_of(result))

    def close(self) -> None:
        """Leaves it, beside everything else."""
        self._loop.events.call_soon_threadsafe(self._leave.set)


class McpEnv(outside.Episode):
    """A session; the scorer's number is the reward that comes at the end."""

    _session: Session | None = None  # from `begin` to `close`

    def __init__(self, suite: McpSuite) -> None:
        super().__init__(suite.settings)
        self._suite = suite

    def begin(self, task: Task) -> tuple[outside.Answer, Sequence[Tool]]:
        self._task, self._session = task, self._suite.open()
        return outside.Answer(task.data["ask"]), self._session.tools()

    def call(self, name: str, arguments: Mapping[str, Any]) -> outside.Answer:
        assert self._session is not None
        return self._session.call(name, arguments)

    def ended(self) -> float | None:
        def call(name: str, arguments: Mapping[str, Any]) -> str:
            return self.call(name, arguments).text

        task, talk = dict(self._task.data), list(self.talk)
        reward = attempt(lambda: self._suite.scorer(task, talk, call))
        if isinstance(reward, BaseException):
            outside.refuse(f"the scorer failed: {described(reward)}")
        return outside.reward_of(reward)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class McpSuite(SplitsByNumber):
    """The tasks of `env.tasks`. Raises UserError."""

    name = "mcp"

    def __init__(self, settings: McpSettings) -> None:
        package_folder(self.name, "mcp", VERSION, f"pip install mcp=={VERSION}", "mcp")
        if bool(settings.url) == bool(settings.command):
            raise UserError("env=mcp needs one of `env.url` and `env.command`.")
        self.settings, self._loop = settings, outside.Loop()
        self.scorer = load(settings.scorer, "env.scorer").target
        where = "env.url" if settings.url else "env.command"
        session = outside.asked("the MCP server", self.open, where)
        tools, server = outside.asked("its tools", session.tools, where), session.client.server_info
        session.close()
        self.variant = outside.plain_name(server.name, "server")
        version = outside.plain_name(server.version, "unknown")
        self._about = {
            "data": f"{self.variant} {version}, tools {outside.digest(tools)}",
            "reward": settings.reward,
        }
        self._tasks = _tasks(settings.tasks)
        self.sizes = {split: len(tasks) for split, tasks in self._tasks.items()}

    def open(self) -> Session:
        return Session(self.settings, self._loop)

    def about(self) -> Mapping[str, Any]:
        return self._about

    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        return self._tasks[split][number]

    def make(self) -> McpEnv:
        return McpEnv(self)


def _tasks(text: str) -> dict[str, list[dict[str, Any]]]:
    splits = attempt(load(text, "env.tasks").target)
    if isinstance(splits, BaseException):
        raise UserError(f"env.tasks={text} raised {described(splits)}. Change `env.tasks`.")
    fault = fault_of([splits], DATA)
    every = [t for tasks in splits.values() for t in tasks] if isinstance(splits, dict) else []
    if fault or not all(isinstance(t, dict) and isinstance(t.get("ask"), str) for t in every):
        why = fault or 'allowed: {"train": [{"ask": "...", ...}, ...], ...}'
        raise UserError(f"env.tasks={text} gives no tasks: {why}. Change `env.tasks`.")
    return splits
