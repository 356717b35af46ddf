"""The conformance check passes the embedded suite and finds what is broken."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from phone_world import wifi_task

from trace_bench.core.chat import answer_call, make_call, text_message, tool
from trace_bench.core.protocols import Env, Suite
from trace_bench.core.types import Message, Score, Step, Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.play.contract import Report, check

OFF, TOLD = make_call("set_wifi_status", on=False), text_message("Wifi is turned off")
REFERENCE: list[Message] = [OFF, TOLD]


class OneTask(Suite):
    """A suite of one task with an environment of choice."""

    name = "toolsandbox"
    variant = "test"

    def __init__(self, env: type[Env] = ToolSandboxEnv, reference: Any = None) -> None:
        self._env = env
        self._reference = REFERENCE if reference is None else reference

    def splits(self) -> Sequence[str]:
        return ("test",)

    def tasks(self, split: str) -> Sequence[Task]:
        return (wifi_task(),)

    def task(self, task_id: str) -> Task:
        return wifi_task()

    def make(self) -> Env:
        return self._env()

    def reference(self, task: Task) -> Sequence[Message]:
        return self._reference


def run(env: type[Env] = ToolSandboxEnv, reference: Any = None) -> Report:
    return check(OneTask(env, reference), [wifi_task()])


def test_a_sound_environment_passes() -> None:
    report = run()
    assert report.ok, str(report)
    assert (report.reference, report.idle) == (1.0, 0.0)
    assert str(report).count("\n") == len(report.lines) and "FAILED" not in str(report)


_COUNTER = itertools.count()


class Remembers(ToolSandboxEnv):
    """Answers with the number of steps of all environments together."""

    def step(self, action: Message) -> Step:
        step = super().step(action)
        note: Message = {"role": "user", "content": str(next(_COUNTER))}
        return replace(step, messages=(*step.messages, note))


class Raises(ToolSandboxEnv):
    """Lets a bad call through as an exception."""

    def step(self, action: Message) -> Step:
        for tool_call in action.get("tool_calls") or ():
            assert tool_call["function"]["name"] in self._names
        return super().step(action)


class Generous(ToolSandboxEnv):
    def score(self) -> Score:
        return Score(1.5, True)


class Endless(ToolSandboxEnv):
    def step(self, action: Message) -> Step:
        return Step(messages=({"role": "user", "content": "Go on"},))


class Solving(ToolSandboxEnv):
    """Knows the way."""

    def solution(self) -> Sequence[Message]:
        return REFERENCE


class Lost(Solving):
    """Thinks so."""

    def solution(self) -> Sequence[Message]:
        return REFERENCE[1:]


def test_a_program_that_solves_is_tried() -> None:
    line = "its solution solves it from anywhere"
    assert line not in {checked.name for checked in run().lines}
    assert line in {checked.name for checked in run(Solving).lines} and run(Solving).ok
    assert [checked.name for checked in run(Lost).lines if checked.faults] == [line]


class Beside(ToolSandboxEnv):
    """Tells how many of its kind have begun an episode."""

    begun = 0

    def reset(self, task: Task) -> Step:
        Beside.begun += 1
        step = super().reset(task)
        note: Message = {"role": "user", "content": str(Beside.begun)}
        return replace(step, messages=(*step.messages, note))


@pytest.mark.parametrize(
    ("env", "broken"),
    [
        (Beside, "the same task and actions give the same bytes"),
        (Remembers, "the same task and actions give the same bytes"),
        (Raises, "bad tool calls are answered with an error message"),
        (Generous, "the reference earns the full score"),
        (Endless, "an idle agent's episode ends with a score"),
    ],
)
def test_faults_are_found_and_named(env: type[Env], broken: str) -> None:
    report = run(env)
    assert not report.ok
    assert broken in [line.name for line in report.lines if line.faults]
    assert "test/wifi" in str(report)


ODD: list[Any] = ["full", None, float("nan"), [1.0], {}, Decimal(1), np.ones(2), 10**400]


@pytest.mark.parametrize("number", ODD, ids=repr)
def test_a_score_that_is_no_number_is_named(number: Any) -> None:
    class Wordy(ToolSandboxEnv):
        def score(self) -> Score:
            return Score(number, True)

    report = run(Wordy)
    [fault] = next(line.faults for line in report.lines if line.name.startswith("the reference"))
    said = r"test/wifi: Unsuitable: `similarity` is .*; allowed: a number from 0 to 1"
    assert re.fullmatch(said, fault)
    assert str(report).endswith("reference 0.000, idle 0.000")


class Later(ToolSandboxEnv):
    """Would have to be awaited."""

    async def step(self, action: Message) -> Step:  # type: ignore[override]
        return super().step(action)


def test_what_nothing_awaits_is_named() -> None:
    fault = "Later.step is async, and nothing awaits it; Env wants step(action)"
    assert run(Later).lines[0].faults == [fault]

    async def waits() -> str:
        return "done"

    async def streams() -> Any:
        yield "done"

    def yields() -> Any:
        yield "done"

    for function in (waits, streams, yields):
        with pytest.raises(TypeError, match=f"the tool {function.__name__} is async or yields"):
            tool(function)


class Generating(OneTask):
    """`makes`: what `synthetic` does."""

    def __init__(self, makes: Callable[[int], Task]) -> None:
        super().__init__()
        self.makes = makes

    def capabilities(self) -> Sequence[str]:
        return ["disambiguates"]

    def synthetic(self, capability: str, seed: int) -> Task:
        return self.makes(seed)


@pytest.mark.parametrize(
    ("makes", "fault"),
    [
        (lambda seed: wifi_task(), None),
        (lambda seed: [][seed], "IndexError: list index out of range"),
        (lambda seed: replace(wifi_task(), seed=next(_COUNTER)), "Broken: two tasks for a seed"),
    ],
)
def test_a_generator_is_tried(makes: Any, fault: str | None) -> None:
    line = check(Generating(makes), [wifi_task()]).lines[-1]
    wanted = [] if fault is None else [f"synthetic('disambiguates', 0): {fault}"]
    assert (line.times, line.faults) == (1, wanted)


NAMELESS: list[Any] = [([], "it names none"), (None, "TypeError: 'NoneType' object is not iter")]


@pytest.mark.parametrize(("names", "fault"), NAMELESS)
def test_capabilities_that_are_none_are_named(names: Any, fault: str) -> None:
    suite = Generating(lambda seed: wifi_task())
    suite.capabilities = lambda: names  # type: ignore[method-assign]
    line = check(suite, [wifi_task()]).lines[-1]
    assert line.faults[0].startswith(f"capabilities(): {fault}")


def test_a_reference_that_falls_short_is_found() -> None:
    report = run(reference=REFERENCE[1:])
    broken = [line.name for line in report.lines if line.faults]
    assert broken == ["the reference earns the full score"]
    assert report.reference == 0.5


class Toolless(Env):
    """Asks for a word; any call is an error."""

    def reset(self, task: Task) -> Step:
        return Step(({"role": "user", "content": "Say yes."},))

    def step(self, action: Message) -> Step:
        calls = action.get("tool_calls", ())
        answers = tuple(answer_call(call, "ValueError: no tool") for call in calls)
        return Step(answers, done=not answers, score=None if answers else self.score())

    def score(self) -> Score:
        return Score(0.0, False)


def test_an_environment_may_have_no_tool() -> None:
    lines = {line.name: line.faults for line in run(Toolless).lines}
    assert lines["bad tool calls are answered with an error message"] == []
