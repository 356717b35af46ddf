"""The lab: budget, names, and an interrupted run that ends as an undisturbed one."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from labs import lab_in
from summaries import SUMMARY
from toy import ToySuite

from trace_bench.core.errors import BudgetExceeded, UserError
from trace_bench.core.protocols import Policy, Source, TurnRequest
from trace_bench.core.types import CHARGED, AgentSpec, Message, Purpose
from trace_bench.play.rollouts import Player
from trace_bench.play.steps import Faults
from trace_bench.play.suites import Suites, generated_key
from trace_bench.policies.scripted import RandomPolicy
from trace_bench.runner.lab import RunLab
from trace_bench.runner.ledger import Ledger
from trace_bench.runner.report import Progress, closing

BASE = AgentSpec(model="random")
FILES = ("ledger.jsonl", "trajectories.jsonl", "metrics.jsonl")


class CountingPolicy(RandomPolicy):
    """Counts the turns it is asked for, to see what was really played."""

    def __init__(self) -> None:
        super().__init__(calls=2)
        self.asked = 0

    def submit(self, requests) -> None:
        self.asked += len(requests)
        super().submit(requests)


def make(
    folder: Path,
    budget: int = 40,
    policy: Policy | None = None,
    suite: ToySuite | None = None,
    faults: Faults | None = None,
    max_lost: float = 0.5,
) -> RunLab:
    suites = Suites(suite or ToySuite())
    player = Player(policy or CountingPolicy(), suites, 8, 16, faults or Faults())
    return lab_in(folder, budget, player, max_lost=max_lost)


def scenario(lab: RunLab) -> list[int]:
    """Two calls whose size depends on the budget that is left, as methods do it."""
    tasks = lab.suite.tasks("train")
    left = []
    lab.rollouts("one", BASE, tasks[:10], purpose=Purpose.ANALYSIS)
    lab.metric(phase="one", wall_s=1.0)
    left.append(lab.budget_left())
    lab.rollouts("two", BASE, tasks[: lab.budget_left() // 3], purpose=Purpose.TRAINING)
    lab.metric(phase="two", wall_s=2.0)
    left.append(lab.budget_left())
    lab.close()
    return left


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_budget_is_charged_per_call(tmp_path: Path) -> None:
    lab = make(tmp_path)
    assert scenario(lab) == [30, 20]
    assert lab.ledger.by_purpose() == {"analysis": 10, "training": 10}


def test_a_call_of_an_exempt_purpose_costs_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", 12, CHARGED["paper"])
    lab = lab_in(tmp_path, 12, Player(CountingPolicy(), Suites(ToySuite()), 8, 16), ledger=ledger)
    assert scenario(lab) == [12, 8]
    assert (lab.spent, lab.unspent()) == (4, (8, "the method had ended"))


LEFT = [
    ([], "", (40, "the method plays none")),
    ([16, 16], "", (8, "fewer than the 16 of another call such as 1")),
    ([16, 8], "", (16, "the method had ended")),
    ([16, 8], "nothing is lacking", (16, "nothing is lacking")),
    ([20, 20], "nothing is lacking", (0, "")),
]


@pytest.mark.parametrize(("sizes", "said", "unspent"), LEFT)
def test_what_is_left_of_the_budget_is_told_with_the_reason(
    sizes: list[int], said: str, unspent: tuple[int, str], tmp_path: Path
) -> None:
    for _ in ("new", "resumed"):
        lab, task = make(tmp_path), ToySuite().tasks("train")[0]
        for number, size in enumerate(sizes):
            lab.rollouts(f"{number}", BASE, [task] * size, purpose=Purpose.TRAINING)
        if said:
            lab.leave(said)
        assert lab.unspent() == unspent
        lab.close()
    left, why = unspent
    told = replace(SUMMARY, budget=40, spent=40 - left, unspent=left, why_unspent=why)
    title = closing(told).splitlines()[1]
    assert (f"{40 - left} of 40 rollouts ({left} unspent: {why})" in title) == bool(left)


def test_a_call_beyond_the_budget_plays_nothing(tmp_path: Path) -> None:
    policy = CountingPolicy()
    lab = make(tmp_path, budget=5, policy=policy)
    with pytest.raises(BudgetExceeded, match="asks for 6 rollouts; 5 of 5 are left"):
        lab.rollouts("all", BASE, lab.suite.tasks("train")[:6], purpose=Purpose.TRAINING)
    assert policy.asked == 0
    assert not (tmp_path / "ledger.jsonl").exists()


def test_names_are_unique_and_evaluation_is_not_the_methods_business(tmp_path: Path) -> None:
    lab = make(tmp_path)
    tasks = lab.suite.tasks("train")[:1]
    lab.rollouts("one", BASE, tasks, purpose=Purpose.ANALYSIS)
    with pytest.raises(ValueError, match="'one' was made before"):
        lab.rollouts("one", BASE, tasks, purpose=Purpose.ANALYSIS)
    with pytest.raises(ValueError, match="outside the lab"):
        lab.rollouts("two", BASE, tasks, purpose=Purpose.EVALUATION)


def test_a_generated_suites_tasks_are_played_while_it_is_in_use(tmp_path: Path) -> None:
    suite, programs = ToySuite(), []

    def built(program: Source) -> ToySuite:
        programs.append(program)
        return suite

    player = Player(CountingPolicy(), Suites(ToySuite()), 8, 16)
    lab = lab_in(tmp_path, 8, player, make_suite=built)
    assert lab.generated_suite("adds", "code", {"n": 1}) is suite
    assert lab.sources() == programs == [Source("adds", "code", {"n": 1})]
    task = replace(suite.tasks("train")[0], env=generated_key("adds"))
    (played,) = lab.rollouts("one", BASE, [task], purpose=Purpose.ANALYSIS)
    assert played.failure is None and len(suite.made) == 1
    lab.drop_suite("adds")
    assert lab.sources() == []
    with pytest.raises(ValueError, match=r"generated/adds of task .* is not in use"):
        lab.rollouts("two", BASE, [task], purpose=Purpose.ANALYSIS)
    lab.close()


def test_a_finished_call_is_answered_from_disk(tmp_path: Path) -> None:
    scenario(make(tmp_path))
    before = contents(tmp_path)
    policy = CountingPolicy()
    assert scenario(make(tmp_path, policy=policy)) == [30, 20]
    assert policy.asked == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize("ledger_lines", [0, 4, 10, 13])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_killed_run_ends_like_a_whole_one(tmp_path: Path, ledger_lines: int, ahead: int) -> None:
    """Cut where a kill can cut: the trajectory is written first, the last line may be torn."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    scenario(make(whole))
    expected = contents(whole)
    cut.mkdir()
    counts = {"ledger.jsonl": ledger_lines, "trajectories.jsonl": ledger_lines + ahead}
    for name, count in counts.items():
        lines = [*expected[name].splitlines(keepends=True), b""]
        (cut / name).write_bytes(b"".join(lines[:count]) + lines[count][: len(lines[count]) // 2])
    assert scenario(make(cut)) == [30, 20]
    assert contents(cut) == expected


def test_lines_of_another_program_version_are_refused(tmp_path: Path) -> None:
    lab = make(tmp_path)
    lab.rollouts("one", BASE, lab.suite.tasks("train")[:2], purpose=Purpose.ANALYSIS)
    lab.close()
    others = lab.suite.tasks("train")[2:4]
    with pytest.raises(UserError, match=r"another version .* `run_dir`"):
        make(tmp_path).rollouts("one", BASE, others, purpose=Purpose.ANALYSIS)


def test_progress_says_phase_budget_reward_and_time() -> None:
    now = [0.0]
    stream = io.StringIO()
    progress = Progress(100, stream=stream, clock=lambda: now[0], every=5.0)
    progress.phase("method")
    for _ in range(20):
        now[0] += 1.0
        progress.episode(0.5, charged=True)
    assert progress.line() == "method | rollouts 20/100 | reward 0.50 | 0:01:20 left"
    progress.step("train/asks_for_what_is_missing/iteration 12 of 20")
    assert progress.line().startswith("method: train/asks")
    assert len(stream.getvalue().splitlines()) == 5
    progress.phase("evaluation of base", total=40)
    for _ in range(10):
        now[0] += 1.0
        progress.episode(None, charged=False)
    line = "evaluation of base | 10/40 episodes | rollouts 20/100 | 0:00:30 left"
    assert progress.line() == line


class MoodyPolicy(CountingPolicy):
    """Never says the same twice, as a server would."""

    repeatable = False

    def reply(self, request: TurnRequest) -> Message:
        said = super().reply(request)
        return {**said, "content": f"{said['content']} {random.random()}"}


@pytest.mark.parametrize("cut", [0, 4])
def test_of_a_policy_that_never_repeats_only_the_rest_is_played(tmp_path: Path, cut: int) -> None:
    """Killed after some episodes, `cut` of them without their ledger line."""
    first = make(tmp_path, policy=MoodyPolicy())
    tasks = first.suite.tasks("train")[:10]
    played = first.rollouts("one", BASE, tasks, purpose=Purpose.ANALYSIS)
    first.close()
    for name, kept in (("trajectories.jsonl", 6), ("ledger.jsonl", 6 - cut)):
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        (tmp_path / name).write_bytes(b"".join(lines[:kept]) + lines[kept][:15])
    acting = MoodyPolicy()
    again = make(tmp_path, policy=acting)
    second = again.rollouts("one", BASE, tasks, purpose=Purpose.ANALYSIS)
    again.close()
    kept_tasks = {t.task for t in second if t in played}
    turns = sum(len(t.turns) for t in second if t.task not in kept_tasks)
    assert len(kept_tasks) == 6 and acting.asked == turns
    entries = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert len(entries) == 10 and len({json.loads(line)["index"] for line in entries}) == 10
    third = make(tmp_path).rollouts("one", BASE, tasks, purpose=Purpose.ANALYSIS)
    assert third == second
