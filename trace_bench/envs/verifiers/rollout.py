"""An episode of a verifiers task without its servers: toolsets that are called, and the trace."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from trace_bench.core.types import Message, Tool
from trace_bench.envs.outside import Answer, answer_of, refuse, tool_of
from trace_bench.envs.outside.loop import Loop

_ROLES = {"system", "user"}
Tools = dict[str, tuple[Any, str]]  # by the agent's name for it: its server, its name there


class Shared:
    """What the episodes of a taskset have in common: the event loop, and its own toolsets, made
    with the first episode. `state` is that of the episode whose tool is called."""

    def __init__(self, loop: Loop, taskset: Any) -> None:
        self.loop, self._taskset = loop, taskset
        self.state: ContextVar[Any] = ContextVar("state")
        self._servers: list[Any] | None = None

    async def servers(self) -> list[Any]:
        if self._servers is None:
            toolsets = self._taskset.toolsets(self._taskset.config)
            self._servers = [await self.serve(toolset) for toolset in toolsets]
        return self._servers

    async def serve(self, toolset: Any, data: Any = None) -> tuple[str, Any, Any]:
        """A toolset as verifiers starts it (`ServerBase._serve`), but for the socket: its name,
        its MCP server, and what ends it. State comes from the episode, not by HTTP."""
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
        return toolset.server_name, server, toolset._exit_stack


class Rollout:
    """One episode of a task."""

    def __init__(self, task: Any, shared: Shared) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.state import state_cls

        self._task, self._shared = task, shared
        about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        state, agent = state_cls(type(task))(), vf.AgentInfo(config=vf.AgentConfig())
        self._trace = vf.Trace(task=about, state=state, agent=agent)
        self._tools: Tools = {}
        self._stacks: list[Any] = []
        self._reward: float | None = None

    def opening(self) -> list[Message]:
        """The system prompt and the prompt. Raises EpisodeError for one with pictures, or in which
        the agent has spoken."""
        data = self._task.data
        first = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        if isinstance(data.prompt, str):
            return [*first, {"role": "user", "content": data.prompt}]
        for message in data.prompt:
            if message.role not in _ROLES or not isinstance(message.content, str):
                refuse("the task's prompt is not of plain system and user messages")
        return [*first, *({"role": m.role, "content": m.content} for m in data.prompt)]

    async def open(self) -> list[Tool]:
        """Sets the task up; its tools, and those of its taskset. Raises EpisodeError."""
        from verifiers.v1.utils.decorators import invoke

        await invoke(self._task.setup, {"trace": self._trace, "runtime": None})
        servers = list(await self._shared.servers())
        for toolset in self._task.toolsets(self._task.config):
            self._stacks.append(toolset._exit_stack)
            servers.append(await self._shared.serve(toolset, self._task.data))
        tools = []
        for prefix, server, _ in servers:
            for tool in await server.list_tools():
                name = f"{prefix}_{tool.name}" if prefix else tool.name
                self._tools[name] = server, tool.name
                tools.append(tool_of(name, tool.description, tool.input_schema))
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """A tool's texts, one below the other; of what is no text, the kind. What it raises is
        text for the agent, as it is there."""
        from mcp.server.mcpserver.exceptions import ToolError

        server, own = self._tools[name]
        self._shared.state.set(self._trace.state)
        try:
            result = await server.call_tool(own, dict(arguments))
        except ToolError as error:
            return answer_of(str(error))
        parts = [p.text if p.type == "text" else f"[{p.type}]" for p in result.content]
        return answer_of("\n".join(parts))

    async def stopped(self, said: Sequence[Message]) -> bool:
        """Whether one of the task's stops ends the conversation here."""
        from verifiers.v1.trace import Trace
        from verifiers.v1.utils.decorators import invoke

        stops = self._task.hooks("stop")
        if stops:
            self._write(said)
        for stop in stops:
            found = invoke(stop, {Trace: self._trace})
            found = await found if inspect.isawaitable(found) else found
            if not isinstance(found, bool):
                refuse(f"the stop {stop.__name__} returns {type(found).__name__}, no bool")
            if found:
                self._trace.stop(stop.__name__)
                return True
        return False

    async def reward(self, said: Sequence[Message]) -> float | None:
        """The sum of the task's rewards, each by its weight; None without any."""
        from verifiers.v1.utils.decorators import invoke

        if not self._trace.rewards:
            self._write(said)
            self._trace.stop("agent_completed")
            await invoke(self._task.finalize, {"trace": self._trace, "runtime": None})
            await self._task.score(self._trace, None)
        return self._trace.reward if self._trace.rewards else None

    async def close(self) -> None:
        while self._stacks:
            await self._stacks.pop().aclose()

    def _write(self, said: Sequence[Message]) -> None:
        """The conversation so far into the trace."""
        import verifiers.v1 as vf

        nodes = self._trace.nodes
        for message in said[len(nodes) :]:
            parent, own = (len(nodes) - 1 if nodes else None), message["role"] == "assistant"
            nodes.append(vf.MessageNode(parent=parent, message=_typed(message), sampled=own))


def _typed(message: Message) -> Any:
    """A message as verifiers has it. An agent's call may be broken in any way."""
    import verifiers.v1 as vf

    role, text = message["role"], str(message.get("content") or "")
    if role == "system":
        return vf.SystemMessage(content=text)
    if role == "user":
        return vf.UserMessage(content=text)
    if role == "tool":
        return vf.ToolMessage(
            tool_call_id=message["tool_call_id"], content=text, name=message["name"]
        )
    calls = []
    for call in message.get("tool_calls") or ():
        call = call if isinstance(call, Mapping) else {}
        function = call.get("function")
        own = function if isinstance(function, Mapping) else {}
        identity, name = str(call.get("id") or "call_0"), str(own.get("name") or "")
        given = own.get("arguments")
        arguments = given if isinstance(given, str) else "{}"
        calls.append(vf.ToolCall(id=identity, name=name, arguments=arguments))
    return vf.AssistantMessage(content=text or None, tool_calls=calls or None)
