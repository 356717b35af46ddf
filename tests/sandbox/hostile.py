"""An environment that does whatever its task says, and the sandbox to try harm in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sandboxes import ROOTS, SUITE, untrusted_suite

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Suite
from trace_bench.core.types import Message, Step, Task
from trace_bench.sandbox.engine import Sandbox

DEADLINES = {"docker": 3.0, "podman": 3.0}  # the others start and end faster
RUN = "hostile"
ACTION: Message = {"role": "assistant", "content": "go"}

_SOURCE = '''
import ctypes, errno, gc, json, os, resource, signal, socket, stat, subprocess, sys, threading, time
from trace_bench.core import protocols
from trace_bench.core.types import Score, Step, Task

libc = ctypes.CDLL(None, use_errno=True)

def channel():
    """The worker's own channel to the host."""
    return next(o for o in gc.get_objects() if type(o).__name__ == "Channel")

def attempt(do):
    """What came of it, in words."""
    try:
        return "did: " + repr(do())
    except BaseException as error:
        return "refused: " + repr(error)

def syscall(do, *arguments):
    if do(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

class Env(protocols.Env):
    def reset(self, task):
        self.body = task.data["body"]
        return Step(({"role": "user", "content": "hello"},))
    def step(self, action):
        words = {**globals(), "said": "good", "score": Score(1.0, True)}
        exec(self.body, words)
        said, score = str(words["said"]), words["score"]
        return Step(({"role": "user", "content": said},), done=True, score=score)
    def close(self):
        pass
'''


@dataclass(frozen=True)
class Outcome:
    """What became of the bad episode: its last words, or the error and its boundary."""

    said: str | None
    error: str | None
    boundary: str | None
    seconds: float


def deadline_of(kind: str) -> float:
    return DEADLINES.get(kind, 1.5)


def sandbox_of(kind: Any, workers: int = 1, **changes: Any) -> Sandbox:
    """A small one, with the images' files where the tests have them."""
    return Sandbox(
        kind, workers, deadline_of(kind), 30.0, 1, 256, cpus=1.0, processes=48,
        run=f"{RUN}-{workers}", roots=ROOTS, **changes,
    )  # fmt: skip


def suite_in(kind: str, workers: int = 1) -> Suite:
    """A suite whose tasks carry out their `body` in their step, where it may set `said` and
    `score`."""
    suite = untrusted_suite(_SOURCE + SUITE, sandbox_of(kind, workers), print)
    assert suite.has(Suite.act)
    return suite


def try_it(suite: Suite, body: str) -> Outcome:
    """Carries out `body` beside a good episode in the same worker, and sees to it that the good one
    ends as if nothing had been."""
    bad, good, again = suite.make(), suite.make(), suite.make()
    for env, text in ((bad, body), (good, ""), (again, "")):
        task = Task("hostile/1", "hostile", "train", 0, {"body": text})
        assert env.reset(task).messages[0]["content"] == "hello"
    began = time.monotonic()
    outcome = _outcome(suite.act([(bad, ACTION)])[0], began)
    for env in (good, again):
        end = env.step(ACTION)
        assert end.score is not None and end.score.success and end.done
        assert end.messages[0]["content"] == "good"
    for env in (bad, good, again):
        env.close()
    return outcome


def _outcome(step: Step | Exception, began: float) -> Outcome:
    seconds = time.monotonic() - began
    if isinstance(step, EpisodeError):
        return Outcome(None, str(step), step.boundary, seconds)
    assert isinstance(step, Step), step
    return Outcome(step.messages[0]["content"], None, None, seconds)
