"""Episodes of several rows weigh and count as one: what verl's own loss makes of rows with our
advantages and weights is the loss of the whole episodes."""

from __future__ import annotations

import pytest
import torch
from thinking import DROPS, tokenizer
from verl_job import spec

from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.algorithms.dapo import Dapo
from trace_bench.trainers.grpo import token_weights
from trace_bench.trainers.verl.preflight import _divergence
from trace_bench.trainers.verl.rows import dealt, members, weights
from trace_bench.trainers.verl.settings import VerlSettings

KEYS = ["a_0_1", "b_0_0", "a_0_0", "a_1_0", "pad_0_0", "a_0_10"]
MASK = torch.tensor(
    [[0, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
)


def test_the_rows_of_an_episode_are_in_order() -> None:
    every = members(KEYS)
    assert every == {"a_0": [2, 0, 5], "b_0": [1], "a_1": [3], "pad_0": [4]}
    values = {"a_0": torch.tensor([1.0, 2, 3, 4]), "b_0": torch.tensor([5.0, 6])}
    assert dealt(values, MASK, every).tolist() == [
        [0, 2, 3, 0], [5, 0, 6, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 4],
    ]  # fmt: skip
    alone = {str(n): [n] for n in range(len(MASK))}
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
    whole = [torch.cat([loss[row][MASK[row].bool()] for row in rows]) for rows in every.values()]
    sizes = torch.tensor([len(each) for each in whole])
    wanted = (token_weights(sizes, aggregate) * torch.cat(whole)).sum()
    assert float(total) == pytest.approx(float(wanted) * (3 / 4 if aggregate != "token" else 1))


def test_a_divergence_by_rows_is_refused_before_the_run(tmp_path: object) -> None:
    tokenizer(DROPS).save_pretrained(str(tmp_path))
    from trace_bench.core.types import AgentSpec

    agent = AgentSpec(str(tmp_path))
    kl = VerlSettings(device="cpu", algorithm=Algorithm(kl=0.01))
    with pytest.raises(UserError, match=r"kl=0\.01 .*several.*policy\.thoughts=keep"):
        _divergence(spec(agent=agent, trainer=kl))
    _divergence(spec(agent=agent, trainer=kl, thoughts="keep"))
    _divergence(spec(agent=agent, trainer=VerlSettings(device="cpu")))
    _divergence(spec(agent=agent, trainer=VerlSettings(device="cpu", algorithm=Dapo(kl=0.01))))
