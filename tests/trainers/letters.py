"""A one-turn world for training tests: the score is the share of small letters in the reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labs import lab_in

from trace_bench.core.protocols import Env, Policy, RunContext, Suite, TrainingJob
from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Message, Score, Step, StopReason, Task
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.local import LocalPolicy
from trace_bench.runner.lab import RunLab
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

SETTINGS = TrainerSettings(
    group_size=6, groups=2, learning_rate=0.1, rank=4, alpha=8.0, minibatches=2
)


def task(index: int) -> Task:
    data = {"word": "abcdefgh"[index]}
    return Task(f"letters/tests/train/{index}", "letters", "train", index, data)


def small(text: str) -> float:
    """The share of small letters."""
    return sum("a" <= c <= "z" for c in text) / max(len(text), 1)


class LettersEnv(Env):
    def __init__(self, broken: Sequence[str]) -> None:
        self.broken = broken

    def reset(self, task: Task) -> Step:
        if task.id in self.broken:
            raise RuntimeError("broken")
        system = {"role": "system", "content": "Write letters."}
        return Step((system, {"role": "user", "content": task.data["word"]}))

    def step(self, action: Message) -> Step:
        share = small(action["content"])
        return Step(done=True, score=Score(share, share == 1.0), stop=StopReason.DONE)

    def close(self) -> None:
        pass


class LettersSuite(Suite):
    name, variant, turns = "letters", "tests", 2

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.broken = broken

    def splits(self) -> Sequence[str]:
        return ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        return [task(i) for i in range(4)]

    def task(self, task_id: str) -> Task:
        return task(int(task_id.rpartition("/")[2]))

    def make(self) -> LettersEnv:
        return LettersEnv(self.broken)

    def reference(self, task: Task) -> Sequence[Message]:
        return [{"role": "assistant", "content": "abc"}]


def make_lab(
    folder: Path,
    model: Path,
    budget: int,
    settings: TrainerSettings = SETTINGS,
    suite: LettersSuite | None = None,
    on_checkpoint: Any = None,
    policy: Policy | None = None,
    max_turns: int = 2,
    max_tokens: int = 6,
) -> RunLab:
    """The real lab over a real policy and trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    acting = policy or LocalPolicy(model, batch=16, threads=1)
    player = Player(acting, Suites(suite or LettersSuite()), max_turns, max_tokens)
    trainer = LocalTrainer(settings, RunContext(threads=1))
    return lab_in(folder, budget, player, trainer, on_checkpoint=on_checkpoint, max_lost=1.0)


def job(model: Path, rollouts: int, **changes: Any) -> TrainingJob:
    tasks = LettersSuite().tasks("train")
    plain = TrainingJob("letters", AgentSpec(str(model)), tasks, rollouts, 5)
    return replace(plain, **changes)


def train(
    folder: Path, model: Path, rollouts: int, how: Any = SETTINGS, suite: Any = None, **changes: Any
) -> tuple[AgentSpec, list[dict[str, Any]]]:
    """(the agent, the iterations' metrics) of the job with these changes."""
    suite = suite or LettersSuite()
    lab = make_lab(folder, model, rollouts, how, suite, max_turns=suite.turns)
    agent = lab.trainer.train(job(model, rollouts, **changes), lab)
    lab.close()
    return agent, [m for m in read_lines(folder / "metrics.jsonl") if m["phase"] == "training"]
