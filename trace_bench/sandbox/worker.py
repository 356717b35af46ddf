"""`python -m trace_bench.sandbox.worker <env> [key=value ...]`: plays episodes for a host.

`<env>` is the name of a registered environment, and the keys are what `envs.registry.suite` takes;
`source` instead waits for a program text that defines `suite()`, and `generated name=...` for one
as envs/generated.py wants it. One JSON object a line, see
protocol.py. stdout belongs to the protocol alone: whatever the environment prints goes to stderr.
Many episodes live in one worker; the calls of a line are made one after the other, or, where the
suite asks the host back (`asks = True`), side by side, so that nobody waits for another's answer.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trace_bench import __version__
from trace_bench.core.errors import EpisodeError
from trace_bench.core.types import Boundary, task_from_json
from trace_bench.sandbox.protocol import (
    MAX_LINE,
    PROTOCOL,
    Violation,
    code_hash,
    decode,
    encode,
    step_to_json,
)

SIDE_BY_SIDE = 64
FOREIGN = ("source", "generated")  # suites that come as a program text


class Channel:
    """The real stdin and stdout, taken away from everybody else."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "rb")
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        line = encode(message)
        with self._lock:
            self._out.write(line)
            self._out.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the host is gone."""
        line = self._in.readline(MAX_LINE)
        return decode(line) if line.endswith(b"\n") else None


class Worker:
    def __init__(self, channel: Channel, suite: Any) -> None:
        self.channel = channel
        self.suite = suite
        self.episodes: dict[int, Any] = {}
        self.tools: dict[str, bool] = {}
        self._asked = itertools.count()
        self._now = threading.local()  # the episode that this thread is playing
        self._answers: dict[int, tuple[threading.Event, list[dict[str, Any]]]] = {}
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)  # starts threads only when it is used

    def serve(self) -> None:
        """Until the host closes our stdin."""
        while (message := self.channel.receive()) is not None:
            if "answer" in message:
                event, place = self._answers.pop(message["answer"])
                place.append(message)
                event.set()
            elif getattr(self.suite, "asks", False):
                threading.Thread(target=self._batch, args=(message, True), daemon=True).start()
            else:
                self._batch(message, False)
        os._exit(0)  # whatever threads the environment has left

    def ask(self, role: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """The host's answer for the simulated user, an analyst or whoever `role` names."""
        number = next(self._asked)
        event, place = threading.Event(), []  # type: ignore[var-annotated]
        self._answers[number] = (event, place)
        self.channel.send(
            {"ask": number, "episode": self._now.episode, "role": role, "messages": list(messages)}
        )
        event.wait()
        if "error" in place[0]:
            why = f"the {role} could not answer: {place[0]['error']}"
            raise EpisodeError(Boundary.USER.value, why)
        return str(place[0]["text"])

    def _batch(self, message: Mapping[str, Any], side_by_side: bool) -> None:
        for episode in message.get("close", ()):
            self._close(episode)
        calls = message.get("calls", ())
        if side_by_side:
            results = list(self._pool.map(self._call, calls))
        else:
            results = [self._call(call) for call in calls]
        self.channel.send({"id": message["id"], "results": results})

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._now.episode = call.get("episode")
        try:
            for earlier in call.get("replay", ()):
                self._do(call["episode"], earlier, {})  # the host does not see these answers
            return self._do(call.get("episode"), call, self.tools)
        except EpisodeError as error:
            return {"error": str(error)[:2000], "boundary": error.boundary}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:2000]}

    def _do(self, episode: Any, call: Mapping[str, Any], known: dict[str, bool]) -> dict[str, Any]:
        """The call's result; `known`: the tools that the host has."""
        do = call["do"]
        if do == "reset":
            self._close(episode)
            self.episodes[episode] = env = self.suite.make()
            return {"step": step_to_json(env.reset(task_from_json(call["task"])), known)}
        if do == "step":
            return {"step": step_to_json(self.episodes[episode].step(call["action"]), known)}
        if do == "score":
            score = getattr(self.episodes[episode], "score", None)
            return {"score": None if score is None else score()}
        if do == "about":
            info = getattr(self.suite, "about", None)
            return {"value": {"name": self.suite.name, "variant": self.suite.variant,
                              "splits": list(self.suite.splits()),
                              "about": dict(info()) if info else {},
                              "reference": getattr(self.suite, "has_reference", True),
                              "asks": getattr(self.suite, "asks", False)}}  # fmt: skip
        if do == "tasks":
            return {"value": list(self.suite.tasks(call["split"]))}
        if do == "synthetic":
            return {"value": self.suite.synthetic(call["capability"], call["seed"])}
        if do == "reference":
            return {"value": list(self.suite.reference(task_from_json(call["task"])))}
        raise ValueError(f"unknown call {do!r}")

    def _close(self, episode: Any) -> None:
        env = self.episodes.pop(episode, None)
        try:
            if env is not None:
                env.close()
        except Exception as error:
            print(f"close: {type(error).__name__}: {error}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    channel = Channel()
    worker = Worker(channel, None)
    name, options = arguments[0], dict(a.partition("=")[::2] for a in arguments[1:])
    greeting = {"greeting": PROTOCOL, "code": code_hash(), "version": __version__, "env": name}
    try:
        if name not in FOREIGN:
            worker.suite = _registered(name, options, worker)
    except Exception as error:
        greeting["error"] = f"{type(error).__name__}: {error}"
    channel.send(greeting)
    if name in FOREIGN:
        worker.suite = _from_source(channel, name, options)
    try:
        worker.serve()
    except Violation as error:
        print(f"the host broke the protocol: {error}", file=sys.stderr)
        return 1
    return 0


def _registered(name: str, options: dict[str, str], worker: Worker) -> Any:
    from trace_bench.envs.registry import suite

    return suite(
        name,
        options.pop("suite"),
        options.pop("augmentation", "none"),
        options=options,
        ask=worker.ask,
    )


def _from_source(channel: Channel, kind: str, options: dict[str, str]) -> Any:
    """A suite from a program text: {"id": 0, "source": "...", "given": {name: value}}."""
    from trace_bench.envs.generated import GeneratedSuite

    message = channel.receive() or {}
    space: dict[str, Any] = {**message.get("given", {}), "__name__": "environment"}
    try:
        exec(compile(message["source"], "<environment>", "exec"), space)
        suite = GeneratedSuite(options["name"], space) if kind == "generated" else space["suite"]()
    except Exception as error:
        channel.send({"id": message.get("id"), "error": f"{type(error).__name__}: {error}"})
        return None
    channel.send({"id": message["id"], "results": []})
    return suite


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
