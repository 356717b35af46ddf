"""Algorithms with a teacher, by verl: the model reads its own rollouts with a lesson."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import verl_job as jobs

from trace_bench.core.decode import convert
from trace_bench.core.store import read_lines
from trace_bench.core.types import Message, Trajectory
from trace_bench.policies.chat import Chat
from trace_bench.policies.loading import load_tokenizer
from trace_bench.trainers.course import differ, in_groups, reference, taught
from trace_bench.trainers.grpo import earned

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")


@pytest.mark.parametrize(
    "algorithm", [["sdpo", "trainer.algorithm.success=0.6"], ["opsd"]], ids=["sdpo", "opsd"]
)
def test_verl_takes_the_local_trainers_step(algorithm: list[str], tmp_path: Path) -> None:
    """On the same episodes, with the same lessons; rollouts without one count in verl's mean, and
    nothing follows from them."""
    name, *more = algorithm
    shape = ["budget=24", "trainer.groups=6", "trainer.group_size=4", "trainer.epochs=1"]
    more += ["trainer.restarts=0"]
    chosen = jobs.settings(*shape, f"trainer.algorithm={name}", *more)
    lab = jobs.make_lab(tmp_path, chosen)
    tasks = list(lab.suite.tasks("train"))[:12]
    job, verl, known = jobs.job("told", chosen, tasks), jobs.verl_settings(chosen), lab.suite
    lab.trainer.train(job, lab)
    lab.close()
    lines = sorted(read_lines(tmp_path / "trajectories.jsonl"), key=lambda line: line["index"])
    played = [convert(line["trajectory"], Trajectory) for line in lines]
    rewards = earned(played, job, verl)
    chat = Chat(load_tokenizer(job.agent.model), job.agent.model)

    def of(name: str) -> Sequence[Message]:
        return reference(known, known.task(name))

    lessons = taught(played, rewards, of, verl, chat, 1024)
    for place, group in enumerate(in_groups(rewards, 4)):
        if not differ(group):
            lessons[4 * place : 4 * place + 4] = [[]] * 4
    (found,) = jobs.metrics(tmp_path)
    count = sum(bool(each) for each in lessons)
    assert 0 < found["taught"] == count < 24 and found["steps"] == 1
    ours = jobs.one_step(chosen, job, played, lessons)
    assert abs(ours.loss) > 1e-3
    assert found["loss"] == pytest.approx(ours.loss * count / 24, rel=2e-3, abs=1e-6)
    assert found["grad_norm"] == pytest.approx(ours.grad_norm * count / 24, rel=2e-3)
