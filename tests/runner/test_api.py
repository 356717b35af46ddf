"""Runs from Python: results, silence, errors, interruptions, objects as parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shared

import trace_bench as tb
from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.report.runs import find
from trace_bench.results.__main__ import main as results

Said = pytest.CaptureFixture[str]
SHORT: dict[str, Any] = {"evaluation__limit": 6, "evaluation__split": "dev"}
QUICK: dict[str, Any] = {"method": "base", "policy": "reference", **SHORT}


class Advice(tb.Method):
    """A method of one's own: a line in the prompt, after one look at some tasks. What it plays
    changes nothing, so that it also runs with a scripted agent."""

    def __init__(self, line: str = "Ask when something is missing.", episodes: int = 8) -> None:
        self.line, self.episodes = line, episodes

    def fit(self, base: tb.AgentSpec, tasks: Sequence[tb.Task], lab: tb.Lab) -> tb.AgentSpec:
        some = [tasks[n % len(tasks)] for n in range(self.episodes)]
        played = lab.rollouts("look", base, some, purpose=tb.Purpose.PROMPT)
        assert [t.task for t in played] == [t.id for t in some]
        return replace(base, prompt=self.line, version="advised")

    def plan(self, run: tb.PlannedRun) -> tb.MethodPlan:
        return tb.MethodPlan(phases=(tb.Phase("look", self.episodes),), learns=False)


class Greedy(Advice):
    """It plays more than it planned."""

    def plan(self, run: tb.PlannedRun) -> tb.MethodPlan:
        return tb.MethodPlan(phases=(tb.Phase("look", self.episodes - 1),), learns=False)

    def fit(self, base: tb.AgentSpec, tasks: Sequence[tb.Task], lab: tb.Lab) -> tb.AgentSpec:
        lab.rollouts("look", base, [tasks[0]] * (self.episodes + 1), purpose=tb.Purpose.PROMPT)
        return base


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def advised(**changes: Any) -> tb.Result:
    settings: dict[str, Any] = {"method": Advice(), "policy": "reference", "budget": 8, **SHORT}
    return tb.run(**{**settings, **changes})


# -- results --------------------------------------------------------------------------------------


def test_another_algorithm_is_named_at_every_run(grpo_run: Path, here: Path, capsys: Said) -> None:
    title = "grpo, gspo"
    small = ("budget=8", "trainer.group_size=4", "trainer.groups=2", "checkpoints=[]")
    words = ("method=grpo", "trainer.algorithm=gspo", *shared.RUN.split(), *small)
    assert main([*words, "run_dir=run"]) == 0
    closing = capsys.readouterr().out
    assert f"\n{title} on toolsandbox/embedded" in closing and f"\n{title}  " in closing
    result = tb.load("run")
    assert [row.name for row in result.summary.table][:2] == ["base", title]
    assert [row.method for row in find([here / "run"])[0]] == [f"{title}, budget 8"]
    assert results(["compare", str(grpo_run), "run"]) == 0
    said = capsys.readouterr().out
    assert "A: grpo |" in said and f"B: {title} |" in said


def test_a_run_and_all_that_is_in_its_result(capfd: Said) -> None:
    """With the model itself, whose libraries like to talk; nothing is printed."""
    result = advised(seed=3, policy="local")
    score = result.score
    assert score.success is not None and 0.0 <= score.success <= 1.0
    assert score.n == 6 and score.failures == 0
    rollouts = result.summary.rollouts
    assert rollouts == {"prompt": 8, "evaluation": rollouts["evaluation"]}
    assert result.agent.prompt == "Ask when something is missing."
    assert result.table.startswith(f"{__name__}:Advice on toolsandbox/embedded")
    assert result.folder.is_relative_to("runs") and (result.folder / "ledger.jsonl").exists()
    played: list[tb.Trajectory] = result.trajectories()
    assert len(played) == 8 and all(t.turns for t in played)
    held_out = result.trajectories(evaluation=True)
    assert {t.agent for t in held_out} >= {"base", "advised"}
    assert repr(result).startswith(f"Result({__name__}:Advice, success 0.")
    tb.compare(result, tb.load(result.folder))
    assert capfd.readouterr() == ("", "")


def test_load_a_repeated_run_and_the_command_line_give_the_same(capfd: Said) -> None:
    first = tb.run(**QUICK, seed=4)
    before = (first.folder / "summary.json").stat().st_mtime_ns
    again = tb.run(**QUICK, seed=4)
    loaded = tb.load(str(first.folder))
    assert again == loaded and loaded.folder == first.folder and loaded.table == first.table
    assert (first.folder / "summary.json").stat().st_mtime_ns == before
    assert capfd.readouterr() == ("", "")
    words = ["method=base", "policy=reference", "evaluation.limit=6", "evaluation.split=dev"]
    assert main([*words, "seed=4"]) == 0
    printed = capfd.readouterr()
    assert "this run is finished; its stored result:" in printed.err
    assert first.table in printed.out and f"run: {first.folder}" in printed.out


@pytest.mark.parametrize("name", ["ledger.jsonl", "./config.yaml", "../elsewhere.json"])
def test_a_method_cannot_write_over_the_runs_own_files(name: str) -> None:
    class Careless(Advice):
        def fit(self, base: tb.AgentSpec, tasks: Sequence[tb.Task], lab: tb.Lab) -> tb.AgentSpec:
            lab.write(name, {})
            return base

    with pytest.raises(UserError, match=f"the method would write '{name}'; allowed"):
        advised(method=Careless())


def test_a_policy_without_room_for_an_episode_is_refused() -> None:
    class Full(IdlePolicy):
        capacity, closed = 0, False

        def close(self) -> None:
            Full.closed = True

    with pytest.raises(UserError, match="has capacity=0; allowed: a whole number from 1"):
        advised(policy=Full)
    assert Full.closed


def test_a_method_that_asks_for_more_than_its_budget_is_refused() -> None:
    with pytest.raises(UserError, match=r"method=.*:Greedy: .*budget"):
        advised(method=Greedy())


# -- silence --------------------------------------------------------------------------------------


def test_it_runs_in_a_notebook_with_a_hydra_of_its_own(capfd: Said) -> None:
    """Beside a running event loop."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    async def cell() -> tb.Result:
        return tb.run(**QUICK)

    (Path.cwd() / "conf").mkdir()
    (Path.cwd() / "conf" / "mine.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(Path.cwd() / "conf"), version_base="1.3"):
        assert asyncio.run(cell()).score.success == 1.0
        assert compose("mine")["a"] == 1
    assert not GlobalHydra.instance().is_initialized()
    assert capfd.readouterr() == ("", "")


# -- errors ---------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"budget": -1}, ["budget=-1"]),
    ({"method": "grop"}, ["method=grop"]),
    ({"method": "grpo", "method__reward": "love"}, ["method=grpo", "method.reward=love"]),
    ({"env__train_split": "test"}, ["env.train_split=test"]),
    ({"method": "grpo", "policy": "reference"}, ["method=grpo", "policy=reference"]),
    ({"env": "custom", "env__factory": "gone:suite"}, ["env=custom", "env.factory=gone:suite"]),
]


@pytest.mark.parametrize(("keywords", "argv"), WRONG, ids=lambda v: " ".join(v) if v else None)
def test_errors_are_those_of_the_command_line(
    keywords: dict[str, Any], argv: list[str], capsys: Said, here: Path
) -> None:
    assert main(argv) == 2
    line = capsys.readouterr().err
    with pytest.raises(UserError) as caught:
        tb.run(**keywords)
    assert line == f"error: {caught.value}\n"
    assert capsys.readouterr() == ("", "")
    assert not list(here.iterdir())  # and no folder is left behind


@pytest.mark.parametrize("name", ["it's (a run), c=1", "ünï/{x}[1]\\"])
def test_any_folder_can_be_named(name: str, here: Path) -> None:
    """What means something to Hydra's grammar is quoted."""
    assert tb.run(**QUICK, run_dir=here / name).folder == here / name


def said(lines: list[str], more: Mapping[str, Any]) -> Advice:
    return Advice("\n".join([*lines, json.dumps(more)]))


def test_lists_and_mappings_arrive_as_they_are() -> None:
    lines = ["it's {x}, [1]", "ünï", "x y\\", "a\\'b", "1", "null"]
    more = {"a-b c": "d: e", "p/q": [1e-05, None, True, "2"], "x:y": {"z": []}}
    options = {"method__options__lines": lines, "method__options__more": more}
    result = advised(method="custom", method__factory="test_api:said", **options)
    agent = json.loads((result.folder / "agent.json").read_text())
    assert agent["prompt"] == "\n".join([*lines, json.dumps(more)])
    with pytest.raises(UserError, match=r"checkpoints.* is not allowed; allowed: a whole number"):
        tb.run(**QUICK, checkpoints={4})


def test_errors_of_python_alone() -> None:
    with pytest.raises(UserError, match="gives object, which is no Suite: its class must inherit"):
        tb.run(env=object())
    with pytest.raises(UserError, match="gives int, which is no Method: its class must inherit"):
        tb.run(method=3)
    with pytest.raises(UserError, match=r"dry_run=true prints .*Leave `dry_run` out"):
        tb.run(**QUICK, dry_run=True)
    with pytest.raises(UserError, match=r"nowhere is not a folder"):
        tb.load("nowhere")
    with pytest.raises(UserError, match=r"is not a finished run"):
        tb.load(Path.cwd())
    with pytest.raises(UserError, match=r"nowhere is not a folder"):
        tb.compare("nowhere", "nowhere")
    with pytest.raises(AttributeError, match="has no attribute 'rum'"):
        tb.rum()  # type: ignore[attr-defined]


# -- comparisons ----------------------------------------------------------------------------------


def test_two_methods_are_compared(base_run: Path, grpo_run: Path) -> None:
    base = tb.load(base_run)
    change = tb.compare(grpo_run, base)
    success = [r.score.success or 0.0 for r in (tb.load(grpo_run), base)]
    assert change.value == pytest.approx(success[0] - success[1])
    assert change.low <= change.value <= change.high and 0.0 <= change.p_value <= 1.0
    assert change.n == 8
    assert tb.compare(base, base).value == 0.0


def test_runs_that_differ_in_more_than_method_budget_and_seed_are_refused() -> None:
    """One method's runs are compared across seeds and its settings; not if edited."""
    one = advised()
    for other in (advised(seed=1), advised(method=Advice("Be brief."))):
        change = tb.compare(one, other)
        assert change.value == 0.0
    with pytest.raises(UserError, match=r"differ in more than .*evaluation\.limit is 4 .*or 6"):
        tb.compare(one, advised(evaluation__limit=4))
    with pytest.raises(UserError, match=r"differ in more than method, budget and seed: env"):
        tb.compare(one, advised(env=EmbeddedSuite("all_tools")))
    path = other.folder / "evaluation.jsonl"
    path.write_text(path.read_text().replace("true", "false", 1))
    with pytest.raises(UserError, match=r"evaluation\.jsonl"):
        tb.compare(one, other)


# -- objects --------------------------------------------------------------------------------------


def test_a_part_is_an_object_a_class_or_a_function() -> None:
    def make(episodes: int = 4) -> Advice:
        return Advice(episodes=episodes)

    results = [
        advised(method=Advice(episodes=4)),
        advised(method=Advice, method__options__episodes=4),
        advised(method=make),
    ]
    assert [r.summary.rollouts["prompt"] for r in results] == [4, 4, 4]
    assert len({r.folder for r in results}) == 3
    assert results[0].score == results[1].score == results[2].score


# -- interruptions --------------------------------------------------------------------------------


class Interrupted(EmbeddedSuite):
    """Presses Ctrl-C as the environment for a certain episode is made. `presses` is no argument of
    the constructor, so that it is no part of the run's identity."""

    presses: Iterator[bool] = iter(())

    def make(self) -> ToolSandboxEnv:
        if next(self.presses, False):
            raise KeyboardInterrupt
        return super().make()


def pressing(*episodes: int) -> Interrupted:
    suite = Interrupted()
    suite.presses = iter([n in episodes for n in range(max(episodes, default=0) + 1)])
    return suite


def train(suite: Interrupted, folder: str) -> tb.Result:
    small: dict[str, Any] = {"policy__max_tokens": 16, "policy__max_turns": 2, **SHORT}
    small |= {"checkpoints": [], "run_dir": folder}
    return tb.run("trainer.groups=2", method="grpo", env=suite, budget=48, **small)


def parts_of(folder: Path) -> dict[str, Any]:
    """All of a run but times, and the folder's own name."""

    def lines(name: str) -> list[str]:
        return sorted((folder / name).read_text().replace(folder.name, "RUN").splitlines())

    summary = json.loads((folder / "summary.json").read_text())
    keys = ("score", "base_score", "table", "rollouts", "fingerprint", "adapters")
    agent = (folder / "agent.json").read_text().replace(folder.name, "RUN")
    return {
        "agent": agent,
        "ledger": lines("ledger.jsonl"),
        "evaluation": lines("evaluation.jsonl"),
        **{key: json.dumps(summary.get(key)).replace(folder.name, "RUN") for key in keys},
    }


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_to_the_same_result(here: Path) -> None:
    """At the base agent's evaluation, in an iteration of training, and at the end; each time the
    same call goes on."""
    train(pressing(), "whole")
    for press in (10, 24, 30):  # a new run looks at eight prompts first
        with pytest.raises(KeyboardInterrupt):
            train(pressing(press), "parts")
        assert (here / "parts" / "config.yaml").exists()
        with pytest.raises(UserError, match="not a finished run"):
            tb.load("parts")
    train(pressing(), "parts")
    assert parts_of(here / "parts") == parts_of(here / "whole")
