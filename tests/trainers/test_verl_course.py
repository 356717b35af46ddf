"""The course of a job that verl trains: which tasks come next depends on what groups earned, for
the run's process and for verl's alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import verl_job as jobs
from test_verl_faults import named, when

from trace_bench.core.decode import convert
from trace_bench.core.store import read_lines
from trace_bench.core.types import Task, Trajectory
from trace_bench.trainers.grpo import earned
from trace_bench.trainers.verl.spec import StepFiles, read_spec

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

SHAPE = ["trainer.groups=4", "trainer.group_size=4", "budget=120", "trainer.learning_rate=0.001"]


def test_constant_groups_are_replaced_and_a_killed_verl_takes_the_same_course(
    tmp_path: Path,
) -> None:
    """Dynamic sampling with DAPO: every group is charged; in the middle verl is killed."""
    course = ["trainer.order=prioritized", "trainer.resample=2", "trainer.algorithm=dapo"]
    chosen = jobs.settings(*SHAPE, *course, "trainer.gpus=2")
    lab = jobs.make_lab(tmp_path, chosen)
    tasks = list(lab.suite.tasks("train"))[:12]
    killed: list[psutil.Process] = []

    def kill() -> None:
        killed.extend(named("ray::Runner"))
        for process in killed:
            process.kill()

    when(lambda: len(jobs.metrics(tmp_path)) >= 2, kill)
    agent = lab.trainer.train(jobs.job("dapo", chosen, tasks), lab)
    lab.close()
    assert killed
    folder = tmp_path / "adapters/dapo/verl"
    found, calls = jobs.metrics(tmp_path), followed(tmp_path, folder, tasks)
    assert jobs.once_each(tmp_path) == calls
    charged = sum(calls.values())
    assert any("/again" in call for call in calls) and 108 <= charged <= 112
    assert len(found) < 7, "iterations are larger, so there are fewer"
    assert [a.name for a in agent.adapters] == [f"dapo@{len(found):04d}"]
    spent = [m["spent"] for m in found]
    assert spent[-1] == charged and spent == sorted(set(spent))
    rates = [0.001 * (1 - done / 112) for done in (0, *spent[:-1])]
    assert [m["learning_rate"] for m in found] == pytest.approx(rates)
    said = {n: StepFiles(folder).of(n) for n in range(1, len(found) + 1)}
    used = {n: line["actor/lr"] for n, line in said.items() if line is not None}
    assert len(used) >= 2 and used == {n: pytest.approx(rates[n - 1]) for n in used}
    assert all(m["steps"] == 2 for m in found if m["constant_share"] < 1)


def followed(run: Path, folder: Path, tasks: Sequence[Task]) -> dict[str, int]:
    """Episodes by call that the ledger must have by the rewards that it has, each of its task."""
    spec = read_spec(folder)
    course, calls = spec.course(tasks), dict[str, int]()
    by_call: dict[str, dict[int, Any]] = {}
    for line in read_lines(run / "trajectories.jsonl"):
        episode = convert(line["trajectory"], Trajectory)
        by_call.setdefault(line["call"], {})[line["index"]] = episode

    def play(call: str, groups: Sequence[Task]) -> list[float]:
        size, there = spec.trainer.group_size, by_call[call]
        calls[call] = len(there)
        episodes = [there[n] for n in range(len(groups) * size)]
        assert [e.task for e in episodes] == [t.id for t in groups for _ in range(size)]
        return earned(episodes, spec, spec.trainer)

    iteration = 0
    while course.iterations_left():
        course.iteration(spec.call(iteration), play)
        iteration += 1
    return calls
