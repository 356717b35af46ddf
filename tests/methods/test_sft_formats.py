"""Demonstrations of others: what is read, what fits the suite, what is left out and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trace_bench.core.errors import UserError
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.methods.sft import objection, others, played, read, read_line
from trace_bench.play.demonstrations import Demonstration

TIER = "model"  # it trains an adapter
SUITE = EmbeddedSuite()
TALK: dict[str, Any] = {
    "messages": [
        {"role": "developer", "content": "Use the tools."},
        {"role": "user", "content": [{"type": "text", "text": "How warm is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "assistant", "content": "7 degrees."},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
}  # fmt: skip


def test_what_cannot_be_imitated_is_left_out() -> None:
    call = {"id": "z", "function": {"name": "fly", "arguments": "{}"}}
    tasks = [SUITE.task("toolsandbox/embedded/train/0000")]
    good = next(iter(played(SUITE, tasks, 1, 0, 20)))
    talk = replace(good, task="here")
    name = good.tools[0]["function"]["name"]
    for changed, why in (
        (talk, None),
        (replace(talk, messages=talk.messages[:1]), "none of the agent's"),
        (with_call(talk, call), "a call of a tool that is not offered, fly"),
        (with_call(talk, called(name, "{")), "a call that could not be read"),
        (replace(talk, messages=(*talk.messages, {"role": "tool", "tool_call_id": "q"})),
         "a tool's result that answers no call"),
    ):  # fmt: skip
        said = objection(changed)
        assert why in said if why and said else said is why


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "z", "function": {"name": name, "arguments": arguments}}


def with_call(talk: Demonstration, call: dict[str, Any]) -> Demonstration:
    more = {"role": "assistant", "content": "", "tool_calls": [call]}
    return replace(talk, messages=(*talk.messages, more))


def test_what_is_left_out_is_counted_and_nothing_left_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bare = {"messages": TALK["messages"]}
    path.write_text(json.dumps(bare) + "\n")
    with pytest.raises(UserError, match=r"no demonstration that fits: 1 for a call .* weather"):
        list(others(tmp_path, 9, print))
    path.write_text(json.dumps(bare) + "\n" + json.dumps(TALK) + "\n")
    noted: list[str] = []
    (talk,) = others(tmp_path, 9, noted.append)
    assert talk.tools == tuple(TALK["tools"])
    assert "1 left out: 1 for a call of a tool that is not offered, weather (first: " in noted[0]


def test_openais_format() -> None:
    line = {**TALK, "id": "an id"}
    line["messages"][4] = {**line["messages"][4], "weight": 0}
    talk = read_line(json.dumps(line).encode(), "here")
    assert [m["role"] for m in talk.messages] == ["system", "user", "assistant", "tool",
                                                  "assistant"]  # fmt: skip
    assert talk.messages[1]["content"] == "How warm is it?"
    assert talk.messages[3]["name"] == "weather" and talk.tools == tuple(TALK["tools"])
    assert talk.learned == (True, False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": 3}, r"a\.jsonl, line 1: `messages` is 3; allowed: a list"),
        ({"messages": [{"role": "bot"}]}, r"`messages\[0\]\.role` is 'bot'; allowed: system"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "function_call` is {}"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
         r"`messages\[0\]\.tool_calls\[0\]\.function` is missing"),
        ({"text": "x"}, "line 1: `messages` is missing"),
        ({"messages": [], "tools": [{"name": "x"}]}, r"`tools\[0\]\.function\.name` is missing"),
        ([], "line 1: `it` is"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, line: Any, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line))
    with pytest.raises(UserError, match=words):
        list(read(path))
    path.write_text("{")
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: "):
        list(read(path))
    with pytest.raises(UserError, match=r"cannot be read .* `method.data`"):
        list(read(tmp_path / "none"))


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no file that ends in \.jsonl"):
        list(read(tmp_path))
