"""Methods over the real lab, policy and trainer: the ledger has what was played, no more than the
budget, and a run that was killed ends like an undisturbed one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from labs import lab_in
from named import QUICK, method

from trace_bench.core.protocols import RunContext
from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Purpose, Trajectory
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.local import LocalPolicy
from trace_bench.runner.lab import RunLab
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

BASE = AgentSpec(model=str(MODEL_FOLDER))
SETTINGS: dict[str, dict[str, Any]] = {
    "rft": {"epochs": 1},
    "trace, finish": {**QUICK["trace"], "keep_runs": 4, "route": "linear", "finish": 0.25},
    "trace": {**QUICK["trace"], "keep_runs": 4, "minimum_training": 32},
    "trace, gate": {
        **QUICK["trace"], "keep_runs": 4, "minimum_training": 32, "max_capabilities": 2,
        "route": {"name": "gate", "share": 0.22, "rate": 0.1},
    },
}  # fmt: skip
BUDGET, LESS = 317, 157  # primes: no iteration and no group divides them
KILLED = {"trace, gate": 280, "rft": 100}
"""Where a run is killed if not at 170: within the training of the gate, and of a smaller budget."""
TRAINER = TrainerSettings(group_size=8, groups=4, rank=4, alpha=8.0, epochs=1)


@dataclass(frozen=True)
class Fitted:
    agent: AgentSpec
    counted: Counter[str]  # what was asked for, by the test's own count
    left: int
    shown: list[tuple[int, str]]  # by the curve, at each call: rollouts spent, agent


def fit(name: str, folder: Path, budget: int, kill_at: int = 0) -> Fitted:
    """`kill_at`: the process ends, as by kill -9, when so many episodes are in the ledger."""
    folder.mkdir(exist_ok=True)
    shown: list[tuple[int, str]] = []
    policy = LocalPolicy(str(MODEL_FOLDER), batch=256, threads=1)
    counted: Counter[str] = Counter()

    class Counting(RunLab):
        def rollouts(self, call: str, agent: AgentSpec, tasks: Any, **how: Any) -> list[Trajectory]:
            played = super().rollouts(call, agent, tasks, **how)
            counted["all"] += len(tasks)
            assert len(played) == len(tasks)
            assert all(task.split not in ("dev", "test") for task in tasks)
            if kill_at and counted["all"] >= kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return played

    def note(spent: int, agent: AgentSpec, _: int) -> None:
        shown.append((spent, agent.adapters[-1].name.partition("@")[0]))

    player = Player(policy, Suites(EmbeddedSuite()), max_turns=6, max_tokens=48)
    trainer = LocalTrainer(TRAINER, RunContext(threads=1))
    how: dict[str, Any] = {"seed": 1, "max_lost": 1.0, "on_checkpoint": note}
    lab = lab_in(folder, budget, player, trainer, Counting, **how)
    made = method(name.partition(",")[0], **SETTINGS[name])
    agent = made.fit(BASE, lab.suite.tasks("train"), lab)
    left = lab.budget_left()
    lab.close()
    return Fitted(agent, counted, left, shown)


def check(fitted: Fitted, folder: Path, budget: int) -> None:
    lines = read_lines(folder / "ledger.jsonl")
    assert len(lines) == fitted.counted["all"] == budget - fitted.left <= budget
    assert len({(line["call"], line["index"]) for line in lines}) == len(lines)
    assert {line["purpose"] for line in lines} <= {p.value for p in Purpose} - {"evaluation"}
    assert fitted.left <= 32, "at most what is too little for another iteration"


def weights(agent: AgentSpec) -> list[bytes]:
    return [(Path(a.path) / "adapter_model.safetensors").read_bytes() for a in agent.adapters]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_the_ledger_is_what_was_played_also_after_a_kill(name: str, tmp_path: Path) -> None:
    budget = LESS if name == "rft" else BUDGET
    whole = fit(name, tmp_path / "whole", budget)
    check(whole, tmp_path / "whole", budget)
    assert name != "rft" or whole.shown == [(budget // 2, "rft1")]
    assert whole.agent.adapters
    assert (whole.agent.router is None) == (name not in ("trace", "trace, gate"))
    at = KILLED.get(name, 170)
    child = os.fork()
    if child == 0:
        fit(name, tmp_path / "killed", budget, kill_at=at)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert at <= len(read_lines(tmp_path / "killed/ledger.jsonl")) <= budget
    again = fit(name, tmp_path / "killed", budget)
    check(again, tmp_path / "killed", budget)
    assert [a.name for a in again.agent.adapters] == [a.name for a in whole.agent.adapters]
    assert weights(again.agent) == weights(whole.agent)
    assert again.agent.router == whole.agent.router
