"""Tasksets of verifiers v1, played in this process (`env=verifiers env.taskset=...`).

The package itself starts, for each rollout, a harness program, a model's endpoint and a server for
each toolset. A taskset whose tools and rewards need no box has no need of them: its toolsets'
functions are called here, the conversation is written into the trace that its rewards read, and an
episode costs milliseconds. What does need a box, a harness, another model or a loop of its own is
refused when the suite is made, in words.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from typing import Any

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError, attempt
from trace_bench.core.text import described
from trace_bench.core.types import Message, Task, Tool
from trace_bench.envs import package_folder
from trace_bench.envs.outside import (
    Answer,
    Loop,
    Outside,
    OutsideEnv,
    OutsideSuite,
    answer_of,
    digest,
    plain_name,
    refuse,
    result_of,
    reward_of,
    tool_of,
)

VERSION = "0.4.0"
EIGHTHS = {"test": (0, 1), "dev": (2,), "train": (3, 4, 5, 6, 7)}
"""Each split's share of the tasks, by the hash of a task's key: the standard has no splits."""
_BOX = ("image", "agent_user", "skills", "artifacts")  # of a task's data
_ROLES = {"system", "user"}


@dataclass(frozen=True, kw_only=True)
class VerifiersSettings(Outside):
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
    most: int = field(default=2000, metadata=number(1))
    """How many tasks are read of a taskset, which may have no end."""


class VerifiersEnv(OutsideEnv):
    """An episode of a task without verifiers' servers; the sum of the task's rewards is the one
    that comes at the end."""

    _stacks: Sequence[Any] = ()  # of the task's own toolsets, from `begin` to `close`

    def __init__(self, settings: VerifiersSettings, suite: VerifiersSuite) -> None:
        super().__init__(settings)
        self._suite = suite

    def begin(self, task: Task) -> tuple[Sequence[Message], Sequence[Tool]]:
        import verifiers.v1 as vf
        from verifiers.v1.state import state_cls

        self._task = inner = self._suite.inner(task)
        self._shared = self._suite.shared()
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
                tools.append(tool_of(name, tool.description, tool.input_schema))
        return tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        return self._run(self._call(name, arguments))

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """What a tool raises is text for the agent, as it is there."""
        from mcp.server.mcpserver.exceptions import ToolError

        server, its_name = self._servers[name]
        self._shared.state.set(self._trace.state)
        try:
            result = await server.call_tool(its_name, dict(arguments))
        except ToolError as error:
            return answer_of(str(error))
        return answer_of(result_of(result.model_dump(mode="json")))

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
                refuse(f"the stop {stop.__name__} returns {type(verdict).__name__}, no bool")
            if verdict:
                self._trace.stop(stop.__name__)
                return True
        return False

    def ended(self) -> float | None:
        return reward_of(self._run(self._reward()))

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
    for message in data.prompt:
        if message.role not in _ROLES or not isinstance(message.content, str):
            refuse("the task's prompt is not of plain system and user messages")
    return [*first, *({"role": m.role, "content": m.content} for m in data.prompt)]


def _typed(message: Message) -> Any:
    """A message as verifiers has it. An agent's call may be broken in any way."""
    import verifiers.v1 as vf

    role, text = message["role"], str(message.get("content") or "")
    if role == "system":
        return vf.SystemMessage(content=text)
    if role == "user":
        return vf.UserMessage(content=text)
    if role == "tool":
        identity = message["tool_call_id"]
        return vf.ToolMessage(tool_call_id=identity, content=text, name=message["name"])
    calls = []
    for call in message.get("tool_calls") or ():
        call = call if isinstance(call, Mapping) else {}
        function = call["function"] if isinstance(call.get("function"), Mapping) else {}
        identity, name = str(call.get("id") or "call_0"), str(function.get("name") or "")
        arguments = function.get("arguments")
        arguments = arguments if isinstance(arguments, str) else "{}"
        calls.append(vf.ToolCall(id=identity, name=name, arguments=arguments))
    return vf.AssistantMessage(content=text or None, tool_calls=calls or None)


class Shared:
    """What the episodes of a taskset have in common: the event loop, and its own toolsets, made
    with the first episode. `state` is that of the episode whose tool is called."""

    def __init__(self, taskset: Any) -> None:
        self.loop, self._taskset = Loop(), taskset
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


class VerifiersSuite(OutsideSuite):
    """The tasks of a taskset. Raises UserError."""

    name = "verifiers"

    def __init__(self, settings: VerifiersSettings) -> None:
        install = f"pip install verifiers=={VERSION}"
        package_folder(self.name, "verifiers", VERSION, install, "verifiers.v1")
        super().__init__(settings)
        self.variant = plain_name(settings.taskset.rpartition("/")[2].partition("@")[0], "taskset")
        fault = attempt(self._load)
        if isinstance(fault, UserError):
            raise fault
        if isinstance(fault, BaseException):
            raise UserError(
                f"env.taskset={settings.taskset} cannot be loaded: {described(fault)}. Change "
                "`env.taskset`, `env.args` or `env.splits`."
            ) from fault
        self.sizes = {split: len(tasks) for split, tasks in self._tasks.items()}
        self._shared: Shared | None = None

    def _load(self) -> None:
        """The tasks by split. Raises UserError for one in two of them, or that cannot be played."""
        from verifiers.v1.utils import loaders

        name, splits = self._settings.taskset, self._settings.splits
        self._refuse(_package_needs(name))
        kind = loaders.taskset_config_type(name)
        self._tasks: dict[str, list[Any]] = {split: [] for split in splits or sorted(EIGHTHS)}
        seen: dict[str, str] = {}
        for chosen, options in (splits or {"": {}}).items():
            config = kind.model_validate({**self._settings.args, **options, "id": name})
            self._taskset = loaders.load_taskset(config)
            for task in islice(self._taskset, self._settings.most):
                self._refuse(_data_needs(task) or (None if seen else _class_needs(task)))
                key = _key(task)
                split = chosen or _bucket(key)
                if seen.setdefault(key, split) != split:
                    raise UserError(
                        f"the task {task.key[:64]} of env.taskset={name} is in {seen[key]} and "
                        f"again in {split}. Change `env.splits`."
                    )
                self._tasks[split].append(task)
        if not seen:
            raise UserError(f"env.taskset={name} has no tasks. Change `env.args`.")
        for toolset in self._taskset.toolsets(config):
            self._refuse(_tools_need(toolset))
        self._specs = {split: [task.hash for task in tasks] for split, tasks in self._tasks.items()}

    def _refuse(self, need: str | None) -> None:
        if need is not None:
            raise UserError(
                f"env.taskset={self._settings.taskset} cannot be played in process: it needs "
                f"{need}, which only verifiers' own runner has. Change `env.taskset`."
            )

    def shared(self) -> Shared:
        """What all episodes share; a new one after a tool that has never come back."""
        if self._shared is None or not self._shared.loop.alive():
            self._shared = Shared(self._taskset)
        return self._shared

    def inner(self, task: Task) -> Any:
        """verifiers' own task. Raises EpisodeError where it has changed."""
        split, index = task.data["split"], task.data["index"]
        if self._specs[split][index] != task.data["spec"]:
            refuse(f"the taskset's task {index} of {split} has changed")
        return self._tasks[split][index].with_data()

    def facts(self) -> dict[str, Any]:
        version = attempt(lambda: metadata.version(self.variant))
        version = version if isinstance(version, str) else "without a version"
        return {"data": f"{self.variant} {version}, tasks {digest(self._specs)}"}

    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        return {"split": split, "index": number, "spec": self._specs[split][number]}

    def make(self) -> VerifiersEnv:
        return VerifiersEnv(self._settings, self)


def _key(task: Any) -> str:
    """What a task is, wherever it stands: its own key, or its data without its place."""
    if task.key != task.hash:
        return str(task.key)
    return digest(task.data.model_dump(mode="json", exclude={"idx"}, exclude_none=True))


def _bucket(key: str) -> str:
    eighth = int(digest(key), 16) % 8
    return next(split for split, share in EIGHTHS.items() if eighth in share)


# -- what a taskset needs that is not here ---------------------------------------------------------


def _package_needs(taskset: str) -> str | None:
    """What the package of that id brings to play it with. Raises as verifiers does for an unknown
    one."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils import loaders

    if (env := loaders.environment_class(taskset)) is not SingleAgentEnv:
        return f"a loop of its own ({env.__name__}.run)"
    if loaders.default_harness_id(taskset) == taskset:
        return "a harness of its own"
    return None


def _tools_need(toolset: Any) -> str | None:
    """What a toolset needs beyond this process."""
    config = toolset.config
    if getattr(config, "url", None):
        return f"a tool server elsewhere ({config.url})"
    if getattr(config, "colocated", False) or config.runtime.type != "subprocess":
        return f"a box for the tools of {type(toolset).__name__}"
    return None


def _class_needs(task: Any) -> str | None:
    """What the tasks of that one's class and settings need."""
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.task import Task
    from verifiers.v1.trace import Trace
    from verifiers.v1.utils.decorators import discover_decorated

    if task.NEEDS_CONTAINER:
        return "a container"
    kind, steps = type(task), []
    steps += [task.setup] if kind.setup is not Task.setup else []
    steps += [task.finalize] if kind.finalize is not Task.finalize else []
    for hook in (*steps, *task.hooks("reward")):
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"a box, in which {hook.__name__} acts"
    if task.plugged_judges():
        return "a model that judges"
    stops = [f for f in task.hooks("stop") if hook_boundary(f, allow_trace=True) is not Trace]
    if stops or discover_decorated(task, "intercept"):
        return "the model's endpoint, whose requests it reads"
    return next(filter(None, map(_tools_need, task.toolsets(task.config))), None)


def _data_needs(task: Any) -> str | None:
    """What one task needs besides."""
    data = task.data
    if boxes := [name for name in _BOX if getattr(data, name)]:
        return f"a box with its {boxes[0]}"
    if data.prompt is None:
        return "a user who opens the conversation"
    return None
