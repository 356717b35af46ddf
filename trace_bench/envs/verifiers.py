"""Tasksets of verifiers v1, played in this process (`env=verifiers env.taskset=...`).

The package itself starts, for each rollout, a harness program, a model's endpoint and a server for
each toolset. A taskset whose tools and rewards need no box has no need of them: its toolsets'
functions are called here, the conversation is written into the trace that its rewards read, and an
episode costs milliseconds. What does need a box, a harness, another model or a loop of its own is
refused when the suite is made, in words.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from typing import Any

from trace_bench.core.chat import answer_call, read_call
from trace_bench.core.errors import UserError, attempt
from trace_bench.core.text import described
from trace_bench.core.types import Message, Task, Tool
from trace_bench.envs import SplitsByNumber, outside, package_folder

VERSION = "0.4.0"
EIGHTHS = {"test": (0, 1), "dev": (2,), "train": (3, 4, 5, 6, 7)}
"""Each split's share of the tasks, by the hash of a task's key: the standard has no splits."""
MOST = 2000  # tasks that are read of a taskset, or of each split: it may have no end
_BOX = ("image", "agent_user", "skills", "artifacts")  # of a task's data


@dataclass(frozen=True, kw_only=True)
class VerifiersSettings(outside.Settings):
    """The worker's interpreter needs verifiers and the taskset's package."""

    taskset: str
    """The taskset's id, as verifiers has it: the name of an installed package, or of a module in
    the working folder."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """The taskset's own settings: 'env.args={game: x}'."""
    splits: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make each split, where the taskset has some:
    'env.splits={train: {split: train}, dev: {split: valid}, test: {split: test}}'. Without it, a
    task's key decides: five eighths of the tasks are train, one dev, two test."""


class VerifiersEnv(outside.Episode):
    """An episode without verifiers' servers; the sum of the task's rewards comes at the end."""

    _stacks: Sequence[Any] = ()  # of the task's own toolsets, from `begin` to `close`

    def __init__(self, settings: VerifiersSettings, suite: VerifiersSuite) -> None:
        super().__init__(settings)
        self._suite = suite

    def begin(self, task: Task) -> tuple[Sequence[Message], Sequence[Tool]]:
        import verifiers.v1 as vf
        from verifiers.v1.state import state_cls

        self._task = inner = self._suite.inner(task)
        self._shared = self._suite.shared
        about = vf.TraceTask(
            type=type(inner).__name__, data=inner.data, key=inner.key, hash=inner.hash
        )
        state, agent = state_cls(type(inner))(), vf.AgentInfo(config=vf.AgentConfig())
        self._trace = vf.Trace(task=about, state=state, agent=agent)
        self._servers: dict[str, tuple[Any, str]] = {}  # by the agent's name of a tool
        self._stacks = []
        return _opening(inner.data), self._run(self._set_up())

    async def _set_up(self) -> list[Tool]:
        """The task's tools, and those of its taskset."""
        from verifiers.v1.utils.decorators import invoke

        await invoke(self._task.setup, {"trace": self._trace, "runtime": None})
        servers = list(await self._shared.servers())
        for toolset in self._task.toolsets(self._task.config):
            self._stacks = [*self._stacks, toolset._exit_stack]
            servers.append(await self._shared.serve(toolset, self._task.data))
        tools = []
        for prefix, server in servers:
            for tool in await server.list_tools():
                name = f"{prefix}_{tool.name}" if prefix else tool.name
                self._servers[name] = server, tool.name
                tools.append(outside.tool_of(name, tool.description, tool.input_schema))
        return tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> outside.Answer:
        return self._run(self._call(name, arguments))

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> outside.Answer:
        """What a tool raises is text for the agent, as it is there."""
        from mcp.server.mcpserver.exceptions import ToolError

        server, its_name = self._servers[name]
        self._shared.state.set(self._trace.state)
        try:
            result = await server.call_tool(its_name, dict(arguments))
        except ToolError as error:
            return outside.answer_of(str(error))
        return outside.answer_of(outside.result_of(result))

    def stopped(self) -> bool:
        return self._run(self._stopped())

    async def _stopped(self) -> bool:
        """Whether one of the task's stops ends the conversation here."""
        from verifiers.v1.trace import Trace
        from verifiers.v1.utils.decorators import invoke

        stops = self._task.hooks("stop")
        if stops:
            self._write()
        for stop in stops:
            verdict = invoke(stop, {Trace: self._trace})
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
            if not isinstance(verdict, bool):
                outside.refuse(
                    f"the stop {stop.__name__} returns {type(verdict).__name__}, no bool"
                )
            if verdict:
                self._trace.stop(stop.__name__)
                return True
        return False

    def ended(self) -> float | None:
        return outside.reward_of(self._run(self._reward()))

    async def _reward(self) -> float | None:
        """The sum of the task's rewards, each by its weight; None without any."""
        from verifiers.v1.utils.decorators import invoke

        if not self._trace.rewards:
            self._write()
            self._trace.stop("agent_completed")
            await invoke(self._task.finalize, {"trace": self._trace, "runtime": None})
            await self._task.score(self._trace, None)
        return self._trace.reward if self._trace.rewards else None

    def _write(self) -> None:
        """The conversation so far into the trace."""
        import verifiers.v1 as vf

        nodes = self._trace.nodes
        for message in self.talk[len(nodes) :]:
            parent, sampled = (len(nodes) - 1 if nodes else None), message["role"] == "assistant"
            nodes.append(vf.MessageNode(parent=parent, message=_typed(message), sampled=sampled))

    def close(self) -> None:
        stacks, self._stacks = self._stacks, ()
        for stack in reversed(stacks):
            attempt(lambda stack=stack: self._run(stack.aclose()))  # type: ignore[misc]

    def _run(self, work: Awaitable[Any]) -> Any:
        return self._shared.loop.run(work, self._settings.deadline)


def _opening(data: Any) -> list[Message]:
    """The system prompt and the prompt. Raises EpisodeError for one with pictures, or in which the
    agent has spoken."""
    first = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*first, {"role": "user", "content": data.prompt}]
    if any(m.role not in ("system", "user") or type(m.content) is not str for m in data.prompt):
        outside.refuse("the task's prompt is not of plain system and user messages")
    return [*first, *({"role": m.role, "content": m.content} for m in data.prompt)]


def _typed(message: Message) -> Any:
    """A message as verifiers has it. An agent's call may be broken in any way."""
    import verifiers.v1 as vf

    text = str(message.get("content") or "")
    match message["role"]:
        case "system":
            return vf.SystemMessage(content=text)
        case "user":
            return vf.UserMessage(content=text)
        case "tool":
            name, identity = message["name"], message["tool_call_id"]
            return vf.ToolMessage(tool_call_id=identity, content=text, name=name)
    calls = []
    for call in message.get("tool_calls") or ():
        answered = answer_call(call, "")  # with the id and the name that its answer has
        try:
            arguments = json.dumps(read_call(call)[1])
        except ValueError:
            arguments = "{}"
        identity, name = answered["tool_call_id"], answered["name"]
        calls.append(vf.ToolCall(id=identity, name=name, arguments=arguments))
    return vf.AssistantMessage(content=text or None, tool_calls=calls or None)


class Shared:
    """What the episodes of a taskset have in common: the event loop, and its own toolsets, made
    with the first episode. `state` is that of the episode whose tool is called."""

    def __init__(self, taskset: Any) -> None:
        self.loop, self._taskset = outside.Loop(), taskset
        self.state: ContextVar[Any] = ContextVar("state")
        self._servers: list[tuple[str, Any]] | None = None

    async def servers(self) -> list[tuple[str, Any]]:
        if self._servers is None:
            toolsets = self._taskset.toolsets(self._taskset.config)
            self._servers = [await self.serve(toolset) for toolset in toolsets]
        return self._servers

    async def serve(self, toolset: Any, data: Any = None) -> tuple[str, Any]:
        """A toolset as verifiers starts it (`ServerBase._serve`), but for the socket: the prefix of
        its tools, and its MCP server. State comes from the episode, not by HTTP."""
        from mcp.server.mcpserver import MCPServer

        async def state() -> Any:
            return self.state.get()

        await toolset._exit_stack.__aenter__()
        toolset._pull_state = state
        await toolset.setup()
        if data is not None:
            await toolset.setup_task(data)
        name = toolset.server_name or type(toolset).__name__
        server = MCPServer(name, log_level="WARNING")  # a line a score costs milliseconds
        toolset.register(server)
        return toolset.server_name, server


class VerifiersSuite(SplitsByNumber):
    """The tasks of a taskset. Raises UserError."""

    name = "verifiers"

    def __init__(self, settings: VerifiersSettings) -> None:
        install = f"pip install verifiers=={VERSION}"
        package_folder(self.name, "verifiers", VERSION, install, "verifiers.v1")
        self._settings = settings
        self.variant = outside.plain_name(
            settings.taskset.rpartition("/")[2].partition("@")[0], "taskset"
        )
        self._inner: dict[str, Any] = {}  # verifiers' own tasks by key
        keys = attempt(self._load)
        if isinstance(keys, UserError):
            raise keys
        if isinstance(keys, BaseException):
            raise UserError(
                f"env.taskset={settings.taskset} cannot be loaded: {described(keys)}. Change "
                "`env.taskset`, `env.args` or `env.splits`."
            ) from keys
        self._keys = keys
        self.sizes = {split: len(each) for split, each in keys.items()}

    def _load(self) -> dict[str, list[str]]:
        """The keys of the tasks by split. Raises UserError for one that cannot be played."""
        from verifiers.v1.utils import loaders

        name, splits = self._settings.taskset, self._settings.splits
        self._refuse(_package_needs(name))
        kind = loaders.taskset_config_type(name)
        keys: dict[str, list[str]] = {split: [] for split in splits or sorted(EIGHTHS)}
        for chosen, options in (splits or {"": {}}).items():
            config = kind.model_validate({**self._settings.args, **options, "id": name})
            taskset = loaders.load_taskset(config)
            for task in islice(taskset, MOST):
                self._refuse(_data_needs(task))
                if not self._inner:
                    self._refuse(_class_needs(task))
                key = _key(task)
                if _content(self._inner.setdefault(key, task)) != _content(task):
                    raise UserError(
                        f"env.taskset={name} has two tasks with the key {key!r}. Change "
                        "`env.splits` so that keys differ."
                    )
                keys[chosen or _bucket(key)].append(key)
        if not self._inner:
            raise UserError(f"env.taskset={name} has no tasks. Change `env.args`.")
        self._refuse(_tools_need(taskset))
        self.shared = Shared(taskset)
        return keys

    def _refuse(self, needs: Iterator[str]) -> None:
        for need in needs:
            raise UserError(
                f"env.taskset={self._settings.taskset} cannot be played in process: it needs "
                f"{need}, which only verifiers' own runner has. Change `env.taskset`."
            )

    def inner(self, task: Task) -> Any:
        """verifiers' own task."""
        return self._inner[task.data["key"]].with_data()

    def about(self) -> Mapping[str, Any]:
        version = attempt(lambda: metadata.version(self.variant))
        version = version if isinstance(version, str) else "without a version"
        hashes = {split: [self._inner[k].hash for k in keys] for split, keys in self._keys.items()}
        data = f"{self.variant} {version}, tasks {outside.digest(hashes)}"
        return {"data": data, "reward": self._settings.reward}

    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        """A task's key, by which one in two splits is found out."""
        return {"key": self._keys[split][number]}

    def make(self) -> VerifiersEnv:
        return VerifiersEnv(self._settings, self)


def _key(task: Any) -> str:
    """What a task is, wherever it stands: its own key, or its content."""
    return str(task.key) if task.key != task.hash else _content(task)


def _content(task: Any) -> str:
    """A digest of a task's data without its place."""
    return outside.digest(task.data.model_dump(mode="json", exclude={"idx"}, exclude_none=True))


def _bucket(key: str) -> str:
    eighth = int(outside.digest(key), 16) % 8
    return next(split for split, share in EIGHTHS.items() if eighth in share)


# -- what a taskset needs that is not here ---------------------------------------------------------


def _package_needs(taskset: str) -> Iterator[str]:
    """Of the package of that id. Raises as verifiers does for an unknown one."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils import loaders

    if (env := loaders.environment_class(taskset)) is not SingleAgentEnv:
        yield f"a loop of its own ({env.__name__}.run)"
    if loaders.default_harness_id(taskset) == taskset:
        yield "a harness of its own"


def _tools_need(owner: Any) -> Iterator[str]:
    """Of the toolsets of a taskset, or of a task."""
    for toolset in owner.toolsets(owner.config):
        config = toolset.config
        if getattr(config, "url", None):
            yield f"a tool server elsewhere ({config.url})"
        if getattr(config, "colocated", False) or config.runtime.type != "subprocess":
            yield f"a box for the tools of {type(toolset).__name__}"


def _class_needs(task: Any) -> Iterator[str]:
    """Of that one's class and settings, which all tasks share."""
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.task import Task
    from verifiers.v1.trace import Trace
    from verifiers.v1.utils.decorators import discover_decorated

    if task.NEEDS_CONTAINER:
        yield "a container"
    steps = [n for n in ("setup", "finalize") if getattr(type(task), n) is not getattr(Task, n)]
    for hook in (*(getattr(task, name) for name in steps), *task.hooks("reward")):
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            yield f"a box, in which {hook.__name__} acts"
    if task.plugged_judges():
        yield "a model that judges"
    stops = [f for f in task.hooks("stop") if hook_boundary(f, allow_trace=True) is not Trace]
    if stops or discover_decorated(task, "intercept"):
        yield "the model's endpoint, whose requests it reads"
    yield from _tools_need(task)


def _data_needs(task: Any) -> Iterator[str]:
    """Of one task's data."""
    for name in _BOX:
        if getattr(task.data, name):
            yield f"a box with its {name}"
    if task.data.prompt is None:
        yield "a user who opens the conversation"
