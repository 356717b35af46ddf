"""A suite whose tasks do harm, each in its own way, beside tasks that do none. It is what a user
may bring (env.factory=hostile_world:Suite) and imports nothing of the tests."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trace_bench.core import protocols
from trace_bench.core.types import Message, Score, Step, Task

GOOD = 6  # tasks without harm
ERRORS = "Traceback (most recent call last)\n" * 999
QUESTION = {"ask": 1, "episode": 1, "role": "oracle"}
HELLO = Step(({"role": "user", "content": "hello"},))


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Liar(float):
    """Seven, and says that it lies between zero and one."""

    def __le__(self, other: object) -> bool:
        return True

    __ge__ = __lt__ = __gt__ = __le__


def said(content: Any, **more: Any) -> Step:
    return Step(({"role": "user", "content": content, **more},))


def scored(similarity: Any, success: Any = True, **more: Any) -> Step:
    return Step(done=True, score=Score(similarity, success, **more))


def fails(error: BaseException) -> Any:
    raise error


def waits_after(do: Callable[[], object]) -> None:
    do()
    time.sleep(60)


def forever() -> Any:
    while True:
        pass


def deep(n: int = 0) -> Any:
    return deep(n + 1)


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def channel() -> Any:
    """The worker's own channel to its host."""
    return next(o for o in gc.get_objects() if type(o).__name__ == "Channel")


def after(do: Callable[[], object], then: object = None) -> Callable[[], Any]:
    def both() -> Any:
        do()
        return HELLO if then is None else then

    return both


def spawn(*command: str) -> None:
    subprocess.Popen(command, stdin=subprocess.DEVNULL)


def orphan_with_the_channel() -> None:
    """A child keeps the channel open, and this process leaves."""
    if os.fork():
        os._exit(0)
    time.sleep(60)


def out_of_its_group() -> None:
    os.setsid()
    forever()


# What a reset does in the task of that name. The first kind can be played in any process.
ANYWHERE: dict[str, Callable[[], Any]] = {
    "an error": lambda: fails(ValueError("broken")),
    "an error of a megabyte": lambda: fails(ValueError("x" * 2**20)),
    "an error with control characters": lambda: fails(ValueError("\x1b[2J\x1b]0;mine\x07\r\n\n")),
    "an error with half a character": lambda: fails(ValueError("\ud83d")),
    "an error without words": lambda: fails(Unprintable()),
    "leaving politely": lambda: sys.exit(0),
    "leaving with an error": lambda: sys.exit("enough"),
    "recursion without end": deep,
    "no memory": lambda: fails(MemoryError()),
    "nothing": lambda: None,
    "an object": lambda: {"messages": []},
    "no messages": lambda: Step(None),  # type: ignore[arg-type]
    "a message of bytes": lambda: said(b"hello"),
    "a message that holds itself": lambda: said("hello", more=circle()),
    "a message that is a set": lambda: said({1, 2}),
    "a number of 5000 digits": lambda: said("hello", more=10**5000),
    "a role of one's own": lambda: Step(({"role": "boss", "content": "hello"},)),
    "a million messages": lambda: Step(({"role": "user", "content": ""},) * 1_000_001),
    "tools without names": lambda: Step(HELLO.messages, ({"function": {}},)),
    "done, and not quite": lambda: Step(HELLO.messages, done="almost"),  # type: ignore[arg-type]
    "a score that is a text": lambda: scored("1.0"),
    "a score beyond the top": lambda: scored(7.0),
    "a score below the bottom": lambda: scored(-1e-9),
    "a score that is no number": lambda: scored(float("nan")),
    "a score that lies": lambda: scored(Liar(7.0)),
    "a success that is a number": lambda: scored(1.0, 1),
    "details that hold themselves": lambda: scored(1.0, details={"a": circle()}),
}

# Only where another process holds it.
IN_A_WORKER: dict[str, Callable[[], Any]] = {
    "leaving at once": lambda: os._exit(0),
    "leaving at once with an error": lambda: os._exit(3),
    "killing itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "a crash": lambda: ctypes.string_at(0),
    "an alarm": lambda: waits_after(lambda: signal.alarm(1)),
    "interrupting": lambda: fails(KeyboardInterrupt()),
    "an endless loop": forever,
    "sleeping": lambda: time.sleep(600),
    "stopping itself": after(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "becoming another program": lambda: os.execvp("sleep", ["sleep", "600"]),
    "an endless loop out of its group": out_of_its_group,
    "killing its parent": lambda: waits_after(lambda: os.kill(os.getppid(), signal.SIGKILL)),
    "an orphan with the channel": orphan_with_the_channel,
    "nonsense on the channel": after(lambda: channel().write(b"{nonsense\n")),
    "answers that nobody asked for": after(lambda: channel().send({"id": 999, "results": [{}]})),
    "a line without end": after(lambda: channel().write(b'"' + b"x" * (17 * 2**20))),
    "closing the channel": after(lambda: os.close(channel()._out.fileno())),
    "closing all files": after(lambda: os.closerange(0, 256)),
    "a question without an asker": lambda: waits_after(lambda: channel().send(QUESTION)),
    "other words for JSON": after(lambda: setattr(sys.modules["json"], "dumps", fails)),
}

# Harm that the host does not notice: the episode ends well.
UNNOTICED: dict[str, Callable[[], Any]] = {
    "much output": after(lambda: print("x" * 2**20)),
    "output on the real stdout": after(lambda: os.write(1, b"{}\n" * 100)),
    "errors without end": after(lambda: sys.stderr.write(ERRORS)),
    "stopping its parent": after(lambda: os.kill(os.getppid(), signal.SIGSTOP)),
    "a thread that stays": after(lambda: threading.Thread(target=time.sleep, args=(99,)).start()),
    "a child that stays": after(lambda: spawn("sleep", "60")),
    "ignoring signals": after(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
    "few files": after(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))),
}


class Env(protocols.Env):
    def reset(self, task: Task) -> Step:
        harm = task.data["harm"]
        do = {**ANYWHERE, **IN_A_WORKER, **UNNOTICED}.get(harm, lambda: HELLO)
        found: Step = do()
        return found

    def step(self, action: Message) -> Step:
        return scored(1.0)

    def close(self) -> None:
        raise RuntimeError("it does not close")


class Suite(protocols.Suite):
    """`harms`: the tasks in the split "test" besides those that do no harm."""

    name, variant = "hostile", "world"

    def __init__(self, anywhere: bool = True, worker: bool = False, good: bool = True) -> None:
        self.harms = [*ANYWHERE] if anywhere else []
        self.harms += [*IN_A_WORKER, *UNNOTICED] if worker else []
        self.good = GOOD if good else 0

    def splits(self) -> Sequence[str]:
        return ("train", "dev", "test")

    def tasks(self, split: str) -> Sequence[Task]:
        if split != "test":
            return [Task(f"hostile/{split}", "hostile", split, 0, {"harm": ""})]
        # One without harm after every tenth that does some.
        names = list(self.harms)
        for n in range(self.good):
            names.insert(min(n * 10, len(names)), "")
        return [
            Task(f"hostile/{n}/{harm or 'good'}", "hostile", split, n, {"harm": harm})
            for n, harm in enumerate(names)
        ]

    def task(self, task_id: str) -> Task:
        return next(t for s in self.splits() for t in self.tasks(s) if t.id == task_id)

    def make(self) -> Env:
        return Env()
