from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from phone_world import wifi_task

from trace_bench.core.errors import EpisodeError
from trace_bench.core.types import Message, Step, StopReason, Task, to_json
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv

OFF = '{"on": false}'


def call(*functions: tuple[str, str], text: str = "") -> Message:
    """An assistant message with tool calls, each a name and an argument text."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(functions)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def play(task: Task, *actions: Message) -> tuple[ToolSandboxEnv, list[Step]]:
    env = ToolSandboxEnv()
    steps = [env.reset(task)]
    steps += [env.step(action) for action in actions]
    return env, steps


def similarity(task: Task, *actions: Message) -> float:
    last = play(task, *actions)[1][-1]
    assert last.done and last.score is not None
    return last.score.similarity


def contents(step: Step) -> list[str]:
    return [message["content"] for message in step.messages]


def test_the_benchmarks_check_values() -> None:
    """ToolSandbox gives 1.0, 0.5 and 0.0 for these three on its wifi-off scenario."""
    off, done = call(("set_wifi_status", OFF)), say("Wifi is turned off")
    assert similarity(wifi_task(), off, done) == 1.0
    assert similarity(wifi_task(), done) == 0.5
    assert similarity(wifi_task(), say("I cannot help you with that")) == 0.0


def test_a_finished_episode_says_which_message_met_which_milestone() -> None:
    env, steps = play(wifi_task(), call(("set_wifi_status", OFF)), say("Wifi is turned off"))
    score = steps[-1].score
    assert score is not None and score.success
    off, told = score.milestones
    assert (off.similarity, off.hit, off.place, off.tells) == (1.0, True, 3, None)
    assert (told.similarity, told.hit, told.place) == (1.0, True, 4)
    assert told.tells == "Wifi is turned off"
    assert off.name.startswith("SETTING ") and "wifi=False" in off.name
    assert score.minefields == () and score.details == {}
    assert steps[-1].stop == StopReason.DONE and steps[-1].messages == ()
    tools = "EXECUTION_ENVIRONMENT"
    opening, called = [("SYSTEM", "AGENT"), ("USER", "AGENT")], [("AGENT", tools), (tools, "AGENT")]
    ended = [("AGENT", "USER"), ("USER", tools)]
    assert [(e.sender, e.recipient) for e in env.log] == [*opening, *called, *ended]
    assert env.log[-1].trace == {"name": "end_conversation", "arguments": {}}
    json.dumps(to_json(steps), allow_nan=False)


GET, SET = ("get_wifi_status", "{}"), ("set_wifi_status", OFF)
CELLULAR, SAVING = ("set_cellular_service_status", OFF), ("set_low_battery_mode_status", OFF)
ON = ("set_wifi_status", '{"on": true}')
BLOCKED = "PermissionError: Low battery mode is on"


@pytest.mark.parametrize(
    ("functions", "start", "ids", "texts"),
    [
        # They succeed in every order: the first order's answers and changes count.
        ([GET, SET, GET], {}, "012", ["true", "null", "false"]),
        ([SET, CELLULAR], {}, "01", ["null", "null"]),
        # In another order one fails: the answers of the first such order count.
        ([SAVING, ON], {"wifi": False, "low_battery_mode": True}, "01", ["null", BLOCKED]),
        ([GET, SAVING, ON], {"wifi": False, "low_battery_mode": True}, "012",
         ["false", "null", BLOCKED]),
        ([SET, SET], {}, "01", ["null", "ValueError: Wifi is already off"]),
        ([SET, ("fly", "{}")], {}, "01", ["null", "NameError: Unknown tool"]),
        ([SET, *[GET] * 9], {}, "0123456789", ["null", *["false"] * 9]),
    ],
)  # fmt: skip
def test_calls_of_a_message_must_not_depend_on_each_other(
    functions: list[tuple[str, str]], start: dict[str, bool], ids: str, texts: list[str]
) -> None:
    """As Apple's `respond_to_messages_set_all_order_permutations` has it."""
    task = wifi_task()
    names = [*{name: None for name, _ in functions if name != "fly"}]
    data = {**task.data, "tools": names, "start": {**task.data["start"]}}
    data["start"]["SETTING"] = {**data["start"].get("SETTING", {}), **start}
    env, steps = play(replace(task, data=data), call(*functions))
    assert contents(steps[1]) == texts
    assert [m["tool_call_id"] for m in steps[1].messages] == [f"c{i}" for i in ids]
    assert [m["name"] for m in steps[1].messages] == [functions[int(i)][0] for i in ids]
    assert {entry.snapshot for entry in env.log[3:]} == {len(env.world.snapshots) - 1}


def test_where_every_order_succeeds_the_world_is_that_of_the_calls_own() -> None:
    names = [json.dumps({"person_id": "anna", "name": name}) for name in ("Ann", "Anne", "Anna")]
    task = wifi_task()
    posed = replace(task, data={**task.data, "tools": ["modify_contact"]})
    env, _ = play(posed, call(*(("modify_contact", text) for text in names)))
    assert env.world.find("CONTACT", "anna")["name"] == "Anna"


def test_what_one_message_changes_has_no_moment_between() -> None:
    between = {"database": "SETTING", "kind": "snapshot", "since": None,
               "rows": [{"wifi": False, "cellular": True}]}  # fmt: skip
    goal = [{"constraints": [between], "guards": []}]
    task = wifi_task()
    tools = {"tools": [SET[0], CELLULAR[0]], "milestones": goal, "edges": []}
    mined = {**tools, "milestones": [], "minefields": goal, "minefield_edges": []}
    done = say("Done")
    for data, one_by_one in ((tools, 1.0), (mined, 0.0)):
        posed = replace(task, data={**task.data, **data})
        assert similarity(posed, call(SET), call(CELLULAR), done) == one_by_one
        assert similarity(posed, call(SET, CELLULAR), done) == 1.0 - one_by_one


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("fly", "{}", "NameError: Unknown tool"),
        ("search_stock", '{"query": "Apple"}', "NameError: Unknown tool"),  # not offered here
        ("set_wifi_status", "{", "TypeError: Arguments are not valid JSON"),
        ("set_wifi_status", "[" * 100_000, "TypeError: Arguments are not valid JSON"),
        ("set_wifi_status", "9" * 10_000, "TypeError: Arguments are not valid JSON"),
        ("set_wifi_status", "true", "TypeError: Arguments are not a JSON object"),
        ("set_wifi_status", "", "TypeError: Missing argument on"),
        ("set_wifi_status", '{"on": "false"}', "TypeError: Argument on must be a boolean"),
        ("set_wifi_status", '{"on": true}', "ValueError: Wifi is already on"),
        ("get_wifi_status", "", "true"),
        ("search_contacts", '{"name": "Anna"}', '[{"person_id": "anna", "name": "Anna Berg", '
         '"phone_number": "+14155550132", "relationship": "friend", "is_self": false}]'),
    ],
)  # fmt: skip
def test_answers_to_calls(name: str, arguments: str, answer: str) -> None:
    _, steps = play(wifi_task(), call((name, arguments)))
    assert contents(steps[1]) == [answer]
    assert not steps[1].done


@pytest.mark.parametrize("bad", [{}, {"function": None}, {"function": {"name": 3}}, "text", None])
def test_a_call_of_no_shape_is_answered(bad: Any) -> None:
    action = {"role": "assistant", "content": "", "tool_calls": [bad]}
    _, steps = play(wifi_task(), action)
    assert contents(steps[1]) == ["NameError: Unknown tool"]


def test_scrambled_names_are_the_only_ones_that_work() -> None:
    task = wifi_task(augmentation="scrambled_names")
    env, steps = play(task, call(("set_wifi_status", OFF)), call(("setting_0", OFF)))
    assert contents(steps[1]) == ["NameError: Unknown tool"]
    assert contents(steps[2]) == ["null"] and steps[2].messages[0]["name"] == "setting_0"
    assert env.log[-1].trace == {"name": "set_wifi_status", "arguments": {"on": False}}


def test_the_user_answers_questions_from_the_script() -> None:
    asked = map(say, ("Which contact?", "WHICH one?", "Which?", "Why?"))
    _, steps = play(wifi_task(), *asked)
    decide = ["Please decide yourself"]
    assert [contents(step) for step in steps[1:]] == [["Anna"], ["Berg"], decide, decide]


def test_follow_ups_come_after_statements_and_then_the_end() -> None:
    task = wifi_task()
    task.data["user"]["followups"].append("And now the contacts")  # type: ignore[index]
    _, steps = play(task, say("Done."), say("Done."))
    assert contents(steps[1]) == ["And now the contacts"]
    assert steps[2].done and steps[2].stop == StopReason.DONE
    _, again = play(task, say("Done."))  # the script is the task's, not the episode's
    assert contents(again[1]) == ["And now the contacts"]


@pytest.mark.parametrize("empty", [{"role": "assistant"}, {"content": None}, {"tool_calls": []}])
def test_an_empty_reply_is_an_empty_text(empty: Message) -> None:
    env, steps = play(wifi_task(), empty)
    assert steps[-1].done and env.log[2].content == ""


def test_the_conversation_ends_after_its_messages() -> None:
    task = wifi_task(max_messages=7)
    env, steps = play(task, *[call(("get_wifi_status", "{}"))] * 3)
    # The opening and three calls with their results.
    assert [step.done for step in steps] == [False, False, False, True]
    assert steps[-1].stop == StopReason.TURN_LIMIT and contents(steps[-1]) == ["true"]
    assert steps[-1].score is not None and steps[-1].score.similarity == 0.0
    with pytest.raises(EpisodeError, match="reset first"):
        env.step(say("more"))
