"""The model with a lesson in its prompt as the teacher of its own tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from letters import SETTINGS, LettersSuite, make_lab, task
from letters import job as a_job
from models import save_model
from test_algorithms import Constant, Game, a_batch, trained
from test_hints import Bare

from trace_bench.core.chat import make_call
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HasReference, RunContext, Suite, adopted
from trace_bench.core.types import Score, StopReason, Trajectory, Turn
from trace_bench.play.steps import with_guidance
from trace_bench.policies.chat import Chat
from trace_bench.policies.loading import load_model
from trace_bench.runner.plan import plan_of
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
from trace_bench.trainers.algorithms.sdpo import Opsd, Sdpo, lesson
from trace_bench.trainers.local import LocalTrainer
from trace_bench.trainers.settings import Recipe, VerlSettings
from trace_bench.trainers.verl.trainer import VerlTrainer

HOW = replace(SETTINGS, learning_rate=0.03)
EITHER = pytest.mark.parametrize("algorithm", [Sdpo(success=0.15), Opsd()], ids=lambda a: a.name)


def test_the_loss_in_float64_and_its_gradient() -> None:
    """A policy gradient whose advantage is what the teacher gives a token more, at most 1.5."""
    how = Sdpo(bound=1.5)
    recipe = Recipe(algorithm=how, clip_low=0.2, clip_high=0.3)
    for seed in range(200):
        b = a_batch(seed)
        b = replace(b, advantages=b.advantages * math.nan)  # those of the rewards count for nothing
        assert b.teacher is not None
        for n, value in enumerate(how.loss(b, recipe).values.tolist()):
            new, old, told = float(b.new[n].detach()), float(b.old[n]), float(b.teacher[n])
            a, r = min(max(told - old, -1.5), 1.5), math.exp(new - old)
            assert value == pytest.approx(max(-a * r, -a * min(max(r, 0.8), 1.3)), abs=1e-12)
        near = a_batch(seed, near=True)
        given = near.new.detach().clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda new, near=near: how.loss(replace(near, new=new), recipe).values,
            given, eps=1e-8, atol=1e-5,
        )  # fmt: skip


def test_its_gradient_is_that_of_the_divergence_from_the_teacher() -> None:
    """Over all tokens, weighted by their probability, the sampled tokens' gradients are the
    gradient of KL(policy, teacher)."""
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(9, generator=g, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(9, generator=g, dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (wanted,) = torch.autograd.grad(
        (logp.exp() * (logp - teacher)).sum(), logits, retain_graph=True
    )
    batch = replace(a_batch(0), new=logp, old=logp.detach(), teacher=teacher)
    each = Sdpo(bound=100.0).loss(batch, Recipe()).values
    (found,) = torch.autograd.grad((logp.detach().exp() * each).sum(), logits)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def episode(text: str, reward: float) -> Trajectory:
    turn = Turn(({"role": "user", "content": "a"},), {"role": "assistant", "content": text})
    score = Score(reward, reward == 1.0)
    return Trajectory(task(0).id, 0, "base", (), (turn,), (), StopReason.DONE, score)


def test_the_best_other_success_is_the_lesson() -> None:
    rewards = [0.2, 1.0, 0.9, math.nan]
    group = [episode(text, reward) for text, reward in zip("wxyz", rewards, strict=True)]
    x, y = "A correct solution: x", "A correct solution: y"

    def nothing(name: str) -> Sequence[dict]:
        raise AssertionError(name)

    assert Sdpo(success=0.9).lessons(group, rewards, nothing) == [x, y, x, x]
    assert Sdpo().lessons(group, rewards, nothing) == [x, "", x, x]
    assert Sdpo().lessons(group[::2], rewards[::2], nothing) == ["", ""]
    told = [make_call("one", text="b"), {"role": "tool", "content": "no"}]
    told.append({"role": "assistant", "content": "Done."})
    assert Opsd().lessons(group, rewards, lambda name: told) == [lesson(told)] * 4
    assert lesson(told) == 'A correct solution: one {"text": "b"}; Done.'


@pytest.fixture(scope="module")
def follower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes small letters where it is told any solution, and any bytes else."""
    place = save_model(tmp_path_factory.mktemp("follower"))
    model, tokenizer = load_model(place)
    chat, rng = Chat(tokenizer, "follower"), random.Random(0)
    steps = torch.optim.AdamW(model.parameters(), lr=0.01)

    def sample(told: bool) -> tuple[list[int], list[int]]:
        letters = range(97, 123) if told else range(33, 127)
        solution = "".join(chr(rng.randint(33, 126)) for _ in range(rng.randint(3, 20)))
        asked = LettersSuite().make().reset(task(rng.randrange(4))).messages
        guided = with_guidance(asked, f"A correct solution: {solution}" if told else "")
        ids, wanted = list(chat.first(guided, ())), list[int]()
        for _ in range(3):
            said = chat.encode("".join(chr(rng.choice(letters)) for _ in range(6)))
            wanted += range(len(ids), len(ids) + 6)
            ids += [*said, *chat.following([{"role": "user", "content": "more"}], False)]
        return ids, wanted

    for step in range(240):
        ids, wanted = sample(step % 2 == 0)
        logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        loss = -logits[[n - 1 for n in wanted], [ids[n] for n in wanted]].mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
    model.save_pretrained(place)
    return place


@EITHER
@pytest.mark.parametrize("suite", [LettersSuite(), Game()], ids=["bandit", "game"])
def test_what_the_lesson_shows_is_learned_without_it(algorithm, suite, follower, tmp_path) -> None:
    found = trained(tmp_path, follower, 12 * 4, replace(HOW, algorithm=algorithm), suite=suite)
    rewards = [m["reward"] for m in found]
    assert rewards[0] < 0.5 and min(rewards[2:]) > 0.8, rewards
    assert all(m["logprob_difference_max"] < 1e-4 for m in found if m["steps"])
    assert any(m["taught"] for m in found)


@EITHER
def test_equal_rewards_teach_nothing(algorithm, follower, tmp_path) -> None:
    found = trained(tmp_path, follower, 25, replace(HOW, algorithm=algorithm), suite=Constant())
    assert [m["steps"] for m in found] == [0, 0] and found[-1]["update_norm"] == 0.0
    assert [m["taught"] for m in found] == [0, 0]


def test_what_is_refused(follower, tmp_path) -> None:
    with pytest.raises(UserError, match=r"trainer.hinted=2 gives the policy hints"):
        compose(["trainer=opsd", "trainer.hinted=2"])
    lab = make_lab(tmp_path, follower, 12, replace(HOW, algorithm=Opsd()), adopted(Bare(), Suite))
    with pytest.raises(UserError, match=r"letters/bare has none. Change `trainer.algorithm`"):
        lab.trainer.train(a_job(follower, 12), lab)
    lab.close()


def test_references_are_named_in_the_plan_and_needed() -> None:
    settings = compose(["method=rl", "trainer=opsd", "budget=64"])
    parts = parts_of(settings)
    method, trainer = (parts[name].make(RunContext()) for name in ("method", "trainer"))
    plan = plan_of(settings, method, trainer, 5)
    assert plan.marks == ("given the references of 5 tasks",) and plan.demonstrations == 5
    assert [need.protocol for need in plan.needs] == [HasReference]
    other = VerlTrainer(VerlSettings(algorithm=Opsd()), RunContext())
    assert plan_of(settings, method, other, 5).marks == plan.marks
    plain = plan_of(settings, method, LocalTrainer(HOW, RunContext()), 5)
    assert not (plain.marks or plain.needs or plain.demonstrations)
