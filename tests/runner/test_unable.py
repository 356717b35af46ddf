"""A base agent that earns nothing is told of before the budget is spent, with what it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playing import play
from toy import ToySuite, toy_task

from trace_bench.__main__ import main
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AgentSpec, Message, Trajectory
from trace_bench.policies.scripted import (
    FunctionPolicy,
    ReferencePolicy,
    call_message,
    text_message,
)
from trace_bench.runner.unable import unable


def episodes(act: Callable[[TurnRequest], Message]) -> list[Trajectory]:
    tasks = [toy_task(i) for i in range(3)]
    return play(FunctionPolicy(act), ToySuite(), AgentSpec("none"), tasks, [0, 1, 2], max_turns=3)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (text_message("Hello."), ["3 episodes without a call", "in all 3"]),
        (call_message("sum", {}), ["9 calls to tools that are not there", '"sum({})", answered']),
        (
            call_message("add", {"n": 1}),
            ["9 calls with arguments that the tool does not take", "number is not an integer"],
        ),
    ],
)
def test_what_it_did_is_said(reply: Message, words: list[str]) -> None:
    said = unable(episodes(lambda request: reply))
    assert said is not None and "Change `model`" in said and "\n" not in said
    assert all(text in said for text in words)


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
