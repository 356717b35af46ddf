"""Environments in the AgentWorldModel format: read, played in a sandbox, trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from awm_folder import ASK, CODE, write

pytest.importorskip("fastapi", reason="the format's programs need fastapi and sqlalchemy")

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import Source
from trace_bench.envs.awm import _split
from trace_bench.methods.untargeted import SOURCE, read
from trace_bench.runner.pipeline import run
from trace_bench.sandbox.choose import generated_suite
from trace_bench.sandbox.engine import Sandbox
from trace_bench.settings.compose import compose

SEND = ("send_message_with_phone_number", {"phone_number": "+15550001111", "content": "hello"})


def sandboxed(folder: Path, sandbox: Sandbox) -> Any:
    given = {"SCENARIOS": read(str(folder), 2, 0)}
    return generated_suite(Source("awm", SOURCE, given, "awm"), sandbox, print)


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Any]:
    made = sandboxed(write(tmp_path / "awm"), Sandbox("process", allow_untrusted=True))
    yield made
    made.close()


def task(suite: Any, number: int) -> Any:
    """The task of that number of the first scenario drawn."""
    drawn = (suite.synthetic("", seed) for seed in range(6))
    return next(t for t in drawn if t.data["task"] == number)


def test_a_task_is_played_and_verified(suite: Any) -> None:
    assert suite.synthetic("", 0).data["of"] == 6
    env = suite.make()
    first = env.reset(task(suite, 0))
    assert first.messages[-1] == {"role": "user", "content": ASK}
    names = [t["function"]["name"] for t in first.tools]
    assert names == ["send_message_with_phone_number", "get_message"]
    assert first.tools[1]["function"]["description"] == "One message"
    assert first.tools[1]["function"]["parameters"]["properties"]["message_id"]["type"] == "integer"
    told = env.step(call_message("get_message", {"message_id": 1})).messages[0]["content"]
    assert json.loads(told) == {"id": 1, "content": "old"}
    assert json.loads(env.step(call_message(*SEND)).messages[0]["content"]) == {"id": 2}
    end = env.step(text_message("Sent."))
    assert end.done and end.score.success


def test_episodes_do_not_touch_each_other(suite: Any) -> None:
    one, two = suite.make(), suite.make()
    one.reset(task(suite, 0)), two.reset(task(suite, 0))
    one.step(call_message(*SEND))
    assert two.step(text_message("Done.")).score.success is False
    assert one.step(text_message("Done.")).score.success is True


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("win", "{}", "there is no tool 'win'"),
        ("get_message", "{", "not valid JSON"),
        ("get_message", "[1]", "not a JSON object"),
        ("get_message", '{"message": 1}', "get_message has no message"),
        ("get_message", '{"message_id": 9}', "HTTP 404"),
        ("send_message_with_phone_number", '{"phone_number": 5}', "HTTP 422"),
    ],
)
def test_bad_calls_are_reported_to_the_agent(
    suite: Any, name: str, arguments: str, said: str
) -> None:
    env = suite.make()
    env.reset(task(suite, 0))
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    answer = env.step({"role": "assistant", "content": "", "tool_calls": [call]}).messages[0]
    assert answer["tool_call_id"] == "c" and answer["content"].startswith("Error: ")
    assert said in answer["content"]


def test_a_broken_verifier_is_no_failure_of_the_agent(suite: Any) -> None:
    env = suite.make()
    env.reset(task(suite, 2))
    with pytest.raises(EpisodeError, match="KeyError") as caught:
        env.step(text_message("Done."))
    assert caught.value.boundary == "environment"


@pytest.mark.parametrize(
    "file", ["gen_tasks.jsonl", "gen_envs.jsonl", "gen_verifier.pure_code.jsonl"]
)
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    folder = write(tmp_path, **{file: None})
    with pytest.raises(UserError, match=f"has no {file}"):
        read(str(folder), 1, 0)


def test_bad_folders_are_refused_in_words(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(UserError, match="has 2 whole scenarios; asked for: 3"):
        read(str(folder), 3, 0)
    (folder / "gen_db.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"gen_db.jsonl, line 1 is no scenario"):
        read(str(folder), 1, 0)
    huge = [{"scenario": "texts_1", "full_code": CODE + "#" * (13 * 2**20)}]
    with pytest.raises(UserError, match="Ask for fewer"):
        read(str(write(tmp_path, **{"gen_envs.jsonl": huge})), 1, 0)


@pytest.mark.slow
def test_the_tiny_agent_trains_on_such_environments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "awm")
    given = ["method=untargeted", f"method.environments={folder}", "method.scenarios=2"]
    small = ["budget=64", "evaluation.limit=8", "checkpoints=[]", f"run_dir={tmp_path / 'r'}"]
    with pytest.raises(UserError, match="sandbox=inline would run code"):
        run(compose([*given, *small]))
    process = ["sandbox=process", "sandbox.allow_untrusted=true", f"run_dir={tmp_path / 'b'}"]
    assert run(compose([*given, *small[:-1], *process])) == 0
    said = capsys.readouterr().err
    assert "2 of 6 tasks of 2 scenarios can be trained on; 2 cannot be run" in said
    lines = [json.loads(s) for s in (tmp_path / "b" / "ledger.jsonl").read_text().splitlines()]
    assert len(lines) == 64 and all(e["task"].startswith("generated/awm/") for e in lines)
    assert not any(e["error"] for e in lines)
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    # Two tasks and all rewards equal: it has trained, and there was nothing to learn.
    assert "no optimizer step, so there is no adapter" in said and summary["adapters"] == []


@pytest.mark.docker
def test_the_same_in_a_container(tmp_path: Path) -> None:
    made = sandboxed(write(tmp_path / "awm"), Sandbox("docker", run="test-awm"))
    env = made.make()
    env.reset(task(made, 0))
    assert json.loads(env.step(call_message(*SEND)).messages[0]["content"]) == {"id": 2}
    assert env.step(text_message("Sent.")).score.success
    made.close()


def test_a_value_stays_within_its_place_in_the_path() -> None:
    """Else it could name an endpoint that is not offered."""
    endpoint = {"path": "/rows/{id}", "request_params": {"id": {"param_type": "path"}}}
    assert _split(endpoint, {"id": "1/../../other?x=1"})[0] == "/rows/1%2F..%2F..%2Fother%3Fx%3D1"
