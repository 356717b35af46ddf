"""verl's worker without Ray: what it plays together, and what is answered from disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verl_job as jobs
from models import save_model
from test_verl_tokens import TokenServer

from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Stored, Trajectory
from trace_bench.runner.build import MAKER

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

USERS = '''
import threading
from trace_bench import Env, Score, Step, Suite, Task

over = threading.Event()


class Talk(Env):
    """The first task's user says nothing before another task's episode is over."""

    def reset(self, task):
        self.first = task.seed == 0
        if self.first:
            assert over.wait(100)
        return Step(({"role": "user", "content": "Say something."},))

    def step(self, action):
        return Step(done=True, score=Score(0.5, False))

    def score(self):
        return Score(0.0, False)

    def close(self):
        over.set()


class Talks(Suite):
    name, variant = "talks", "own"

    def splits(self):
        return ("train", "dev", "test")

    def tasks(self, split):
        return [Task(f"{split}-{n}", "talks", split, n, {"of": split}) for n in range(4)]

    def task(self, task_id):
        split, _, n = task_id.partition("-")
        return self.tasks(split)[int(n)]

    def asks_user(self):
        return True

    def make(self):
        return Talk()
'''


def test_a_later_episode_joins_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is played twice."""
    from trace_bench.trainers.verl.episodes import EpisodePlayer, Wanted

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "late_users.py").write_text(USERS)
    chosen = jobs.settings("env=custom", "env.factory=late_users:Talks")
    model, folder = save_model(tmp_path / "model"), tmp_path / "job"
    (folder / "episodes").mkdir(parents=True)
    agent, facts = AgentSpec(str(model)), jobs.facts(chosen)
    changes: dict[str, Any] = {"agent": agent, "settings": facts.settings, "suites": MAKER}
    spec = jobs.spec(**changes)
    spec.write(folder)
    tasks = jobs.suite_of(chosen).tasks("train")
    server = TokenServer(model, None, 0)

    def player() -> EpisodePlayer:
        worker = EpisodePlayer(folder)
        worker.connect(SimpleNamespace(generate=server.generate), server.tokenizer, "own", {})
        return worker

    async def play(wait: bool) -> list[Trajectory]:
        worker, loop = player(), asyncio.get_running_loop()
        asked = []
        for index, task in enumerate(tasks):
            asked.append(Wanted(spec.call(0), index, 0, task, 1.0, loop.create_future()))
            worker.ask(asked[-1])
            if wait:
                await asyncio.sleep(0.5)  # the first one runs
        return list(await asyncio.gather(*(ask.answer for ask in asked)))

    played = asyncio.run_coroutine_threadsafe(play(True), server.loop).result(120)
    assert [t.task for t in played] == [t.id for t in tasks] and not any(t.failure for t in played)
    (path,) = (folder / "episodes").glob("*.jsonl")
    lines = read_lines(path, Stored)
    assert sorted(x.index for x in lines) == [0, 1, 2, 3] and lines[0].index != 0
    turns = server.count
    assert asyncio.run_coroutine_threadsafe(play(False), server.loop).result(120) == played
    assert server.count == turns
