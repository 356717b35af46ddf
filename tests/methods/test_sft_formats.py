"""Demonstrations of others: what is read, what fits the suite, what is left out and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trace_bench.__main__ import main as start
from trace_bench.core.decode import decode
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AgentSpec, Stored
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.methods.sft import Fitting, Sft, SftSettings, others, with_own_tools
from trace_bench.methods.sft.formats import openai, read
from trace_bench.methods.sft.found import Dialogue, Part
from trace_bench.results.__main__ import main
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.local import LocalTrainer
from trace_bench.trainers.settings import TrainerSettings

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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agent plays the reference solutions of twelve training tasks."""
    folder = tmp_path_factory.mktemp("played") / "run"
    given = ["method=base", "policy=reference", "protocol=paper", "evaluation.split=train"]
    given += ["evaluation.limit=12"]
    assert start([*given, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module", params=["inspect"])
def exported(run: Path, request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / request.param
    assert main(["export", str(run), "--out", str(out)]) == 0
    return out


def same(task: str, messages: Any) -> str:
    """A conversation as text, whatever the spaces in the arguments of its calls."""
    plain = json.loads(json.dumps(list(messages)))
    for message in plain:
        message["content"] = message.get("content") or ""
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return task + json.dumps(plain, sort_keys=True)


def test_what_a_run_exports_is_read_as_the_same_conversations(run: Path, exported: Path) -> None:
    lines = (run / "evaluation_trajectories.jsonl").read_text().splitlines()
    stored = [decode(line.encode(), Stored).trajectory for line in lines]
    found = [f for f in read(exported) if f.messages]
    assert len(stored) >= 12
    assert sorted(same(str(f.task), f.messages) for f in found) == sorted(
        same(t.task, t.messages) for t in stored
    )
    offered = {t.task: [tool["function"]["name"] for tool in t.tools] for t in stored}
    tools = {t.task: t.tools for t in stored}
    for one in found:
        assert one.success is True and one.unusable is None
        talk = WORLD.fits(one)
        assert not isinstance(talk, str), talk
        assert [tool["function"]["name"] for tool in talk.tools] == offered[str(one.task)]
        assert one.tools is None or one.tools == tools[str(one.task)]


def test_an_adapter_is_trained_on_what_another_run_did(exported: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    metrics: list[dict[str, Any]] = []
    lab: Any = SimpleNamespace(
        folder=tmp_path, seed=3, suite=SUITE, budget_left=lambda: 640, log=notes.append,
        trainer=LocalTrainer(TrainerSettings(rank=4, alpha=8.0), RunContext(threads=1)),
        metric=lambda **values: metrics.append(values), step=lambda *done: None,
    )  # fmt: skip
    settings = SftSettings(data=str(exported), demonstrations=4, batch=4, learning_rate=0.01)
    sft = Sft(settings, RunContext())
    agent = sft.fit(AgentSpec(model=str(MODEL_FOLDER)), WORLD.tasks, lab)
    assert [a.name for a in agent.adapters] == ["sft@0001"] and metrics[0]["tokens"] > 100
    plan = sft.plan(SimpleNamespace())  # type: ignore[arg-type]
    assert "no budget here has paid for" in plan.marks[0]


def test_held_out_and_failed_episodes_and_foreign_tools_are_left_out(exported: Path) -> None:
    good = next(f for f in read(exported) if f.messages)
    held_out = SUITE.tasks("test")[0].id
    call = {"id": "z", "function": {"name": "fly", "arguments": "{}"}}
    offered = next(iter(WORLD.tools or ()))
    for changed, why in (
        (replace(good, task=held_out), "a task of the split test, which is not trained on"),
        (replace(good, task="elsewhere/7"), None),
        (replace(good, success=False), "an episode that failed"),
        (replace(good, success=None), None),
        (replace(good, unusable="the episode was lost"), "the episode was lost"),
        (replace(good, messages=good.messages[:1]), "none of the agent's"),
        (with_call(good, call), "a tool that the suite does not have, fly"),
        (with_call(good, called(offered, '{"zone": 1}')), f"the suite's {offered} does not have"),
        (with_call(good, called(offered, "{")), "a call that could not be read"),
        (replace(good, messages=(*good.messages, {"role": "tool", "tool_call_id": "q"})),
         "a tool's result that answers no call"),
    ):  # fmt: skip
        talk = WORLD.fits(changed)
        assert why in str(talk) if why is not None else not isinstance(talk, str), (why, talk)


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "z", "function": {"name": name, "arguments": arguments}}


def with_call(found: Dialogue, call: dict[str, Any]) -> Dialogue:
    more = {"role": "assistant", "content": "", "tool_calls": [call]}
    return replace(found, messages=(*found.messages, more))


def test_what_is_left_out_is_counted_and_nothing_left_is_an_error(
    exported: Path, tmp_path: Path
) -> None:
    (tmp_path / "other_tools.jsonl").write_text(json.dumps(TALK) + "\n")
    with pytest.raises(UserError, match=r"no demonstration that fits: 1 for a tool .* weather"):
        list(others(tmp_path, 9, WORLD.fits, print))
    bare = {"messages": TALK["messages"]}
    (tmp_path / "other_tools.jsonl").write_text(json.dumps(bare) + "\n" + json.dumps(TALK) + "\n")
    noted: list[str] = []
    assert len(list(others(tmp_path, 9, with_own_tools, noted.append))) == 1
    assert "1 left out: 1 for tools that the file does not define" in noted[0]
    (tmp_path / "b").mkdir()
    for number, path in enumerate(exported.rglob("*.json")):
        (tmp_path / "b" / f"{number}.json").write_bytes(path.read_bytes())
    said: list[str] = []
    assert len(list(others(tmp_path, 99, WORLD.fits, said.append))) >= 12
    assert "left out: " in said[0] and "does not have, weather (first: " in said[0]


def test_openais_format() -> None:
    found = openai(Part(TALK, "here"))
    assert [m["role"] for m in found.messages] == ["system", "user", "assistant", "tool",
                                                   "assistant"]  # fmt: skip
    assert found.messages[1]["content"] == "How warm is it?"
    assert found.messages[3]["name"] == "weather" and found.tools == tuple(TALK["tools"])


ATIF = {"schema_version": "ATIF-v1.8", "agent": {"name": "x"}}
LOG = {"version": 2, "eval": {}}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", {"messages": 3}, r"a\.jsonl, line 1, field messages: 3; needed is a list"),
        ("a.jsonl", {"messages": [{"role": "bot"}]}, r"line 1, field messages\[0\]\.role: 'bot'"),
        ("a.jsonl", {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         r"field messages\[0\]\.content\[0\]: .*; needed is a text"),
        ("a.jsonl", {"messages": [{"role": "assistant", "function_call": {}}]}, "`tool_calls`"),
        ("a.jsonl", {"messages": [{"role": "assistant", "weight": 2}]}, "weight: 2; needed is 0"),
        ("a.jsonl", {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
         r"field messages\[0\]\.tool_calls\[0\]\.function: None; needed is a dict"),
        ("a.json", {**ATIF, "agent": 1}, r"a\.json, field agent: 1; needed is a dict"),
        ("a.json", {**ATIF, "steps": [1]}, r"field steps\[0\]: 1; needed is an object"),
        ("a.json", {**ATIF, "steps": [{"source": "robot"}]}, r"steps\[0\]\.source: 'robot'"),
        ("a.json", {**ATIF, "steps": [{"source": "agent", "tool_calls": [{"arguments": "x"}]}]},
         r"field steps\[0\]\.tool_calls\[0\]\.arguments: 'x'; needed is a dict"),
        ("a.json", {**LOG, "version": 1}, r"field version: 1; needed is 2"),
        ("a.json", {**LOG, "samples": [{"id": "t", "epoch": 1, "messages": [{"role": 1}]}]},
         r"sample t epoch 1, field messages\[0\]\.role: 1"),
        ("a.json", [], "neither a document of ATIF 1"),
        ("a.eval", {}, "inspect log convert"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, name: str, content: Any, said: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        list(read(path))


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no file that ends in \.json or \.jsonl"):
        list(read(tmp_path))


def test_an_inspect_log_of_another_program_has_its_tools_in_its_events(tmp_path: Path) -> None:
    tool = {"name": "weather", "description": "", "parameters": {"properties": {}}}
    sample = {
        "id": "7", "epoch": 1, "attachments": {"ab": "7 degrees."},
        "events": [{"event": "model", "tools": [tool]}],
        "messages": [{"role": "user", "content": "?"},
                     {"role": "assistant", "content": "attachment://ab"}],
    }  # fmt: skip
    path = tmp_path / "log.json"
    path.write_text(json.dumps({**LOG, "samples": [sample, {"id": "8", "error": {"message": ""}}]}))
    first, second = read(path)
    assert first.tools == ({"type": "function", "function": tool},)
    assert first.messages[1]["content"] == "7 degrees." and second.unusable
