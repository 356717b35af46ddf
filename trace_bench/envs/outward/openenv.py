"""A suite as an OpenEnv server, over the WebSocket and the Task API that OpenEnv's clients speak.

A session is a WebSocket at /ws with an episode of its own: `reset` with a split and an index (or a
seed, of the first split), then `step` with `list_tools` or `call_tool`. The user is a tool
(`talk_to_user`). The reward, the suite's similarity, comes with the step that ends the episode.
The wire format is small, so it is spoken here, without OpenEnv's own package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import WSMsgType, web

from trace_bench.core import VERSION
from trace_bench.core.chat import make_tool
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.protocols import Suite
from trace_bench.core.text import described
from trace_bench.core.types import Task, Tool, to_json
from trace_bench.envs.outside import digest
from trace_bench.envs.outward import USER, OutwardEpisode

LONGEST = Limits(2**20)
IDLE = 600.0  # seconds after which a silent session ends
TALK = make_tool(USER, "Say something to the user and wait for the answer.", message="string")
ACTION = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["tool_name"],
}


class Refused(Exception):
    """A message of the client's that cannot be used. `code`: OpenEnv's name for it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """One client's episodes, in a thread of their own."""

    def __init__(self, suite: Suite) -> None:
        self._suite, self._episode = suite, OutwardEpisode(suite)
        self._tools: tuple[Tool, ...] | None = None
        self._task, self._steps, self._over = "", 0, False

    def answer(self, kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        """What a message is answered with. Raises Refused."""
        if kind == "reset":
            return self._reset(data)
        if kind == "state":
            return {"episode_id": self._task, "step_count": self._steps}
        if kind != "step":
            raise Refused("UNKNOWN_TYPE", f"{kind!r:.100} is no type; allowed: reset, step, state")
        if data.get("type") == "list_tools":
            return _seen({"tools": [_listed(tool) for tool in (*self._at_hand(), TALK)]})
        return self._call(data)

    def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        task = _chosen(self._suite, data)
        opening, tools = self._episode.begin(task)
        self._task, self._tools, self._steps, self._over = task.id, tuple(tools), 0, False
        text = "\n\n".join(str(message["content"]) for message in opening)
        return _seen({"text": text, "metadata": {"task": task.id}})

    def _at_hand(self) -> tuple[Tool, ...]:
        """The tools; before any episode, those of the first task."""
        if self._tools is None:
            self._reset({})
        assert self._tools is not None
        return self._tools

    def _call(self, data: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if data.get("type", "call_tool") != "call_tool" or not isinstance(name, str):
            raise Refused("VALIDATION_ERROR", "an action is list_tools, or call_tool and tool_name")
        if not isinstance(arguments, dict):
            raise Refused("VALIDATION_ERROR", f"the arguments of {name:.64} are no object")
        if self._tools is None:
            raise Refused("EXECUTION_ERROR", "step before reset")
        said, was = arguments.get("message") if name == USER else "", self._over
        if not isinstance(said, str):
            raise Refused("VALIDATION_ERROR", f"{USER} needs the text `message`")
        self._steps += 1
        own = self._episode
        text = own.say(said) if name == USER else own.call(name, arguments)
        self._over = self._episode.over
        reward = self._episode.finish().similarity if self._over and not was else None
        result = {"content": [{"type": "text", "text": text}], "data": text, "is_error": False}
        seen = {"tool_name": name, "result": result, "error": None, "metadata": {}}
        return _seen(seen, reward, self._over)

    def close(self) -> None:
        self._episode.close()


def _seen(observation: Mapping[str, Any], reward: float | None = None, done: bool = False) -> Any:
    return {"observation": dict(observation), "reward": reward, "done": done}


def _listed(tool: Tool) -> dict[str, Any]:
    own = tool["function"]
    return {**{k: own[k] for k in ("name", "description")}, "input_schema": own["parameters"]}


def _chosen(suite: Suite, data: Mapping[str, Any]) -> Task:
    """The task of a reset. Raises Refused."""
    splits = list(suite.splits())
    split, index = data.get("split", splits[0]), data.get("index")
    if split not in splits:
        raise Refused("VALIDATION_ERROR", f"no split {split!r:.64}; allowed: {', '.join(splits)}")
    tasks = suite.tasks(split)
    if index is None:
        seed = data.get("seed") or 0
        index = seed % len(tasks) if type(seed) is int else seed
    if type(index) is not int or not 0 <= index < len(tasks):
        raise Refused("VALIDATION_ERROR", f"no task {index!r:.64}; allowed: 0 to {len(tasks) - 1}")
    return tasks[index]


class OpenEnvServer:
    """The routes. `most`: sessions at a time. Raises UserError for a suite that needs a run."""

    def __init__(self, suite: Suite, most: int = 64) -> None:
        OutwardEpisode(suite)
        self._suite, self._most, self._live = suite, most, 0
        self.name = f"{suite.name}-{suite.variant}"
        self._specs: dict[str, list[dict[str, str]]] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LONGEST.size)
        about = {"name": self.name, "description": f"trace_bench {VERSION}", "version": VERSION}
        kinds = {split: split if split in ("train", "test") else "validation"
                 for split in self._suite.splits()}  # fmt: skip
        for path, value in {
            "/health": {"status": "healthy"},
            "/metadata": about,
            "/schema": {"action": ACTION, "observation": {}, "state": {}},
            "/list_environments": [self.name],
            f"/{self.name}/splits": [{"name": name, "type": kind} for name, kind in kinds.items()],
        }.items():
            app.router.add_get(path, _constant(value))
        app.router.add_post(f"/{self.name}/{{asked}}", self._tasks)
        app.router.add_get("/ws", self._session)
        return app

    async def _tasks(self, request: web.Request) -> web.Response:
        """The Task API, of a split. A task shows its id and a digest, by which a change is seen."""
        try:
            data = read(await request.text(), LONGEST)
            specs = self._specs_of(data["split"])
            asked = request.match_info["asked"]
            found: dict[str, Callable[[], Any]] = {
                "num_tasks": lambda: {"num_tasks": len(specs)},
                "tasks": lambda: {"tasks": specs},
                "task": lambda: {"task": specs[data["index"]]},
                "task_range": lambda: {"tasks": specs[data.get("start") : data.get("stop")]},
            }
            if asked not in found:
                raise web.HTTPNotFound
            return web.json_response(found[asked]())
        except (Unreadable, UserError, LookupError, TypeError) as error:
            return web.json_response({"detail": described(error)[:2000]}, status=422)

    def _specs_of(self, split: str) -> list[dict[str, str]]:
        if split not in self._specs:
            tasks = self._suite.tasks(split)
            self._specs[split] = [{"id": t.id, "digest": digest(to_json(t))} for t in tasks]
        return self._specs[split]

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(
            max_msg_size=LONGEST.size, heartbeat=30.0, receive_timeout=IDLE
        )
        await socket.prepare(request)
        if self._live >= self._most:
            await socket.send_json(_error("CAPACITY_REACHED", f"{self._most} sessions are live"))
            await socket.close()
            return socket
        self._live += 1
        thread, session = ThreadPoolExecutor(1), Session(self._suite)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(thread, _answer, session, message.data)
                if answer is None:
                    break
                await socket.send_json(answer)
        except TimeoutError:
            pass  # silent for too long
        finally:
            self._live -= 1
            thread.submit(session.close)
            thread.shutdown(wait=False)
        await socket.close()
        return socket


def _answer(session: Session, text: str) -> dict[str, Any] | None:
    """What a client's text is answered with; None where it ends the session."""
    try:
        message = read(text, LONGEST)
        if not isinstance(message, dict):
            raise Refused("INVALID_JSON", "a message is an object with `type` and `data`")
        if (kind := message.get("type")) == "close":
            return None
        if not isinstance(data := message.get("data", {}), dict):
            raise Refused("VALIDATION_ERROR", "`data` is no object")
        found = session.answer(kind, data)
        return {"type": "state" if kind == "state" else "observation", "data": found}
    except Unreadable as error:
        return _error("INVALID_JSON", str(error))
    except Refused as error:
        return _error(error.code, str(error))
    except (EpisodeError, UserError) as error:
        return _error("EXECUTION_ERROR", str(error))
    except Exception as error:  # of the environment
        return _error("EXECUTION_ERROR", described(error))


def _error(code: str, text: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": text[:2000], "code": code}}


def _constant(value: Any) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(value)

    return handle
