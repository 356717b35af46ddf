"""Advantages of tokens from checklists, in the loss of the local trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from letters import SETTINGS, LettersEnv, LettersSuite, job, small, train

import trace_bench as tb
from trace_bench.checklists.rewards import Assignment, advantages, rollout_of
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import Boundary, Check, Failure
from trace_bench.trainers.job import credit, earned

STEP = {"level": "step", "holders": 2}


class Talk(LettersEnv):
    """Two turns of the user; in each, an item asks for a small letter in the reply. `void`:
    the judge fails in the second turn of some episodes."""

    def __init__(self, void: bool) -> None:
        super().__init__(())
        self.void = void
        self.said: list[str] = []

    def step(self, action: tb.Message) -> tb.Step:
        self.said.append(action["content"])
        if len(self.said) == 1:
            return tb.Step(({"role": "user", "content": "more"},))
        if self.void and len(self.said[0]) % 2:
            raise EpisodeError("judge", "the judge gave no usable answer")
        return tb.Step(done=True, score=self.score(), stop=tb.StopReason.DONE)

    def score(self) -> tb.Score:
        met = [*(small(text) > 0 for text in self.said), False, False][:2]
        checks = tuple(Check(n, "C0", 1.0, (), n if yes else None) for n, yes in enumerate(met))
        return tb.Score(sum(met) / 2, all(met), checks=checks)


class Talks(LettersSuite):
    def __init__(self, void: bool = False) -> None:
        super().__init__()
        self.void = void

    def make(self) -> LettersEnv:
        return Talk(self.void)


def test_a_void_sample_is_counted_and_not_trained_on(small_model: Path, tmp_path: Path) -> None:
    _, metrics = train(tmp_path, small_model, 24, suite=Talks(void=True), assignment=STEP)
    ledger = read_lines(tmp_path / "ledger.jsonl")
    assert any(m["steps"] for m in metrics)
    void = [line for line in ledger if (line["error"] or "").startswith("judge: ")]
    assert void and sum(m["failures"] for m in metrics) == len(void) < 24


def test_a_score_without_a_checklist_is_refused(small_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no checklist.*Set `env` to recorded"):
        train(tmp_path, small_model, 12, assignment=STEP)


# -- the arithmetic --------------------------------------------------------------------------------


def episode(lengths: Sequence[int], *met: int | None, lost: bool = False) -> tb.Trajectory:
    """One turn of the agent for each turn of the user, with so many tokens."""
    user = {"role": "user", "content": "x"}
    turns = tuple(
        tb.Turn((user,), {"role": "assistant", "content": "y"}, (1,), (2,) * n, (-1.0,) * n)
        for n in lengths
    )
    checks = tuple(Check(n, "C0", 1.0, (), step) for n, step in enumerate(met))
    score = None if lost else tb.Score(0.5, False, checks=checks)
    failure = Failure(Boundary.JUDGE, "no verdict") if lost else None
    return tb.Trajectory("t", 0, "base", (), turns, (), tb.StopReason.DONE, score, failure)


PLAYED = [
    episode([2, 3], 0, 1), episode([1, 1], 0, None), episode([4, 2], None, 1),
    episode([1, 2], 0, 1, lost=True),
    episode([2, 2], 0, 1), episode([3, 1], 0, 1), episode([1, 1], 0, 1), episode([1, 1], 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("level", ["trajectory", "turn", "step"])
@pytest.mark.parametrize("deviation", [True, False])
def test_every_token_has_the_advantage_of_its_step(level: Any, deviation: bool) -> None:
    how = Assignment(level, holders=2, deviation=deviation)
    asked = job(Path(), 8, assignment=asdict(how))
    found = credit(PLAYED, earned(PLAYED, asked), asked, replace(SETTINGS, group_size=4))
    wanted = advantages([rollout_of(t) for t in PLAYED[:4]], how)
    assert found.tokens is not None and wanted[3] == []
    for tokens, values, played in zip(found.tokens[:3], wanted, PLAYED, strict=False):
        each = [v for v, t in zip(values, played.turns, strict=True) for _ in t.token_ids]
        assert tokens.tolist() == pytest.approx(each)
    assert found.trained.tolist() == [True, True, True, False] + [False] * 4
    assert (found.groups, found.constant, found.all_one, found.failed) == (2, 1, 1, 1)
    spread = found.spread([2, 0], torch.tensor([6, 5]))
    assert spread.tolist() == [*found.tokens[2].tolist(), *found.tokens[0].tolist()]


def test_what_was_replaced_is_not_trained_on() -> None:
    """Two groups of equal rewards, whose members differ in turns."""
    played = [episode([2, 3], 0, None), episode([4, 2], None, 1)] * 4
    asked = job(Path(), 8, assignment={"level": "turn", "holders": 2})
    how = replace(SETTINGS, group_size=4)
    rewards = earned(played, asked)
    assert rewards == [0.5] * 8 and credit(played, rewards, asked, how).trained.all()
    again = credit(played, rewards, asked, replace(how, resample=1))
    assert not again.trained.any() and not again.values.any() and again.constant == 2
    rewards = [0.0, *rewards[1:]]  # where some differ, the group is trained on
    again = credit(played, rewards, asked, replace(how, resample=1))
    assert again.trained.tolist() == [True] * 4 + [False] * 4 and again.constant == 1
