"""The official ToolSandbox against a checkout of its repository, in a worker of its own.

TOOLSANDBOX_SOURCE names the checkout, TOOLSANDBOX_PYTHON an interpreter with the packages of
containers/toolsandbox/requirements.txt; without them these tests are skipped, and say so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playing import play
from sandboxes import chosen, in_sandbox

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.types import AgentSpec, Message, to_json
from trace_bench.play.contract import check
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.suite import SandboxedSuite

SOURCE, PYTHON = os.environ.get("TOOLSANDBOX_SOURCE"), os.environ.get("TOOLSANDBOX_PYTHON")
needs_checkout = pytest.mark.skipif(
    not (SOURCE and PYTHON),
    reason="needs a checkout of the official ToolSandbox (TOOLSANDBOX_SOURCE, TOOLSANDBOX_PYTHON)",
)


def made(augmentation: str = "none", source: str | None = SOURCE) -> Any:
    part = chosen("toolsandbox", "official", augmentation=augmentation, source=str(source))
    suite = in_sandbox(part, Sandbox("process", run="official"), python=PYTHON or None)
    assert isinstance(suite, SandboxedSuite)
    return suite


@pytest.fixture(scope="module")
def suite() -> Iterator[Any]:
    found = made()
    yield found
    found.close()


@needs_checkout
@pytest.mark.parametrize(
    ("actions", "similarity"),
    [
        ([call_message("set_wifi_status", {"on": False}), text_message("Wifi is turned off")], 1.0),
        ([text_message("Wifi is turned off")], 0.5),
        ([text_message("I can't do that")], 0.0),
    ],
    ids=["done and said", "said", "refused"],
)
def test_wifi_off_has_the_known_scores(
    suite: Any, actions: list[Message], similarity: float
) -> None:
    task = next(t for t in suite.tasks("base") if t.data["scenario"] == "wifi_off")
    env = suite.make()
    env.reset(task)
    end = [env.step(action) for action in actions][-1]
    assert end.done and end.score is not None and end.score.similarity == pytest.approx(similarity)


@needs_checkout
def test_scenarios_are_counted_and_those_without_a_key_left_out(suite: Any) -> None:
    about = suite.about()
    assert (about["scenarios"], about["left_out"]) == (129, 28)
    assert about["why_left_out"] == "they need RAPID_API_KEY"
    tasks = suite.tasks("base")
    assert len(tasks) == 101
    played = play(IdlePolicy(), suite, AgentSpec("idle"), tasks, range(len(tasks)))
    scores = {t.task: t.score.similarity for t in played if t.score}
    insufficient = {t.id for t in tasks if "INSUFFICIENT_INFORMATION" in t.data["categories"]}
    assert len(insufficient) == 28 and len(scores) == 101
    assert all(v == 0.0 for k, v in scores.items() if k not in insufficient)
    assert sum(scores.values()) / 129 == pytest.approx(0.20, abs=0.01)  # the others give 0


@needs_checkout
def test_the_contract_holds_and_two_workers_say_the_same(suite: Any) -> None:
    report = check(suite, suite.tasks("base")[::20])
    assert report.ok, str(report)
    assert report.reference is None
    other = made()
    tasks = suite.tasks("base")[:12]
    played = [
        play(RandomPolicy(5), s, AgentSpec("random"), tasks, range(12)) for s in (suite, other)
    ]
    other.close()
    assert [to_json(t) for t in played[0]] == [to_json(t) for t in played[1]]


@needs_checkout
def test_our_scoring_agrees_with_the_official_one() -> None:
    script = Path(__file__).parents[1] / "official_scores.py"
    done = subprocess.run(
        [str(PYTHON), str(script), str(SOURCE)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "48 scenarios compared in 5 ways, 0 differences" in done.stdout


def test_without_a_checkout_the_command_says_how_to_get_one(tmp_path: Path) -> None:
    from sandboxes import in_process as find

    with pytest.raises(UserError, match=r"git clone .*ToolSandbox.* and name the folder in"):
        find("toolsandbox", "official")
    with pytest.raises(UserError, match="is no checkout of ToolSandbox"):
        find("toolsandbox", "official", source=str(tmp_path))
