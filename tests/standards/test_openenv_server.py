"""Our suites as an OpenEnv server, against the real client of its SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from pages import EXAMPLES
from standard_servers import HERE, free_port, python_of, suite_of, wait_for

from trace_bench.core.chat import make_call, read_call
from trace_bench.core.protocols import performed
from trace_bench.core.types import Message
from trace_bench.envs.outward import USER
from trace_bench.envs.outward.__main__ import main
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite

pytestmark = pytest.mark.standards
SUITE = EmbeddedSuite()


@contextmanager
def served(env: str) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "trace_bench.envs.outward", "openenv", env, f"port={port}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=EXAMPLES)
    try:
        wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served("env=toolsandbox") as port:
        yield port


def actions_of(messages: Sequence[Message]) -> list[Any]:
    """The calls of a trajectory, and what is said as calls of the user's tool."""
    out: list[Any] = []
    for message in messages:
        calls = [read_call(call) for call in message.get("tool_calls") or ()]
        out += calls or [(USER, {"message": message["content"]})]
    return out


def test_the_real_client_plays_our_tasks_and_a_faulty_one_harms_nobody(port: int) -> None:
    tasks = SUITE.tasks("dev")[:3]
    plays = [[{"split": "dev", "index": n}, actions_of(SUITE.reference(task))]
             for n, task in enumerate(tasks)]  # fmt: skip
    plays.append([{"split": "dev", "index": 0}, [(USER, {"message": "."})] * 40])
    done = subprocess.run(
        [python_of("openenv"), str(HERE / "openenv_player.py"), str(port)],
        input=json.dumps(plays), capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    for task, steps in zip(tasks, found["played"], strict=False):
        opening, *_, last = performed(SUITE, task, SUITE.reference(task))
        assert opening.messages[-1]["content"] in steps[0]["seen"]["text"]
        listed = [tool["name"] for tool in steps[1]["seen"]["tools"]]
        assert listed == [*(tool["function"]["name"] for tool in opening.tools), USER]
        assert last.score is not None
        assert (steps[-1]["reward"], steps[-1]["done"]) == (last.score.similarity, True)
        assert all(step["reward"] is None and not step["done"] for step in steps[:-1])
    idle = [step["reward"] for step in found["played"][3] if step["reward"] is not None]
    assert len(idle) == 1 and idle[0] < 1  # once, when the episode ends
    said = [answer.get("data", answer) for answer in found["faults"]]
    codes = [one.get("code") for one in said]
    assert codes[:4] == ["INVALID_JSON", "INVALID_JSON", "UNKNOWN_TYPE", "EXECUTION_ERROR"]
    assert codes[4:7] == ["VALIDATION_ERROR"] * 3 and "allowed: train, dev" in said[5]["message"]
    assert said[7]["observation"]["text"]  # a reset without arguments
    assert codes[8] == codes[10] == codes[11] == "VALIDATION_ERROR"
    assert "Error: " in said[9]["observation"]["result"]["data"]
    assert said[12]["step_count"] == 1 and codes[13] == "INVALID_JSON"
    assert said[14] == {"closed": 1009}


def test_what_is_served_comes_in_again_as_a_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    own = import_module("desk").Suite()
    with served("env.factory=desk:Suite") as port:
        suite = suite_of("openenv", url=f"http://127.0.0.1:{port}", deadline=60.0, measured=0)
        try:
            assert suite.variant == "desk-own"
            task, same = suite.tasks("dev")[3], own.tasks("dev")[3]
            assert len(suite.tasks("demo")) == 2000
            calls = [make_call(name, **given) for name, given in actions_of(own.reference(same))]
            last = performed(suite, task, calls)[-1]
            assert last.score is not None and last.score.success
        finally:
            suite.close()


def test_what_cannot_be_served_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (["gym"], "unknown standard 'gym'; allowed: openenv"),
        (["openenv", "port=high"], "port=high is not allowed"),
        (["openenv", "sandbox=process"], "allowed: sandbox=inline"),
    ):
        assert main(arguments) == 2
        assert says in capsys.readouterr().err
