"""τ² scores as the benchmark's own evaluator gives them, on cases computed by hand. The comparison
with that evaluator itself is tests/tau2_scores.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from playing import play
from pydantic import BaseModel
from sandboxes import in_process as find
from shared import needs

from trace_bench.checklists.talk import ToolCall
from trace_bench.core.chat import call_json, text_message
from trace_bench.core.types import AgentSpec, Message, Step, Task
from trace_bench.envs.tau2.domains import AGENT
from trace_bench.envs.tau2.score import _done, untold
from trace_bench.envs.tau2.shared import Shared
from trace_bench.envs.tau2.suite import MOST_ERRORS, Tau2Suite
from trace_bench.policies.scripted import ReferencePolicy

pytestmark = [needs("inspect_evals", "the extra tau2 is not installed"), pytest.mark.worlds]


@pytest.fixture(scope="module")
def airline() -> Tau2Suite:
    return find("tau2", "airline")  # type: ignore[no-any-return]


def say(words: str, *calls: tuple[str, Mapping[str, Any]]) -> Message:
    made = [call_json(f"c{n}", *call) for n, call in enumerate(calls)]
    return text_message(words, made)


def play_out(env: Any, task: Task, turns: Sequence[Message]) -> Step:
    step: Step = env.reset(task)
    for turn in turns:
        if not step.done:
            step = env.step(turn)
    return step


def must_tell(task: Task) -> bool:
    """Whether there is information that the user must be told."""
    return bool(task.data["record"]["evaluation_criteria"]["communicate_info"])


# -- what was said --------------------------------------------------------------------------------


def test_information_told_beside_a_tool_call_counts(airline: Tau2Suite) -> None:
    task = next(filter(must_tell, airline.tasks("base")))
    *calls, last = airline.reference(task)
    silent = [*calls, say("That is done.")]
    beside = [*calls[:-1], {**calls[-1], "content": last["content"]}, say("That is done.")]
    missing = play_out(airline.make(), task, silent).score
    assert missing is not None and not missing.success and missing.details["untold"]
    told = play_out(airline.make(), task, beside).score
    assert told is not None and told.success and not told.details["untold"]


def test_commas_of_the_agent_are_ignored_and_texts_are_searched_one_by_one() -> None:
    wanted = {"communicate_info": ["1628", "Mastercard", "two parts"]}
    assert untold(wanted, ["It is $1,628,", "by MASTERCARD"]) == ["two parts"]
    assert untold({"communicate_info": ["1,628"]}, ["It is 1,628"]) == ["1,628"]  # as there
    assert untold({"communicate_info": ["a\nb"]}, ["a", "b"]) == ["a\nb"]


# -- how it ended ---------------------------------------------------------------------------------


def test_an_episode_that_is_cut_off_scores_nothing(airline: Tau2Suite) -> None:
    """All of a task's calls are made and the database is as wanted, but nobody ended the talk."""
    tasks = airline.tasks("base")[:12]
    longest = max(len(airline.reference(task)) for task in tasks)
    for task in tasks:
        turns = len(airline.reference(task)) - 1
        if not turns:
            continue
        policy = ReferencePolicy(airline)
        (cut,) = play(policy, airline, AgentSpec("x"), [task], [0], max_turns=turns)
        assert cut.stop == "turn_limit" and cut.score is not None
        assert cut.score.similarity == 0.0 and not cut.score.success
        assert cut.score.details["parts"]["database"] and cut.score.details["cut_off"]
        assert [m.name for m in cut.score.milestones if not m.hit][-1].endswith("to its end")
        (whole,) = play(policy, airline, AgentSpec("x"), [task], [0], max_turns=longest)
        assert whole.score is not None and whole.score.success


def test_too_many_failed_calls_end_an_episode(airline: Tau2Suite) -> None:
    task = airline.tasks("base")[0]
    gold = list(airline.reference(task))
    few = [say("", ("no_such_tool", {}))] * (MOST_ERRORS - 1)
    just = play_out(airline.make(), task, [*few, *gold])
    assert just.score is not None and just.score.success
    many = play_out(airline.make(), task, [say("", *[("no_such_tool", {})] * MOST_ERRORS), *gold])
    assert many.done and many.score is not None and not many.score.success
    assert many.score.details["cut_off"]


# -- which calls were made ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "call", "counts"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, True),  # only what the call has is compared
        ({"a": 1, "b": 2}, {}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),  # lists in their order
        ({"a": 1}, {"a": 1.0}, True),
    ],
)
def test_calls_are_compared_by_the_arguments_that_they_have(
    action: dict[str, Any], call: dict[str, Any], counts: bool
) -> None:
    wanted = {"name": "f", "arguments": action, "requestor": "assistant"}
    assert _done(wanted, [ToolCall("f", call)]) is counts
    assert _done({**wanted, "compare_args": []}, [ToolCall("f", call)])
    assert not _done(wanted, [ToolCall("g", call)])


# -- types ----------------------------------------------------------------------------------------


def test_arguments_reach_a_tool_as_they_were_given(airline: Tau2Suite) -> None:
    """An amount as a text is accepted by the benchmark's tool, which makes a number of it."""
    task = airline.tasks("base")[0]
    changes = []
    for amount in (100, "100"):
        world = airline._toolbox.world(task.data["record"])
        answer = world.call(AGENT, "send_certificate", {"user_id": "mia_li_3668", "amount": amount})
        assert not answer.failed, answer
        changes.append(world.changes())
    assert changes[0] == changes[1] and "certificate" in changes[0]
    world = airline._toolbox.world(task.data["record"])
    assert world.call(AGENT, "get_user_details", {"user_id": "mia_li_3668", "more": 1}).failed
    assert world.call(AGENT, "get_user_details", {"user_id": ["mia_li_3668"]}).failed


class Item(BaseModel):
    price: float | int


def test_zero_and_zero_point_zero_are_two_states() -> None:
    """The benchmark hashes the database's JSON text, in which they differ."""
    base = {"a": Item(price=0), "b": Item(price=1)}
    one, two = Shared(base), Shared(base)
    assert one["a"].price == 0 and one.changes() == {}
    two["a"].price = 0.0
    assert two.changes() == {"a": {"price": 0.0}}
    assert json.dumps(two.changes()) == '{"a": {"price": 0.0}}'
