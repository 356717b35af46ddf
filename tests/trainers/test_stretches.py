"""Conversations of models that think are trained on stretch by stretch: token for token what was
sampled, after the prompt that was really read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from letters import SETTINGS, job, make_lab
from thinking import OPENED, AskingSuite, save_thinker

from trace_bench.core.chat import text_message
from trace_bench.core.decode import convert
from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.protocols import Policy, RunContext
from trace_bench.core.store import read_lines
from trace_bench.core.types import StopReason, Stored, Trajectory, Turn, to_json
from trace_bench.policies.openai import OpenAISettings, served
from trace_bench.rehearse.engine import Loading
from trace_bench.rehearse.scripted import serve
from trace_bench.trainers import update as update_module
from trace_bench.trainers.algorithms.cispo import Cispo
from trace_bench.trainers.grpo import group_advantages
from trace_bench.trainers.job import check_prompt
from trace_bench.trainers.tree import Tokens, stretches
from trace_bench.trainers.update import update

ONE_STEP = replace(SETTINGS, group_size=8, groups=4, epochs=1, minibatches=1, learning_rate=0.01)
BLOCK = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_thinker(tmp_path_factory.mktemp("thinker"), OPENED)


class Recording(Loading):
    """`read`: (prompt, sampled ids) of every turn."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.read: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def _turn(self, body: Mapping[str, Any]) -> Turn:
        turn = super()._turn(body)
        self.read.append((turn.prompt_ids, turn.token_ids))
        return turn


@dataclass(frozen=True)
class Trained:
    played: list[Trajectory]
    metrics: dict[str, Any]
    tokens: list[Tokens]  # what the optimizer step was computed on


def train(folder: Path, model: Path, policy: Policy, seen: Any) -> Trained:
    """32 episodes and one step. `seen`: a monkeypatch, to look at what is computed."""
    learned: list[Tokens] = []
    build = update_module.build

    def built(part: list[Tokens]) -> Any:
        learned.extend(part)
        return build(part)

    seen.setattr(update_module, "build", built)
    limits: dict[str, Any] = {"max_turns": 6, "max_tokens": 24}
    lab = make_lab(folder, model, 32, ONE_STEP, AskingSuite(), policy=policy, **limits)  # type: ignore[arg-type]
    lab.trainer.train(job(model, 32, tasks=AskingSuite().tasks("train")), lab)
    lab.close()
    lines = read_lines(folder / "trajectories.jsonl", Stored)
    (metrics,) = (r for r in read_lines(folder / "metrics.jsonl") if r["phase"] == "training")
    seen.setattr(update_module, "build", build)
    return Trained([x.trajectory for x in sorted(lines, key=lambda x: x.index)], metrics, learned)


def sampled_in(trajectory: Trajectory) -> list[BLOCK]:
    """(what the model read, what it wrote, log-probabilities) of each turn."""
    found: list[BLOCK] = []
    ids: tuple[int, ...] = ()
    for turn in trajectory.turns:
        ids = (*ids[: turn.kept], *turn.prompt_ids)
        found.append((ids, turn.token_ids, turn.logprobs))
        ids = (*ids, *turn.token_ids)
    return found


def trained_in(tokens: Tokens) -> list[BLOCK]:
    """The same of each unbroken run of sampled tokens."""
    breaks = np.flatnonzero(np.diff(tokens.sampled) > 1) + 1
    runs = zip(np.split(tokens.sampled, breaks), np.split(tokens.logprobs, breaks), strict=True)
    ids = tokens.ids.tolist()
    return [
        (tuple(ids[: run[0]]), tuple(ids[run[0] : run[-1] + 1]), tuple(p.tolist()))
        for run, p in runs
    ]


@pytest.mark.slow
def test_what_is_trained_is_what_was_sampled(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    engine = Recording(model, "m", 8, 512)
    with serve(engine) as server:
        policy = served(OpenAISettings((server.url,)), RunContext(served_model="m", batch=8))
        found = train(tmp_path, model, policy, monkeypatch)
        rewritten = policy.usage()["rewritten"]
        policy.close()
    engine.close()
    check(found)
    assert rewritten > 0
    sampled = [(a, b) for t in found.played for a, b, _ in sampled_in(t)]
    assert sorted(sampled) == sorted(engine.read)


def test_servers_keep_no_thoughts() -> None:
    run = RunContext(served_model="m", thoughts="keep")
    with pytest.raises(UserError, match=r"policy\.thoughts=own, or `policy` to local"):
        served(OpenAISettings(("http://127.0.0.1:1/v1",)), run)


def check(found: Trained) -> None:
    assert len(found.played) == 32 and found.metrics["steps"] == 1
    assert found.metrics["failures"] == found.metrics["inexact"] == 0
    assert sum(bool(turn.thoughts) for t in found.played for turn in t.turns) > 32
    rewards = torch.tensor([t.score.similarity for t in found.played if t.score])
    used = group_advantages(rewards, torch.arange(32) // 8).trained.tolist()
    wanted = [b for t, u in zip(found.played, used, strict=True) if u for b in sampled_in(t)]
    got = [block for each in found.tokens for block in trained_in(each)]
    assert len(wanted) > 64
    assert sorted((a, b) for a, b, _ in got) == sorted((a, b) for a, b, _ in wanted)
    for mine, other in zip(sorted(got), sorted(wanted), strict=True):
        assert mine[2] == pytest.approx(other[2], abs=1e-6)
    assert found.metrics["logprob_difference_max"] < 2e-4, "the trainer reads what was read"
    assert len(found.tokens) > sum(used)


def turn(prompt: tuple[int, ...], sampled: tuple[int, ...], kept: int | None = None) -> Turn:
    return Turn((), text_message(""), prompt, sampled, (-0.5,) * len(sampled), kept=kept)


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory("t", 0, "base", (), turns, (), StopReason.DONE, None)


CUT = trajectory(
    turn((1, 2), (3, 4)), turn((5,), (6,)), turn((8,), (9,), kept=3), turn((10,), (11, 12))
)


def test_a_stretch_begins_where_the_prompt_does_not_go_on() -> None:
    assert convert(to_json(CUT), Trajectory) == CUT
    one, two = stretches(CUT)
    assert one.ids.tolist() == [1, 2, 3, 4, 5, 6] and one.sampled.tolist() == [2, 3, 5]
    assert two.ids.tolist() == [1, 2, 3, 8, 9, 10, 11, 12] and two.sampled.tolist() == [4, 6, 7]
    assert stretches(trajectory()) == [] == stretches(trajectory(turn((), ())))


def test_a_turn_that_keeps_more_than_there_is_ends_the_training() -> None:
    check_prompt(CUT)
    for bad in (turn((8,), (9,), kept=5), turn((), (9,), kept=0)):
        with pytest.raises(TraceBenchError, match="turn 2"):
            check_prompt(trajectory(turn((1, 2), (3, 4)), bad))


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, algorithm=Cispo())])
def test_stretches_weigh_as_their_episode(small_model: Path, tmp_path: Path, settings: Any) -> None:
    """The same tokens as one sequence and as two whose prompts are the same: the same step."""
    prompt, first, second = tuple(range(5, 25)), (3, 4, 5), (7, 8, 9, 10)
    between = (11, 12)
    plain = trajectory(turn(prompt, first), turn(between, second))
    whole = prompt + first + between
    cut = trajectory(turn(prompt, first), turn(whole[10:], second, kept=10))
    other = trajectory(turn((*prompt, 2), (40, 41)))
    norms = []
    for one in (plain, cut):
        found = group_advantages(torch.tensor([1.0, 0.0]), torch.zeros(2))
        trainer = make_lab(tmp_path / "lab", small_model, 8).trainer
        learner = trainer.learner(str(small_model))  # type: ignore[attr-defined]
        how = replace(settings, group_size=2, groups=1, epochs=1, minibatches=1)
        optimizer = torch.optim.AdamW(learner.parameters, 0.0)
        steps = update(learner, optimizer, [stretches(one), stretches(other)], found, how, 0)
        norms.append((steps.loss, steps.grad_norm))
    assert len(stretches(cut)) == 2 and len(stretches(plain)) == 1
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
