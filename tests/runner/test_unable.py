"""A base agent that earns nothing is told of before the budget is spent, with what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playing import FunctionPolicy, play
from toy import ToyEnv, ToySuite, toy_task

from trace_bench.__main__ import main
from trace_bench.core.chat import call_message, text_message
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AgentSpec, Message, Score, Step, StopReason, Task, Trajectory
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.runner.evaluation import unable


def episodes(act: Callable[[TurnRequest], Message]) -> list[Trajectory]:
    tasks = [toy_task(i) for i in range(3)]
    return play(FunctionPolicy(act), ToySuite(), AgentSpec("none"), tasks, [0, 1, 2], max_turns=3)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (text_message("Hello."), ["3 episodes without a call", "in all 3"]),
        (call_message("add", {"n": 1}), ["9 calls", "number is not an integer"]),
        (call_message("add", {"number": -99}), ["9 calls. For example", '"-99"']),
    ],
)
def test_what_it_did_is_said(reply: Message, words: list[str]) -> None:
    said = unable(episodes(lambda request: reply))
    assert said is not None and "Change `model`" in said and "\n" not in said
    assert all(text in said for text in words)


ADD = {"name": "add", "arguments": '{"n": 1}'}
ODD: list[Any] = [
    [{"id": "c", "function": {"name": "add", "arguments": "{"}}],
    [{"id": ["c"], "function": ADD}],
    [{"id": 1, "function": {"name": 1}}],
    [{"id": "c"}],
    ["add"],
    5,
    None,
]


class OddEnv(ToyEnv):
    """Takes every reply; describes its tool's parameters in an odd way."""

    def reset(self, task: Task) -> Step:
        odd = {"type": "function", "function": {"name": "add", "parameters": {"properties": 3}}}
        return replace(super().reset(task), tools=(odd,))

    def step(self, action: Message) -> Step:
        return Step(done=True, score=Score(0.0, False), stop=StopReason.DONE)


class OddSuite(ToySuite):
    def make(self) -> ToyEnv:
        return OddEnv()


def test_a_guest_policys_odd_calls_and_tools_end_no_run() -> None:
    calls = iter(ODD)
    policy = FunctionPolicy(lambda request: {**text_message(""), "tool_calls": next(calls)})
    tasks = [toy_task(n) for n in range(len(ODD))]
    said = unable(play(policy, OddSuite(), AgentSpec("none"), tasks, list(range(len(ODD)))))
    assert said is not None and f"in all {len(ODD)} held-out" in said


def test_nothing_is_said_of_an_agent_that_earns_something() -> None:
    nothing, suite = episodes(lambda request: text_message("Hello.")), ToySuite()
    able = play(ReferencePolicy(suite), suite, AgentSpec("none"), [toy_task(0)], [0])
    assert unable([*nothing, *able]) is None and unable([]) is None


def test_a_run_says_it_after_the_base_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = ["method=base", "policy=idle", "env.factory=toy:ToySuite", "env=custom"]
    given += ["env.dev_split=train", "evaluation.split=train", "protocol=paper"]
    assert main([*given, "evaluation.limit=4", f"run_dir={tmp_path / 'run'}"]) == 0
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert 0 < text.index("earned 0 in all 4 held-out") < text.index("evaluation of idle")
