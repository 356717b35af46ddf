"""Episodes of several rows weigh and count as one: what verl's own loss makes of rows with our
advantages and weights is the loss of the whole episodes."""

from __future__ import annotations

import pytest
import torch
from thinking import DROPS, tokenizer
from verl_job import spec

from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import group_advantages, token_weights
from trace_bench.trainers.verl.advantages import dealt, joined, members, weights
from trace_bench.trainers.verl.preflight import _divergence
from trace_bench.trainers.verl.settings import VerlSettings

KEYS = ["a_0_1", "b_0_0", "a_0_0", "a_1_0", "pad_0_0", "a_0_10"]
MASK = torch.tensor(
    [[0, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
)


def test_the_rows_of_an_episode_are_in_order() -> None:
    every = members(KEYS)
    assert every == [[2, 0, 5], [1], [3], [4]]
    assert joined(MASK, every).tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    values = torch.tensor([[1.0, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 10], [0, 0, 0, 0]])
    assert dealt(values, MASK, every).tolist() == [
        [0, 2, 3, 0], [5, 0, 6, 0], [1, 0, 0, 0], [7, 8, 9, 10], [0, 0, 0, 0], [0, 0, 0, 4],
    ]  # fmt: skip
    alone = [[n] for n in range(len(MASK))]
    assert torch.equal(weights(MASK, alone, "trajectory", len(MASK)), MASK.float())


@pytest.mark.parametrize("aggregate", ["trajectory", "token"])
def test_a_mean_over_rows_becomes_one_over_episodes(aggregate: str) -> None:
    """Of four episodes one was lost; two rows more than verl would have."""
    every, loss = members(KEYS), torch.rand(MASK.shape)
    lengths = MASK.sum(-1)
    factor = weights(MASK, every, aggregate, 4)
    if aggregate == "token":
        total = (loss * factor * MASK).sum() / MASK.sum()
    else:
        total = ((loss * factor * MASK).sum(-1) / lengths.clamp(min=1)).sum() / len(MASK)
    whole = [torch.cat([loss[row][MASK[row].bool()] for row in rows]) for rows in every]
    sizes = torch.tensor([len(each) for each in whole])
    wanted = (token_weights(sizes, aggregate) * torch.cat(whole)).sum()
    assert float(total) == pytest.approx(float(wanted) * (3 / 4 if aggregate != "token" else 1))


def test_a_baseline_counts_episodes_and_not_rows() -> None:
    every = members(KEYS)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    group = torch.tensor([0, 1, 0, 2])
    values = group_advantages(rewards, group).values
    at_places = dealt(values[:, None] * joined(MASK, every), MASK, every)
    assert set(at_places[[0, 2, 5]][MASK[[0, 2, 5]].bool()].tolist()) == {float(values[0])}
    assert float(values[0]) == pytest.approx(-float(values[2])), "of two episodes, not of four rows"


def test_a_divergence_by_rows_is_refused_before_the_run(tmp_path: object) -> None:
    tokenizer(DROPS).save_pretrained(str(tmp_path))
    from trace_bench.core.types import AgentSpec

    agent = AgentSpec(str(tmp_path))
    kl = VerlSettings(device="cpu", algorithm=Algorithm(kl=0.01))
    with pytest.raises(UserError, match=r"kl=0\.01 .*several.*policy\.thoughts=keep"):
        _divergence(spec(agent=agent, trainer=kl))
    _divergence(spec(agent=agent, trainer=kl, thoughts="keep"))
    _divergence(spec(agent=agent, trainer=VerlSettings(device="cpu")))
    tokens = VerlSettings(device="cpu", algorithm=Algorithm(kl=0.01), aggregate="token")
    _divergence(spec(agent=agent, trainer=tokens))
