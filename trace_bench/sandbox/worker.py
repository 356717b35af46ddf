"""`python -m trace_bench.sandbox.worker JSON`: runs episodes for a host.

    {"factory": "module:attribute", "options": {...}, "asks_user": false}    a suite (core.factory)
    {"kind": "source"}                     waits for a program text that defines `suite()`
    {"kind": "generated", "name": "..."}   waits for one in the form of `GeneratedSuite`

One JSON object per line, see protocol.py. Only the protocol uses stdout: output of the environment
goes to stderr. One worker holds many episodes; the calls of a line run one after the other, and, if
the suite asks the host for answers (`asks_user`), each line in a thread of its own, so that none
waits for another's answers.

A worker in an endless loop does not read its stdin, so nothing would tell it that its host was
killed. Therefore the process that the host starts forks: the child is the worker, and the process
itself, its keeper, waits for the worker's end, or for the host's: the other end of stdin is closed,
or the parent process is another one. In a container the keeper is process 1: nothing inside can
kill or stop it, and the container ends with it. Environments that fight it by all means (one may
open the other end of its own stdin) stay until the next program removes their containers.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core import VERSION
from trace_bench.core.decode import Unreadable
from trace_bench.core.errors import EpisodeError, attempt
from trace_bench.core.factory import load
from trace_bench.core.protocols import RunContext, Suite, make_env
from trace_bench.core.text import described
from trace_bench.core.types import Task, boundary_of
from trace_bench.sandbox.protocol import MAX_LINE, PROTOCOL, code_hash, decode, encode, step_to_json
from trace_bench.sandbox.suite import ABILITIES, GeneratedSuite


class Channel:
    """The real stdin and stdout, reserved for the protocol."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "rb")
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        self.write(encode(message))

    def write(self, line: bytes) -> None:
        with self._lock:
            self._out.write(line)
            self._out.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None if the host is gone."""
        line = self._in.readline(MAX_LINE)
        return decode(line) if line.endswith(b"\n") else None


class Serving:
    def __init__(self, channel: Channel, suite: Any) -> None:
        self.channel = channel
        self.suite = suite
        self.episodes: dict[int, Any] = {}
        self.tools: dict[str, bool] = {}
        self._asked = itertools.count()
        self._now = threading.local()  # the episode that this thread is running
        self._answers: dict[int, tuple[threading.Event, list[dict[str, Any]]]] = {}

    def serve(self) -> None:
        while (message := self.channel.receive()) is not None:
            if "answer" in message:
                event, place = self._answers.pop(message["answer"])
                place.append(message)
                event.set()
            elif self.suite is not None and self.suite.asks_user():
                threading.Thread(target=self._batch, args=(message,), daemon=True).start()
            else:
                self._batch(message)
        os._exit(0)  # ends any threads that the environment left running

    def ask(
        self,
        role: str,
        messages: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None = None,
    ) -> str:
        """`protocols.Ask`: the host's answer for `role`, such as the simulated user."""
        number = next(self._asked)
        event, place = threading.Event(), []  # type: ignore[var-annotated]
        self._answers[number] = (event, place)
        question = {"ask": number, "episode": self._now.episode, "role": role}
        shape = {} if schema is None else {"schema": dict(schema)}
        line = encode({**question, "messages": list(messages), **shape})
        if len(line) > MAX_LINE:
            raise ValueError(f"a question to the {role} has {len(line)} bytes; at most {MAX_LINE}")
        self.channel.write(line)
        event.wait()
        if "error" in place[0]:
            why = f"the {role} could not answer: {place[0]['error']}"
            raise EpisodeError(boundary_of(role).value, why)
        return str(place[0]["text"])

    def _batch(self, message: Mapping[str, Any]) -> None:
        for episode in message.get("close", ()):
            self._close(episode)
        results = [self._call(call) for call in message.get("calls", ())]
        answer = {"id": message["id"], "results": results}
        line = attempt(lambda: encode(answer))
        if isinstance(line, BaseException) or len(line) > MAX_LINE:  # for one of them, at least
            line = encode({**answer, "results": [_sendable(result) for result in results]})
        self.channel.write(line)

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._now.episode = call.get("episode")
        try:
            for earlier in call.get("replay", ()):
                self._do(call["episode"], earlier, {})  # the host does not see these answers
            return self._do(call.get("episode"), call, self.tools)
        except EpisodeError as error:
            return {"error": str(error)[:2000], "boundary": error.boundary}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return {"error": described(error)[:2000]}

    def _do(self, episode: Any, call: Mapping[str, Any], sent: dict[str, bool]) -> dict[str, Any]:
        """The call's result; `sent`: the tools that the host has."""
        do = call["do"]
        if do == "reset":
            self._close(episode)
            self.episodes[episode] = env = make_env(self.suite)
            return {"step": step_to_json(env.reset(Task(**call["task"])), sent)}
        if do == "step":
            return {"step": step_to_json(self.episodes[episode].step(call["action"]), sent)}
        if do == "score":
            return {"score": self.episodes[episode].score()}
        return {"value": self._about() if do == "about" else self._answer(do, call["given"])}

    def _answer(self, member: str, arguments: Sequence[Any]) -> Any:
        """What a member of the suite returns: its tasks, or what it is able to."""
        allowed = {"tasks", "task", *self._abilities()}
        if member not in allowed:
            raise ValueError(f"unknown call {member!r}")
        values = [Task(**value) if isinstance(value, dict) else value for value in arguments]
        answer = getattr(self.suite, member)(*values)
        return answer if isinstance(answer, Task) else list(answer)

    def _about(self) -> dict[str, Any]:
        suite = self.suite
        return {
            "name": suite.name,
            "variant": suite.variant,
            "splits": list(suite.splits()),
            "abilities": self._abilities(),
            "about": dict(suite.about()),
            "asks_user": suite.asks_user(),
        }

    def _abilities(self) -> list[str]:
        return [name for name, ability in ABILITIES.items() if self.suite.has(ability)]

    def _close(self, episode: Any) -> None:
        if (env := self.episodes.pop(episode, None)) is None:
            return
        if isinstance(error := attempt(env.close), BaseException):
            print(f"close: {described(error)}", file=sys.stderr)


def _sendable(result: dict[str, Any]) -> dict[str, Any]:
    """The result, or an error with its tools, to which other results may refer."""
    line = attempt(lambda: encode({"id": 10**9, "results": [result]}))
    if isinstance(line, BaseException):
        why = f"is no JSON: {described(line)}"
    elif len(line) > MAX_LINE:
        why = f"has {len(line)} bytes; at most {MAX_LINE}"
    else:
        return result
    step = {k: v for k, v in result.get("step", {}).items() if k in ("tools", "new_tools")}
    return {"error": f"the environment's answer {why}"[:2000], "step": step}


def main(arguments: Sequence[str]) -> int:
    start = json.loads(arguments[0])
    for name, most in start.get("rlimits", {}).items():  # where no engine sets them
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    keep()
    channel = Channel()
    worker = Serving(channel, None)
    greeting = {"greeting": PROTOCOL, "code": code_hash(), "version": VERSION}
    suite = attempt(lambda: _made(start, worker)) if "factory" in start else None
    if isinstance(suite, BaseException):
        greeting["error"] = described(suite)
    channel.send(greeting)
    worker.suite = suite if "factory" in start else _from_source(channel, start)
    try:
        worker.serve()
    except Unreadable as error:
        print(f"the host broke the protocol: {error}", file=sys.stderr)
        return 1
    return 0


def _made(start: Mapping[str, Any], worker: Serving) -> Any:
    run = RunContext(
        ask=worker.ask if start["asks_user"] else None,
        judge=worker.ask if start.get("judged") else None,
        simulator=worker.ask if start.get("simulated") else None,
        **start.get("run", {}),
    )
    factory = load(start["factory"], "env.factory")
    return factory.make(start["options"], run, "env", Suite)


def _from_source(channel: Channel, start: Mapping[str, Any]) -> Any:
    """A suite from a program text: {"id": 0, "source": "...", "given": {name: value}}."""
    message = channel.receive() or {}
    space: dict[str, Any] = {**message.get("given", {}), "__name__": "environment"}

    def load_suite() -> Any:
        exec(compile(message["source"], "<environment>", "exec"), space)
        if start["kind"] == "generated":
            return GeneratedSuite(start["name"], space)
        suite = space["suite"]()
        if not isinstance(suite, Suite):
            raise TypeError(f"{type(suite).__name__} must inherit trace_bench.Suite")
        return suite

    if isinstance(suite := attempt(load_suite), BaseException):
        channel.send({"id": message.get("id"), "error": described(suite)})
        return None
    channel.send({"id": message["id"], "results": []})
    return suite


# -- the keeper -----------------------------------------------------------------------------------

_GRACE = 2.0  # seconds in which a worker that reads its stdin ends by itself
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def keep() -> None:
    """Returns in the worker, a child process. The calling process becomes its keeper: it does not
    return, and ends with the worker's exit code (128 + N after signal N)."""
    host, keeper = os.getppid(), os.getpid()
    worker = os.fork()
    if worker == 0:
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)  # not outside Linux: who kills keepers, leaks
        if os.getppid() != keeper:
            os._exit(1)
        return
    _control(_PR_SET_DUMPABLE, 0)  # no process of the same user may trace it
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the worker's stdout ends with the worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _end(worker))
    threading.Thread(target=_watch, args=(host, worker), daemon=True).start()
    while True:
        pid, status = os.wait()  # process 1 is the parent of all orphans
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _watch(host: int, worker: int) -> None:
    """Waits for the host's end. The parent process is asked too: other children of the host may
    hold the other end of stdin."""
    stdin = select.poll()
    stdin.register(0, 0)  # a closed other end is reported unasked
    while os.getppid() == host and not stdin.poll(1000):
        pass
    time.sleep(_GRACE)
    _end(worker)


def _end(worker: int) -> None:
    """Ends the worker with all that it has started, and this process."""
    with contextlib.suppress(OSError):
        os.kill(worker, signal.SIGKILL)
    if os.getpgrp() == os.getpid():  # not where a shell started it beside other programs
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
