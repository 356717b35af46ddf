"""Demonstrations of others: what is read, what fits the suite, what is left out and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AgentSpec
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.methods.sft import Fitting, Sft, SftSettings, others, played, with_own_tools
from trace_bench.methods.sft.formats import Dialogue, read, read_line
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

TIER = "model"  # it trains an adapter
SUITE = EmbeddedSuite()
WORLD = Fitting(SUITE, SUITE.tasks("train")[:12])
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


GOOD = next(iter(played(SUITE, WORLD.tasks, 1, 0, 20)))


def good() -> Dialogue:
    """A conversation in the suite's own world."""
    return Dialogue("here", GOOD.messages, GOOD.tools)


def test_an_adapter_is_trained_on_what_a_file_holds(tmp_path: Path) -> None:
    lines = [
        {"messages": d.messages, "tools": d.tools} for d in played(SUITE, WORLD.tasks, 4, 0, 20)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    metrics: list[dict[str, Any]] = []
    lab: Any = SimpleNamespace(
        folder=tmp_path, seed=3, suite=SUITE, budget_left=lambda: 640, log=print,
        trainer=LocalTrainer(TrainerSettings(rank=4, alpha=8.0), RunContext(threads=1)),
        metric=lambda **values: metrics.append(values), step=lambda *done: None,
    )  # fmt: skip
    settings = SftSettings(data=str(tmp_path), demonstrations=4, batch=4, learning_rate=0.01)
    sft = Sft(settings, RunContext())
    agent = sft.fit(AgentSpec(model=str(MODEL_FOLDER)), WORLD.tasks, lab)
    assert [a.name for a in agent.adapters] == ["sft@0001"] and metrics[0]["tokens"] > 100
    plan = sft.plan(SimpleNamespace())  # type: ignore[arg-type]
    assert "no budget here has paid for" in plan.marks[0]


def test_what_cannot_be_imitated_and_foreign_tools_are_left_out() -> None:
    call = {"id": "z", "function": {"name": "fly", "arguments": "{}"}}
    offered = next(iter(WORLD.tools or ()))
    talk = good()
    for changed, why in (
        (talk, None),
        (replace(talk, messages=talk.messages[:1]), "none of the agent's"),
        (with_call(talk, call), "a tool that the suite does not have, fly"),
        (with_call(talk, called(offered, '{"zone": 1}')), f"the suite's {offered} does not have"),
        (with_call(talk, called(offered, "{")), "a call that could not be read"),
        (replace(talk, messages=(*talk.messages, {"role": "tool", "tool_call_id": "q"})),
         "a tool's result that answers no call"),
    ):  # fmt: skip
        fitting = WORLD.fits(changed)
        assert why in str(fitting) if why else not isinstance(fitting, str), (why, fitting)


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "z", "function": {"name": name, "arguments": arguments}}


def with_call(talk: Dialogue, call: dict[str, Any]) -> Dialogue:
    more = {"role": "assistant", "content": "", "tool_calls": [call]}
    return replace(talk, messages=(*talk.messages, more))


def test_what_is_left_out_is_counted_and_nothing_left_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(TALK) + "\n")
    with pytest.raises(UserError, match=r"no demonstration that fits: 1 for a tool .* weather"):
        list(others(tmp_path, 9, WORLD.fits, print))
    bare = {"messages": TALK["messages"]}
    path.write_text(json.dumps(bare) + "\n" + json.dumps(TALK) + "\n")
    noted: list[str] = []
    assert len(list(others(tmp_path, 9, with_own_tools, noted.append))) == 1
    assert "1 left out: 1 for tools that the file does not define (first: " in noted[0]


def test_openais_format() -> None:
    line = {**TALK, "id": "an id"}
    line["messages"][4] = {**line["messages"][4], "weight": 0}
    talk = read_line(json.dumps(line).encode(), "here")
    assert [m["role"] for m in talk.messages] == ["system", "user", "assistant", "tool",
                                                  "assistant"]  # fmt: skip
    assert talk.messages[1]["content"] == "How warm is it?"
    assert talk.messages[3]["name"] == "weather" and talk.tools == tuple(TALK["tools"])
    assert talk.skipped == {4} and not talk.general


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": 3}, r"a\.jsonl, line 1: `messages` is 3; allowed: a list"),
        ({"messages": [{"role": "bot"}]}, r"`messages\[0\]\.role` is 'bot'; allowed: system"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         r"`messages\[0\]\.content\[0\]\.text` is missing"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "function_call` is {}"),
        ({"messages": [{"role": "assistant", "weight": 2}]}, "weight` is 2; allowed: 0, 1"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
         r"`messages\[0\]\.tool_calls\[0\]\.function` is missing"),
        ({"content": [{"class_": "code_action"}]}, r"class_` is 'code_action'; allowed: text_obs"),
        ({"content": [{"class_": "api_action"}]}, "line 1, item 0: an api_action without"),
        ({"content": [{"class_": "message_action"}]}, "an observation and then an action"),
        ({"content": [{"class_": "api_action", "function": "f", "kwargs": [1]}]},
         r"`content\[0\]\.kwargs` is \[1\]; allowed: an object"),
        ({"text": "x"}, "line 1 has neither `messages`"),
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
