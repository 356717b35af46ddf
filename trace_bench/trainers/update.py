"""The optimizer steps of one iteration."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trace_bench.core.store import stable_seed
from trace_bench.trainers.algorithms import GRADIENT, Recipe, policy_loss
from trace_bench.trainers.grpo import Advantages, Batch, Mismatch, mismatch, token_weights
from trace_bench.trainers.job import in_groups
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tokens, build, parts


@dataclass
class Steps:
    """Sums over the optimizer steps of one iteration."""

    steps: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    weight: int = 0  # number of sampled tokens in `clipped` and `kl`
    grad_norm: float = 0.0
    mismatch: Mismatch | None = None  # before the first step, while the weights are equal
    tokens: int = 0  # of the trajectories trained on, including prompts, counted once per epoch
    seconds: float = 0.0


def update(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Sequence[Tokens]],
    advantages: Advantages,
    settings: Recipe,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Steps:
    """Runs all epochs and minibatches over an iteration's trajectories, each as its training
    sequences, the members of each group adjacent. A token weighs as if its trajectory were one
    sequence. Stops before a step whose gradient is not finite. `progress`: is given before each
    step how many are done of how many."""
    steps = Steps()
    started = time.perf_counter()
    usable = [bool(t) and len(s) > 0 for t, s in zip(advantages.trained, trajectories, strict=True)]
    algorithm = settings.algorithm
    ours = learner.rounded  # whether the old policy's probabilities are the learner's
    sequences = [s for each in trajectories for s in each]
    rows: list[list[int]] = []  # the places of each trajectory's sequences
    for each in trajectories:
        first = sum(map(len, rows))
        rows.append(list(range(first, first + len(each))))
    places = [row for of_one, used in zip(rows, usable, strict=True) if used for row in of_one]
    if not places:
        return steps
    if ours and settings.minibatches > 1:  # else the first step has them all
        before = _logprobs(learner, [sequences[i] for i in places], settings)
        _replace(sequences, places, before, steps)
    if algorithm.kl > 0:
        with learner.without_adapter():
            base = _logprobs(learner, [sequences[i] for i in places], settings)
        for i, logprobs in zip(places, base, strict=True):
            sequences[i] = replace(sequences[i], base=logprobs)
    every = list(minibatches(usable, settings, seed))
    for members in every:
        progress(steps.steps, len(every))
        used = [row for i in members for row in rows[i]]
        batch = [sequences[row] for row in used]
        lengths = torch.tensor([sum(len(sequences[r].sampled) for r in rows[i]) for i in members])
        weights = token_weights(lengths, *algorithm.aggregation())
        spread = advantages.spread(members, lengths)
        first_step = steps.steps == 0
        fresh = first_step and ours and settings.minibatches == 1
        norm, new = _step(learner, optimizer, batch, (spread, weights), settings, steps, fresh)
        if fresh:
            _replace(sequences, used, new, steps)
        elif first_step and not ours:
            old = np.concatenate([b.logprobs for b in batch])
            steps.mismatch = mismatch(torch.from_numpy(old), torch.from_numpy(np.concatenate(new)))
        if not math.isfinite(norm):
            break
    steps.seconds = time.perf_counter() - started
    return steps


def _logprobs(learner: Learner, batch: Sequence[Tokens], settings: Recipe) -> list[np.ndarray]:
    """The learner's log-probabilities of each sequence, as it is."""
    logprobs: list[np.ndarray] = []
    with torch.no_grad():
        for part in parts(batch, settings.batch_tokens, learner.memory_budget):
            logprobs += _split(learner.logprobs(build(part)), part)
    return logprobs


def _split(logprobs: Tensor, sequences: Sequence[Tokens]) -> list[np.ndarray]:
    ends = np.cumsum([len(s.sampled) for s in sequences])[:-1]
    return np.split(logprobs.detach().cpu().numpy(), ends)


def _replace(
    sequences: list[Tokens], places: Sequence[int], ours: Sequence[np.ndarray], steps: Steps
) -> None:
    """Puts the learner's log-probabilities before the first step in place of the sampler's, so
    that rounding is not taken for a change of the policy. What both are apart goes into `steps`."""
    sampler = np.concatenate([sequences[i].logprobs for i in places])
    steps.mismatch = mismatch(torch.from_numpy(sampler), torch.from_numpy(np.concatenate(ours)))
    for i, logprobs in zip(places, ours, strict=True):
        sequences[i] = replace(sequences[i], logprobs=logprobs)


def minibatches(usable: Sequence[bool], settings: Recipe, seed: int) -> Iterator[list[int]]:
    """Indices of the usable trajectories in minibatches of whole groups, reshuffled each epoch."""
    places = in_groups(range(len(usable)), settings.group_size)
    groups = [[i for i in members if usable[i]] for members in places]
    groups = [g for g in groups if g]
    for epoch in range(settings.epochs):
        order = list(groups)
        random.Random(stable_seed(seed, epoch)).shuffle(order)
        count = min(settings.minibatches, len(order))
        for part in range(count):
            yield [i for g in order[part::count] for i in g]


def _step(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Tokens],
    weighed: tuple[Tensor, Tensor],
    settings: Recipe,
    steps: Steps,
    fresh: bool,
) -> tuple[float, list[np.ndarray]]:
    """One optimizer step on a minibatch; `weighed`: (advantages, weights) of its sampled tokens;
    `fresh`: the old policy is the learner as it is. Returns the norm of the gradient before
    clipping (NaN if the loss is NaN: clamping would turn that into a gradient of zero), and the
    log-probabilities of each sequence before the step."""
    optimizer.zero_grad(set_to_none=True)
    before: list[np.ndarray] = []
    done = 0
    for part in parts(batch, settings.batch_tokens, learner.memory_budget):
        count = sum(len(s.sampled) for s in part)
        advantages, weights = (x[done : done + count].to(learner.device) for x in weighed)
        new = learner.logprobs(build(part))
        loss = policy_loss(_batch(new, part, advantages, fresh), weights, settings.algorithm)
        torch.autograd.backward(loss.loss)
        steps.loss += float(loss.loss.detach())
        steps.clipped += float(loss.clipped) * count
        steps.kl += float(loss.kl) * count
        steps.weight += count
        before += _split(new, part)
        done += count
    norm = float(torch.nn.utils.clip_grad_norm_(learner.parameters, GRADIENT))
    if not math.isfinite(steps.loss):
        norm = math.nan
    if math.isfinite(norm):
        optimizer.step()
    steps.steps += 1
    steps.grad_norm += norm
    steps.tokens += sum(len(b.ids) for b in batch)
    return norm, before


def _batch(new: Tensor, part: Sequence[Tokens], advantages: Tensor, fresh: bool) -> Batch:
    """What the loss of these sequences depends on."""

    def joined(values: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(values)).to(new.device)

    base = [s.base for s in part if s.base is not None]
    return Batch(
        new,
        new.detach() if fresh else joined([s.logprobs for s in part]),
        advantages,
        torch.tensor([len(s.sampled) for s in part], device=new.device),
        joined(base) if base else None,
    )
