"""The optimizer steps of one iteration, and the saved state from which a killed training job is
resumed: one file, replaced atomically."""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trace_bench.core.errors import UserError
from trace_bench.core.store import stable_seed, write_bytes
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import read_weights
from trace_bench.trainers.adapters import begin_with, restart
from trace_bench.trainers.course import in_groups, is_hinted
from trace_bench.trainers.grpo import Advantages, Mismatch, mismatch, token_weights
from trace_bench.trainers.model import Learner
from trace_bench.trainers.passes import Part, Passes, here, split
from trace_bench.trainers.settings import TrainerSettings
from trace_bench.trainers.tree import Tokens, build, parts

FILE = "state.pt"
_AGAIN = "the training is repeated from the stored rollouts"


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
    found: Advantages,
    settings: TrainerSettings,
    seed: int,
    told: Callable[[int, int], None] = lambda done, total: None,
    taught: Sequence[Sequence[Tokens]] = (),
    passes: Passes | None = None,
    shards: int = 1,
) -> Steps:
    """Runs all epochs and minibatches over an iteration's trajectories, each as its training
    sequences, the members of each group adjacent. A token weighs as if its trajectory were one
    sequence. Stops before a step whose gradient is not finite. `told`: is given before each step
    how many are done of how many. `taught`: each trajectory's sequences as the algorithm's teacher
    reads them; one without is not trained on. `passes`: computes the gradients of the parts of a
    minibatch (None: this process does), which is cut into `shards` of about as many tokens before
    memory cuts it further."""
    passes = passes or here(learner, settings)
    steps = Steps()
    started = time.perf_counter()
    usable = [bool(t) and len(s) > 0 for t, s in zip(found.trained, trajectories, strict=True)]
    algorithm = settings.algorithm
    if algorithm.taught:
        usable = [u and len(t) > 0 for u, t in zip(usable, taught, strict=True)]
    own = learner.rounded or bool(settings.hinted) or algorithm.truncate is not None
    sequences = [s for each in trajectories for s in each]
    owners = [i for i, each in enumerate(trajectories) for _ in each]
    rows: list[list[int]] = [[] for _ in trajectories]  # the places of each trajectory's sequences
    for row, owner in enumerate(owners):
        rows[owner].append(row)
    places = [row for row, owner in enumerate(owners) if usable[owner]]
    hinted = [is_hinted(owner, settings) for owner in owners]
    if not places:
        return steps
    if own and settings.minibatches > 1:  # else the first step has them all
        before = _before(learner, [sequences[i] for i in places], settings)
        _replace(sequences, places, before, hinted, steps)
    if algorithm.kl > 0:
        with learner.without_adapter():
            base = _before(learner, [sequences[i] for i in places], settings)
        for i, logprobs in zip(places, base, strict=True):
            sequences[i] = replace(sequences[i], base=logprobs)
    if algorithm.taught:
        lessons = [s for used, each in zip(usable, taught, strict=True) if used for s in each]
        for i, logprobs in zip(places, _before(learner, lessons, settings), strict=True):
            sequences[i] = replace(sequences[i], teacher=logprobs)
    every = list(minibatches(usable, settings, seed))
    for members in every:
        told(steps.steps, len(every))
        used = [row for i in members for row in rows[i]]
        batch = [sequences[row] for row in used]
        lengths = torch.tensor([sum(len(sequences[r].sampled) for r in rows[i]) for i in members])
        weights = token_weights(lengths, *algorithm.aggregation(settings))
        weighed = found.spread(members, lengths), weights
        first = steps.steps == 0
        fresh = first and own and settings.minibatches == 1
        norm, new = _step(
            learner, optimizer, batch, weighed, settings, steps, fresh, passes, shards
        )
        if fresh:
            _replace(sequences, used, new, hinted, steps)
        elif first and not own:
            old = np.concatenate([b.logprobs for b in batch])
            steps.mismatch = mismatch(torch.from_numpy(old), torch.from_numpy(np.concatenate(new)))
        if not math.isfinite(norm):
            break
    steps.seconds = time.perf_counter() - started
    return steps


def _before(
    learner: Learner, batch: Sequence[Tokens], settings: TrainerSettings
) -> list[np.ndarray]:
    """The learner's own log-probabilities of each sequence, as it is."""
    found: list[np.ndarray] = []
    with torch.no_grad():
        for part in parts(batch, settings.batch_tokens, learner.memory_budget):
            found += split(learner.logprobs(build(part)), part)
    return found


def _replace(
    sequences: list[Tokens],
    places: Sequence[int],
    own: Sequence[np.ndarray],
    hinted: Sequence[bool],
    steps: Steps,
) -> None:
    """Puts the learner's own log-probabilities before the first step in place of the sampler's, so
    that neither rounding nor a hint is taken for a change of the policy. What both are apart goes
    into `steps`, of rollouts without a hint."""
    alike = [n for n, i in enumerate(places) if not hinted[i]]
    if alike:
        sampler = np.concatenate([sequences[places[n]].logprobs for n in alike])
        found = np.concatenate([own[n] for n in alike])
        steps.mismatch = mismatch(torch.from_numpy(sampler), torch.from_numpy(found))
    for i, logprobs in zip(places, own, strict=True):
        sequences[i] = replace(sequences[i], logprobs=logprobs, reported=sequences[i].logprobs)


def minibatches(
    usable: Sequence[bool], settings: TrainerSettings, seed: int
) -> Iterator[list[int]]:
    """Indices of the usable trajectories in minibatches of whole groups, reshuffled each epoch."""
    places = in_groups(range(len(usable)), settings.group_size)
    groups = [[i for i in members if usable[i]] for members in places]
    groups = [g for g in groups if g]
    for epoch in range(settings.epochs):
        order = list(groups)
        random.Random(stable_seed(seed, epoch)).shuffle(order)
        parts = min(settings.minibatches, len(order))
        for part in range(parts):
            yield [i for g in order[part::parts] for i in g]


def _step(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Tokens],
    weighed: tuple[Tensor, Tensor],
    settings: TrainerSettings,
    steps: Steps,
    fresh: bool,
    passes: Passes,
    shards: int,
) -> tuple[float, list[np.ndarray]]:
    """One optimizer step on a minibatch; `weighed`: (advantages, weights) of its sampled tokens;
    `fresh`: the old policy is the learner as it is. Returns the norm of the gradient before
    clipping (NaN if the loss is NaN: clamping would turn that into a gradient of zero), and the
    log-probabilities of each sequence before the step."""
    spread, weights = weighed
    optimizer.zero_grad(set_to_none=True)
    before: list[np.ndarray] = []
    cut: list[Part] = []
    ends = 0
    for share in divided(batch, shards):
        for part in parts(share, settings.batch_tokens, learner.memory_budget):
            begins, ends = ends, ends + sum(len(b.sampled) for b in part)
            cut.append(Part(part, spread[begins:ends], weights[begins:ends], fresh))
    for own, passed in zip(cut, passes(cut), strict=True):
        count = len(own.advantages)
        steps.loss += passed.loss
        steps.clipped += passed.clipped * count
        steps.kl += passed.kl * count
        steps.weight += count
        before += passed.logprobs
    norm = float(torch.nn.utils.clip_grad_norm_(learner.parameters, settings.max_grad_norm))
    if not math.isfinite(steps.loss):
        norm = math.nan
    if math.isfinite(norm):
        optimizer.step()
    steps.steps += 1
    steps.grad_norm += norm
    steps.tokens += sum(len(b.ids) for b in batch)
    return norm, before


def divided(batch: Sequence[Tokens], shards: int) -> list[list[Tokens]]:
    """At most `shards` runs of neighbours, of about as many tokens each."""
    total, done = sum(len(s.ids) for s in batch), 0
    shares: list[list[Tokens]] = [[] for _ in range(shards)]
    for sequence in batch:
        shares[(done + len(sequence.ids) // 2) * shards // total].append(sequence)
        done += len(sequence.ids)
    return [share for share in shares if share]


@dataclass
class State:
    """The state after `iteration` iterations. `records`: their metrics. `perfect`: how many of the
    latest in a row had full reward in every group. `shown`: the hash of what a fine-tuning learns
    from; "" where it is not known. `weights`, `optimizer`: if read from disk."""

    identity: str
    iteration: int = 0
    perfect: int = 0
    finished: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    shown: str = ""
    weights: list[torch.Tensor] | None = None
    optimizer: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: Path, identity: str, log: Callable[[str], None]) -> State:
        """The state in the folder, or a new one. Where the state or its adapter is damaged, the
        training is repeated, which is logged: its rollouts are stored, so none is spent and the
        result is the same. Raises UserError for another job's state."""
        path = folder / FILE
        if not path.exists():
            return cls(identity)
        try:
            found = cls(**torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch documents no errors for a damaged file
            log(f"{path} cannot be read ({type(error).__name__}): {_AGAIN}")
            return cls(identity)
        if found.identity != identity:
            raise UserError(
                f"{path} belongs to a training job with other settings, tasks or seed. Change the "
                "setting `run_dir`, or remove the folder."
            )
        adapter = folder / f"{found.iteration:04d}"
        if found.finished or adapter.exists():
            try:
                read_weights(AdapterRef(adapter.name, str(adapter)))
            except UserError as error:
                log(f"{error.__cause__ or error}, in {adapter}: {_AGAIN}")
                return cls(identity)
        return found

    def save(self, folder: Path, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the file. A finished job keeps only its metrics; its adapter is stored apart."""
        data = {**vars(self), "weights": None, "optimizer": None}
        if not self.finished:
            data["weights"] = [p.detach().cpu() for p in learner.parameters]
            data["optimizer"] = optimizer.state_dict()
        buffer = io.BytesIO()
        torch.save(data, buffer)
        write_bytes(folder / FILE, buffer.getvalue())


def restore(
    state: State,
    learner: Learner,
    settings: TrainerSettings,
    seed: int,
    start: AdapterRef | None = None,
) -> torch.optim.Optimizer:
    """Loads the state into adapter and optimizer, or begins them: as `start`, if there is one."""
    optimizer = torch.optim.AdamW(
        learner.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    if state.weights is None or state.optimizer is None:
        restart(learner.layers, seed)
        if start is not None:
            begin_with(learner.layers, start, settings)
        return optimizer
    with torch.no_grad():
        for parameter, stored in zip(learner.parameters, state.weights, strict=True):
            parameter.copy_(stored)
    optimizer.load_state_dict(state.optimizer)
    return optimizer
