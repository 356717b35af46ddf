"""Our scorer against the official one, case by case (its scores stand in official_cases.json, made
by tests/official_cases.py), and the official ToolSandbox in a worker of its own.

TOOLSANDBOX_SOURCE names the checkout, TOOLSANDBOX_PYTHON an interpreter with the packages of
containers/toolsandbox/requirements.txt; without them these tests are skipped, and say so."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playing import play, scores
from sandboxes import chosen, in_process, in_sandbox
from scorer_cases import cases, digest

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.types import AgentSpec, Message, to_json
from trace_bench.envs.toolsandbox.databases import LogEntry
from trace_bench.envs.toolsandbox.goals import read_goal
from trace_bench.envs.toolsandbox.score import score_episode
from trace_bench.play.contract import check
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.suite import SandboxedSuite

SOURCE, PYTHON = os.environ.get("TOOLSANDBOX_SOURCE"), os.environ.get("TOOLSANDBOX_PYTHON")
needs_checkout = pytest.mark.skipif(
    not (SOURCE and PYTHON),
    reason="needs a checkout of the official ToolSandbox (TOOLSANDBOX_SOURCE, TOOLSANDBOX_PYTHON)",
)


TABLE = json.loads((Path(__file__).parent / "official_cases.json").read_text())
CASES = cases()
NEAR = 2e-6  # the official code computes in 32 bits


def score(case: dict[str, Any]) -> float:
    states = [{name: tuple(rows) for name, rows in s.items()} for s in case["states"]]
    found = score_episode(
        read_goal(case["milestones"], case["edges"]),
        read_goal(case["minefields"], case["minefield_edges"]),
        [LogEntry(*line) for line in case["log"]],
        states,
    )
    return float(found.similarity)


def test_the_scores_belong_to_these_cases() -> None:
    """Otherwise `PYTHON tests/official_cases.py CHECKOUT --write` makes the table again."""
    assert TABLE["cases"] == digest(CASES)
    values = TABLE["scores"].values()
    assert len(values) == len(CASES) > 400 and sum(0 < v < 1 for v in values) > 100
    mined = [c for c in CASES if c["minefields"]]
    assert len(mined) > 50 and sum(TABLE["scores"][c["name"]] > 0 for c in mined) > 20


def test_our_scorer_gives_what_the_official_one_gives() -> None:
    for case in CASES:
        assert score(case) == pytest.approx(TABLE["scores"][case["name"]], abs=NEAR), case["name"]


SCRIPTS = [
    ("official_scores.py", "48 scenarios compared in 5 ways, 0 differences"),
    pytest.param("official_cases.py", "", marks=pytest.mark.slow),
]


@needs_checkout
@pytest.mark.parametrize(("script", "said"), SCRIPTS)
def test_the_official_scorer_agrees(script: str, said: str) -> None:
    """On its own scenarios, and with the table of our cases."""
    command = [str(PYTHON), str(Path(__file__).parents[1] / script), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert said in done.stdout


# -- the official world, and ours beside it --------------------------------------------------------


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
def test_known_scores_of_wifi_off(suite: Any, actions: list[Message], similarity: float) -> None:
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
    found = scores(IdlePolicy(), suite, tasks)
    similarities = {task.id: each.similarity for task, each in zip(tasks, found, strict=True)}
    insufficient = {t.id for t in tasks if "INSUFFICIENT_INFORMATION" in t.data["categories"]}
    assert len(insufficient) == 28 and len(similarities) == 101
    assert all(v == 0.0 for k, v in similarities.items() if k not in insufficient)
    assert sum(similarities.values()) / 129 == pytest.approx(0.20, abs=0.01)  # the others give 0


@needs_checkout
def test_the_contract_holds_and_two_workers_say_the_same(suite: Any) -> None:
    report = check(suite, suite.tasks("base")[::20])
    assert report.ok, str(report)
    assert report.reference is None
    other = made()
    tasks, agent = suite.tasks("base")[:12], AgentSpec("random")
    played = [play(RandomPolicy(5), s, agent, tasks, range(12)) for s in (suite, other)]
    other.close()
    assert [to_json(t) for t in played[0]] == [to_json(t) for t in played[1]]


def test_without_a_checkout_the_command_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"git clone .*ToolSandbox.* and name the folder in"):
        in_process("toolsandbox", "official")
    with pytest.raises(UserError, match="is no checkout of ToolSandbox"):
        in_process("toolsandbox", "official", source=str(tmp_path))
