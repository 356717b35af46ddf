"""Environments that mean harm, as program texts, and the sandbox to try them in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sandboxes import ROOTS, untrusted_suite

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import ActsTogether
from trace_bench.core.types import Message, Step, Task
from trace_bench.sandbox.engine import Sandbox

DEADLINES = {"docker": 3.0, "podman": 3.0}  # the others start and end faster
ACTION: Message = {"role": "assistant", "content": "go"}

_TEMPLATE = '''
import ctypes, errno, gc, json, os, resource, signal, socket, stat, subprocess, sys, threading, time
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

class Env:
    def reset(self, task):
        self.bad = task.data["bad"]
        return Step(({"role": "user", "content": "hello"},))
    def step(self, action):
        said, score = "good", Score(1.0, True)
        if self.bad:
            said, score = harm(score)
        return Step(({"role": "user", "content": str(said)},), done=True, score=score)
    def close(self):
        pass

class Suite:
    name, variant = "hostile", "test"
    def splits(self):
        return ["train"]
    def tasks(self, split):
        name = "hostile/test/train/"
        return [Task(f"{name}{n}", "hostile", split, n, {"bad": not n}) for n in range(2)]
    def make(self):
        return Env()
    def reference(self, task):
        return []

def suite():
    return Suite()

def harm(score):
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
        kind, workers, deadline_of(kind), 30.0, 1, 256, cpus=1.0, processes=48, scratch=16,
        run="hostile", roots=ROOTS, **changes,
    )  # fmt: skip


def suite_of(body: str, kind: str, workers: int = 1) -> ActsTogether:
    """A suite whose task 0 carries out `body` in its step; task 1 is well-behaved. `body` may set
    `said` and `score`."""
    lines = ["said = 'nothing'", *body.strip("\n").split("\n"), "return said, score"]
    source = _TEMPLATE + "".join(f"    {line}\n" for line in lines)
    suite = untrusted_suite(source, sandbox_of(kind, workers), print)
    assert isinstance(suite, ActsTogether)
    return suite


def try_it(body: str, kind: str) -> Outcome:
    """Carries out `body` beside a good episode in the same container, and sees to it that the good
    one ends as if nothing had been."""
    suite = suite_of(body, kind)
    try:
        bad, good = suite.tasks("train")
        envs = [suite.make(), suite.make()]
        for env, task in zip(envs, (bad, good), strict=True):
            assert env.reset(task).messages[0]["content"] == "hello"
        began = time.monotonic()
        outcome = _outcome(suite.act([(envs[0], ACTION)])[0], began)
        end = envs[1].step(ACTION)
        assert end.score is not None and end.score.success and end.done
        again = suite.make()
        again.reset(Task("t", "hostile", "train", 0, {"bad": False}))
        assert again.step(ACTION).messages[0]["content"] == "good"
        return outcome
    finally:
        suite.close()


def _outcome(step: Step | Exception, began: float) -> Outcome:
    seconds = time.monotonic() - began
    if isinstance(step, EpisodeError):
        return Outcome(None, str(step), step.boundary, seconds)
    assert isinstance(step, Step), step
    return Outcome(step.messages[0]["content"], None, None, seconds)
