"""τ²-bench: known counts, shared databases against full copies, users, two domains as one world."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from playing import scores
from sandboxes import in_process as find
from shared import needs

from trace_bench.__main__ import main
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import perform
from trace_bench.core.types import Task, to_json
from trace_bench.envs.tau2 import domains
from trace_bench.envs.tau2.suite import Tau2Suite
from trace_bench.play.contract import check
from trace_bench.policies.scripted import IdlePolicy, ReferencePolicy
from trace_bench.results.__main__ import main as results
from trace_bench.runner.build import make_suite, run_context
from trace_bench.runner.pipeline import run
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of

pytestmark = [needs("inspect_evals", "the extra tau2 is not installed"), pytest.mark.worlds]

DOMAINS = ("airline", "retail", "telecom", "banking_knowledge")


@pytest.fixture(scope="module")
def suites() -> dict[str, Tau2Suite]:
    return {domain: find("tau2", domain) for domain in DOMAINS}  # type: ignore[misc]


PATHS = os.pathsep.join(str(Path(__file__).parents[n]) for n in (1, 2))


def solved(suite: Any, policy: Any, split: str = "base") -> int:
    found = scores(policy, suite, suite.tasks(split), max_turns=100)
    return sum(score.success for score in found)


@pytest.mark.parametrize(
    ("domain", "tasks", "idle"),
    [
        ("airline", 50, 19),
        pytest.param("retail", 114, 7, marks=pytest.mark.slow),
        pytest.param("telecom", 114, 0, marks=pytest.mark.slow),
        pytest.param("banking_knowledge", 97, 0, marks=pytest.mark.slow),
    ],
)
def test_known_floor_and_ceiling(suites: Any, domain: str, tasks: int, idle: int) -> None:
    suite = suites[domain]
    assert solved(suite, ReferencePolicy(suite)) == tasks
    assert solved(suite, IdlePolicy()) == idle


def test_splits_are_the_benchmarks_and_its_train_in_two(suites: dict[str, Tau2Suite]) -> None:
    """Banking has none there: every third of its tasks is held out."""
    sizes = {d: [len(s.tasks(n)) for n in ("train", "test", "base")] for d, s in suites.items()}
    assert sizes == {
        "airline": [30, 20, 50],
        "retail": [74, 40, 114],
        "telecom": [74, 40, 114],
        "banking_knowledge": [65, 32, 97],
    }
    for suite in suites.values():
        fit, dev, train = (
            [t.data["record"]["id"] for t in suite.tasks(n)] for n in ("fit", "dev", "train")
        )
        assert sorted(fit + dev) == sorted(train)
        test, base = ([t.data["record"]["id"] for t in suite.tasks(n)] for n in ("test", "base"))
        assert sorted(train + test) == sorted(base)
        assert len(dev) == len(train) // 3


# -- shared databases -----------------------------------------------------------------------------


def test_three_hundred_live_episodes_are_small_and_leave_no_files() -> None:
    program = """
import gc, os, resource
from sandboxes import in_process as suite
s = suite("tau2", "airline")
tasks = s.tasks("base")
s.make().reset(tasks[0])
def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
before = memory()
live = [s.make() for _ in range(300)]
for n, env in enumerate(live):
    task = tasks[n % 50]
    env.reset(task)
    for action in s.reference(task)[:2]:
        env.step(action)
print(memory() - before)
"""
    with tempfile.TemporaryDirectory() as place:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True,
            env={"TMPDIR": place, "PATH": "/usr/bin", "PYTHONPATH": PATHS},
        )  # fmt: skip
        assert list(Path(place).iterdir()) == []
    assert float(ended.stdout) < 100


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_contract_holds(suites: dict[str, Tau2Suite], domain: str) -> None:
    report = check(suites[domain], suites[domain].tasks("test")[:3])
    assert report.ok, str(report)


# -- users ----------------------------------------------------------------------------------------


def test_a_user_who_never_speaks_is_a_failure_of_the_user() -> None:
    """Not of the agent, which would be scored for a conversation that nobody ended."""
    call = '<tool_call>{"name": "toggle_data_saver_mode", "arguments": {}}</tool_call>'
    said = iter(["My data is slow."])
    suite = find("tau2", "telecom", ask=lambda role, messages, schema=None: next(said, call))
    env = suite.make()
    env.reset(suite.tasks("base")[0])
    with pytest.raises(EpisodeError, match="rounds of tool calls in a row") as caught:
        env.step({"role": "assistant", "content": "Please switch it off and on."})
    assert caught.value.boundary == "user"


def test_the_model_that_plays_the_user_gets_the_scenario_and_can_act() -> None:
    asked: list[list[Any]] = []
    answers = iter(
        [
            "My data is slow.",
            '<tool_call>{"name": "toggle_data_saver_mode", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "toggle_roaming"}</tool_call> <tool_call>{broken}</tool_call>',
            "It works now, thanks. ###STOP###",
        ]
    )

    def ask(role: str, messages: Any, schema: Any = None) -> str:
        asked.append([role, json.loads(json.dumps(list(messages)))])
        return next(answers)

    suite = find("tau2", "telecom", ask=ask)
    assert suite.asks_user() is True
    wanted = "[mobile_data_issue]data_saver_mode_on|user_abroad_roaming_enabled_off[PERSONA:Easy]"
    task = next(t for t in suite.tasks("base") if t.data["record"]["id"] == wanted)
    env = suite.make()
    first = env.reset(task)
    assert first.messages[1] == {"role": "user", "content": "My data is slow."}
    end = env.step({"role": "assistant", "content": "Please switch data saver off, roaming on."})
    assert end.done and end.score is not None and end.score.success
    assert "You are John Smith" in asked[0][1][0]["content"]
    assert "toggle_roaming" in asked[0][1][0]["content"]
    results = asked[3][1][-1]["content"]
    assert results.startswith("toggle_roaming: ") and "could not be read" in results


def test_bad_settings_are_refused_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"unknown key 'env.augmentation'; allowed: domain"):
        find("tau2", "retail", augmentation="all_tools")
    with pytest.raises(UserError, match="unknown split 'train_large'; allowed: train, test, base"):
        find("tau2", "airline").tasks("train_large")
    assert main(["method=grpo", "env=tau2", "evaluation.split=base"]) == 2
    assert "of evaluation.split=base are in env.train_split=fit too" in capsys.readouterr().err
    assert compose(["method=base", "env=tau2", "evaluation.split=base"]).policy.max_turns == 100
    monkeypatch.setattr(domains, "VERSION", "0.1.0")
    with pytest.raises(UserError, match=r"was measured with inspect-evals 0\.1\.0, and 0\.26\.0"):
        find("tau2", "airline")


def test_malformed_calls_are_answered(suites: dict[str, Tau2Suite]) -> None:
    suite = suites["airline"]
    env = suite.make()
    env.reset(suite.tasks("base")[0])
    for function, words in (
        ({"name": "no_such", "arguments": "{}"}, "there is no tool no_such"),
        ({"name": "get_user_details", "arguments": "{"}, "not valid JSON"),
        ({"name": "get_user_details", "arguments": "[]"}, "not a JSON object"),
        ({"name": "get_user_details", "arguments": "{}"}, "user_id"),
        ({"name": "get_user_details", "arguments": '{"user_id": "nobody"}'}, "not found"),
        ({}, "names no function"),
    ):
        calls = [{"function": function}]
        step = env.step({"role": "assistant", "content": "", "tool_calls": calls})
        assert step.messages[0]["content"].startswith("Error: ")
        assert words in step.messages[0]["content"]
    json.dumps(to_json(step))


# -- two domains -----------------------------------------------------------------------------------

BOTH = ["env=tau2", "env.domain=[airline,retail]", "evaluation.split=base"]


def both() -> Any:
    settings = compose(BOTH)
    parts = parts_of(settings)
    return make_suite(settings, parts, run_context(settings, parts))


def test_the_tasks_are_those_of_both_domains() -> None:
    suite = both()
    tasks = suite.tasks("base")
    assert len(tasks) == 50 + 114 and len({t.id for t in tasks}) == 164
    assert [t.data["domain"] for t in tasks] == ["airline"] * 50 + ["retail"] * 114
    assert suite.task(tasks[60].id) == tasks[60]
    assert set(suite.splits()) >= {"train", "test", "base", "fit", "dev"}
    assert suite.about()["data"].startswith("airline: ") and "; retail: " in suite.about()["data"]
    wrong = "tau2/telecom/base/0000"
    with pytest.raises(UserError, match=rf"no task '{wrong}' in tau2/airline\+retail"):
        suite.task(wrong)


def test_an_environment_plays_either() -> None:
    suite = both()
    env = suite.make()
    for place in (0, 55, 1):
        task: Task = suite.tasks("base")[place]
        steps = perform(env, task, suite.reference(task))
        assert steps[-1].score is not None and steps[-1].score.success
        offered = {tool["function"]["name"] for tool in steps[0].tools}
        airline = task.data["domain"] == "airline"
        assert ("get_reservation_details" in offered) is airline
        assert ("get_order_details" in offered) is not airline
    env.close()


def test_figures_are_given_by_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    chosen = ["method=base", "policy=reference", "evaluation.limit=52", f"run_dir={folder}"]
    assert run(compose([*BOTH, *chosen])) == 0
    said = capsys.readouterr().out
    assert "\nairline: base 1.000 (50 tasks)\nretail: base 1.000 (2 tasks)" in said
    worlds = json.loads((folder / "summary.json").read_text())["worlds"]
    assert worlds["retail"]["score"]["n"] == 2 and worlds["airline"]["score"]["success"] == 1.0
    assert worlds["retail"]["tasks"] == ["tau2/retail/base/0000", "tau2/retail/base/0001"]
    records, out = tmp_path / "runs.jsonl", tmp_path / "tables"
    assert results(["collect", str(folder), "--out", str(records)]) == 0
    for place in (folder, records):
        assert results(["tables", str(place), "--out", str(out)]) == 0
        with (out / "worlds.csv").open() as file:
            header, row = csv.reader(file)
        assert header[2::3] == ["airline (50 tasks)", "retail (2 tasks)"]
        assert row[0] == "base" and row[2].startswith("1.000 [0.9") and row[3] == ""
