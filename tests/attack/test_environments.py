"""Hostile environments without a container: what they send ends in a typed failure of their own
episode, and the good episode beside it ends well. (test_hostile_runs.py plays others in whole runs;
tests/sandbox/test_hostile.py has those that only a container holds.)"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trace_bench.core.decode import Limits, Unreadable, convert, fault_of, fits, step_of
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.sandbox.choose import Processes, make_pool
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.protocol import decode, learn_tools, step_from_json, task_from_json
from trace_bench.sandbox.suite import SandboxedSuite, remote

HUGE = 10**400
ACTION: Message = {"role": "assistant", "content": "go"}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def said(content: Any = "hello", **more: Any) -> tuple[Message, ...]:
    return ({"role": "user", "content": content, **more},)


# -- steps of environments in this process --------------------------------------------------------

STEPS: dict[str, tuple[Any, str]] = {
    "a message of 15 MB": (Step(said("x" * 15_000_000)), "more than 1048576 characters"),
    "more messages than can be read": (Step(said() * 1_010_000), "more than 1000000 elements"),
    "a message nested 950 deep": (Step(said(more=nested(950))), "nested more than 64 deep"),
    "a number without end": (Step(said(more=HUGE)), "too large for a float"),
    "a number that is none": (Step(said(more=float("nan"))), "not finite"),
    "an object of Python": (Step(said(more=object())), "object is no JSON"),
    "a name that is a number": (Step(said(name=5)), r"`messages\[0\].name` is 5; allowed: a text"),
    "a call that is a text": (
        Step(said(tool_calls=["f"])),
        r"tool_calls\[0\]` is .f.; allowed: an object",
    ),
    "a score beside an error": (
        Step(done=True, score=Score(1.0, True), stop=StopReason.ERROR),
        "stops with an error",
    ),
    "a similarity without end": (Step(done=True, score=Score(HUGE, True)), "similarity"),
    "details 950 deep": (Step(done=True, score=Score(1.0, True, {"a": nested(950)})), "nested"),
}


@pytest.mark.parametrize(("step", "why"), STEPS.values(), ids=STEPS)
def test_a_step_that_breaks_a_limit_is_refused(step: Step, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        step_of(step)


def test_a_large_step_within_the_limits_is_taken() -> None:
    assert step_of(Step(said("x" * 1_000_000, more=nested(20)))).messages


# -- lines of a worker ----------------------------------------------------------------------------


def line(text: str) -> Any:
    return decode(text.encode())


def step(**data: Any) -> Any:
    return step_from_json({"messages": [], **data}, {})


def score(**data: Any) -> Any:
    return convert({**SCORE, **data}, Score)


def task(**data: Any) -> Any:
    whole = {"id": "own/x/1", "env": "own/x", "split": "s", "seed": 1, "data": {}} | data
    return task_from_json(whole, ("own/x",), "own/x/")


def tools(name: str) -> Any:
    known: dict[str, Any] = {}
    learn_tools({"step": {"tools": name, "new_tools": [{"function": {"name": "f"}}]}}, known)


SCORE = {"similarity": 1.0, "success": True}
LINES: dict[str, tuple[Callable[[], Any], str]] = {
    "a number without end": (lambda: line(f'{{"a": {HUGE}}}'), "too large"),
    "NaN": (lambda: line('{"a": NaN}'), "NaN"),
    "950 lists": (lambda: line('{"a": ' + "[" * 950 + "]" * 950 + "}"), "nested"),
    "over a million elements": (lambda: line('{"a": [' + "0," * 1_100_000 + "0]}"), "elements"),
    "a text of escaped quotes": (lambda: line('{"a": [[[' + '"\\"' * 100_000 + "\\"), "not JSON"),
    "stop without end": (lambda: step(stop=[[]]), "`stop` is [[]]"),
    "a score beside an error": (
        lambda: step(done=True, stop="error", score=SCORE),
        "stops with an error has no score",
    ),
    "a similarity without end": (lambda: score(similarity=HUGE), "`similarity`"),
    "another suite's task": (lambda: task(env="toolsandbox", id="../../../evil/17"), "without .."),
    "a task under another's id": (lambda: task(id="toolsandbox/embedded/test/0001"), "own/x/"),
    "an id with control characters": (lambda: task(id="own/x/\x1b[2J"), "printable"),
    "a seed without end": (lambda: task(seed=HUGE), "`seed`"),
    "a task with more in it": (lambda: task(more=1), "`more` is no key here"),
    "tools under another's hash": (lambda: tools("0" * 16), "the hash of the tools"),
}


@pytest.mark.parametrize(("read", "why"), LINES.values(), ids=LINES)
def test_a_workers_line_is_a_value_or_a_violation(read: Callable[[], Any], why: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read()
    assert why in str(caught.value) and len(str(caught.value)) < 1000


def test_what_is_within_the_limits_is_read() -> None:
    deep = {"a": nested(50), "n": [2**63, -1.5, 0], "text": "[{," * 1000}
    assert line(json.dumps(deep)) == deep
    assert fault_of(deep, Limits(10_000)) is None
    assert fits(2**1000) and not fits(HUGE)
    assert task().id == "own/x/1"


# -- a worker of one's own ------------------------------------------------------------------------

SOURCE = """
import gc, time
from trace_bench.core import protocols
from trace_bench.core.types import Score, Step, StopReason, Task

def one(kind):
    return next(o for o in gc.get_objects() if type(o).__name__ == kind)

def ask(number, **changes):
    question = {"ask": number, "episode": one("Serving")._now.episode, "role": "user"}
    one("Channel").send(question | {"messages": []} | changes)

class Env(protocols.Env):
    def reset(self, task):
        self.bad = task.data["bad"]
        return Step(({"role": "user", "content": "hello"},))
    def step(self, action):
        said, score, stop = "good", Score(1.0, True), None
        if self.bad:
            space = dict(globals(), score=score, said=said, stop=stop)
            exec(self.bad, space)
            said, score, stop = space["said"], space["score"], space["stop"]
        return Step(({"role": "user", "content": said},), done=True, score=score, stop=stop)
    def close(self):
        pass

class Suite(protocols.Suite):
    name, variant = "hostile", "test"
    def splits(self):
        return ["train"]
    def tasks(self, split):
        return []
    def task(self, task_id):
        return Task("../../../evil/17", "toolsandbox", "test", 1, {})
    def make(self):
        return Env()

def suite():
    return Suite()
"""

BODIES = {
    "a score beside an error": ("stop = StopReason.ERROR", "stops with an error has no score"),
    "a question for a list": ("ask(1, episode=[1])\ntime.sleep(9)", "for the episode"),
    "a question with a list as number": ("ask([1])\ntime.sleep(9)", "with the number"),
    "a flood of questions": ("for n in range(10**6): ask(n)", "questions|no answer within"),
    "questions without end": ("while True: ask(1); time.sleep(0.1)", "no answer within"),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One for all tests, whose worker is replaced where a test ends it."""
    sandbox = Sandbox("process", 1, 1.0, 30.0, 0, allow_untrusted=True, run="attack")
    source = {"source": SOURCE, "given": {}}
    pool = make_pool(
        Processes(sandbox, ""), sandbox, {"kind": "source"}, lambda *_: "yes", print, source
    )
    yield pool
    pool.close()


@pytest.mark.parametrize(("body", "why"), BODIES.values(), ids=BODIES)
def test_a_hostile_step_fails_alone(pool: Pool, body: str, why: str) -> None:
    suite = remote(pool)
    bad = suite.make()
    bad.reset(Task("hostile/1", "hostile", "train", 1, {"bad": body}))
    with pytest.raises(EpisodeError) as caught:
        bad.step(ACTION)
    assert caught.value.boundary in ("environment", "sandbox")
    assert any(word in str(caught.value) for word in why.split("|")), caught.value
    assert good(suite).score == Score(1.0, True)


def good(suite: SandboxedSuite) -> Step:
    env = suite.make()
    env.reset(Task("hostile/0", "hostile", "train", 0, {"bad": ""}))
    return env.step(ACTION)


def test_a_suite_can_make_no_tasks_of_another(pool: Pool) -> None:
    with pytest.raises(UserError, match=r"without \.\."):
        remote(pool).task("evil")


def test_a_generated_suite_keeps_its_name(pool: Pool) -> None:
    with pytest.raises(UserError, match="calls itself 'hostile/test'"):
        remote(pool, "phones-1")
