"""policy.max_seconds: an episode that takes too long as a whole is lost, and the rest goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trace_bench
from trace_bench import UserError
from trace_bench.core.store import read_lines

WORLD = '''
import itertools, time
from trace_bench import Env, Score, Step, Suite, Task

made = itertools.count()


class Talk(Env):
    """Over at the first answer; every fourth of training is slow, and never over."""

    def reset(self, task):
        self.slow = task.split == "train" and next(made) % 4 == 3
        return Step(({"role": "user", "content": "Say something."},))

    def step(self, action):
        if not self.slow:
            return Step(done=True, score=Score(len(str(action)) % 7 / 7, False))
        time.sleep(0.6)
        return Step(({"role": "user", "content": "Go on."},))

    def score(self):
        return Score(0.0, False)


class Talks(Suite):
    name, variant = "talks", "own"

    def splits(self):
        return "train", "dev", "test"

    def tasks(self, split):
        return [Task(f"{split}-{n}", "talks", split, n, {"of": split, "n": n}) for n in range(4)]

    def task(self, task_id):
        split, _, n = task_id.partition("-")
        return self.tasks(split)[int(n)]

    def make(self):
        return Talk()
'''
SETTINGS: dict[str, Any] = {
    "method": "grpo", "env": "custom", "env__factory": "slow_talks:Talks", "sandbox": "process",
    "budget": 16, "checkpoints": (), "trainer__groups": 2, "trainer__group_size": 4,
    "policy__max_tokens": 64, "policy__max_seconds": 0.5, "policy__max_turns": 4,
    "evaluation__limit": 1, "run_dir": "run",
}  # fmt: skip


def test_slow_episodes_are_lost_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with no loss allowed, which stops the run; then with any, from where it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("slow_talks.py").write_text(WORLD)
    with pytest.raises(UserError, match=r"deadline: not over after 0\.5 s \(policy\.max_seconds\)"):
        trace_bench.run(**SETTINGS, max_lost=0.0)
    before = read_lines(Path("run/ledger.jsonl"))
    result = trace_bench.run(**SETTINGS, max_lost=1.0)
    lines = read_lines(Path("run/ledger.jsonl"))
    assert lines[: len(before)] == before and 0 < len(before) < 16
    assert len({(x["call"], x["index"]) for x in lines}) == len(lines) == 16
    lost = Counter(x["error"].partition(":")[0] for x in lines if x["error"])
    assert lost.keys() == {"deadline"}
    health = result.summary.health
    assert health is not None and health.method.lost == dict(lost)
    assert result.summary.rollouts["training"] == 16
    trained = [m for m in read_lines(Path("run/metrics.jsonl")) if m.get("phase") == "training"]
    assert sum(m["failures"] for m in trained) == lost["deadline"]
