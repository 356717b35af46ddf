"""Containers killed at random moments: the same scores, every rollout once, nothing left."""

from __future__ import annotations

import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from sandboxes import chosen, containers, in_process, in_sandbox

from trace_bench.core.protocols import Suite
from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Entry, Purpose, Trajectory, to_json
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.sandbox.engine import LABEL, Sandbox

pytestmark = pytest.mark.docker

EPISODES, KILLS = 200, 20


class Unlucky(ReferencePolicy):
    """Plays the reference, few episodes at once; each fourth round owes the death of a container.

    One thread makes the deaths at random moments, no two in one round. The play waits for it where
    more than one death is owed, however slowly the machine's engine answers.
    """

    capacity = 6

    def __init__(self, suite: Suite) -> None:
        super().__init__(suite)
        self.rng, self.rounds, self.kills = random.Random(7), 0, 0
        self.last = 0  # the round of the latest death: a worker that starts again then gets to work
        self.ended, self.died = threading.Event(), threading.Condition()
        self.killer = threading.Thread(target=self.kill, daemon=True)
        self.killer.start()

    def collect(self) -> list[Any]:
        with self.died:
            self.rounds += 1
            self.died.wait_for(lambda: self.owed() < 2 or self.last == self.rounds, timeout=30)
        return super().collect()

    def owed(self) -> int:
        return self.rounds // 4 - self.kills

    def kill(self) -> None:
        while not self.ended.wait(self.rng.random() * 0.02):
            if self.owed() < 1 or self.rounds == self.last:
                continue
            running = containers("docker", f"{LABEL}=faults", "--filter=status=running")
            if not running:
                continue
            command = ["docker", "kill", self.rng.choice(running)]
            if subprocess.run(command, capture_output=True).returncode == 0:  # it may be gone
                with self.died:
                    self.kills, self.last = self.kills + 1, self.rounds
                    self.died.notify()


def test_killed_containers_change_nothing(tmp_path: Path) -> None:
    from trace_bench.play.rollouts import Player
    from trace_bench.play.suites import Suites
    from trace_bench.runner.lab import RunLab
    from trace_bench.runner.ledger import Ledger
    from trace_bench.runner.progress import Progress
    from trace_bench.trackers.jsonl import Metrics, Silent

    inline = in_process("toolsandbox", "embedded")
    pool = list(inline.tasks("dev"))
    tasks = [pool[i % len(pool)] for i in range(EPISODES)]
    sandbox = Sandbox("docker", 2, retries=5, run="faults")
    suite: Any = in_sandbox(chosen("toolsandbox", "embedded"), sandbox)
    played: dict[str, list[Trajectory]] = {}
    policy = Unlucky(suite)
    for name, world, acting in (("calm", inline, ReferencePolicy(inline)), ("bad", suite, policy)):
        folder = tmp_path / name
        folder.mkdir()
        tracker = Metrics(folder / "metrics.jsonl", Silent(), print)
        lab = RunLab(
            folder,
            seed=1,
            ledger=Ledger(folder / "ledger.jsonl", EPISODES),
            player=Player(acting, Suites(world), max_turns=30, max_tokens=8),
            trainer=None,  # type: ignore[arg-type]
            tracker=tracker,
            progress=Progress(EPISODES),
        )
        played[name] = lab.rollouts("all", AgentSpec("r"), tasks, purpose=Purpose.ANALYSIS)
        lab.close()
    policy.ended.set()
    policy.killer.join()
    suite.close()  # type: ignore[attr-defined]
    assert policy.kills >= KILLS
    assert [str(t.failure) for t in played["bad"] if t.failure] == []
    assert [to_json(t) for t in played["calm"]] == [to_json(t) for t in played["bad"]]
    assert all(t.score is not None and t.score.success for t in played["bad"])
    ledger = read_lines(tmp_path / "bad" / "ledger.jsonl", Entry)
    assert sorted(e.index for e in ledger) == list(range(EPISODES))
    assert containers("docker", f"{LABEL}=faults") == []
