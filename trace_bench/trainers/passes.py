"""The passes of an optimizer step over the parts of its batch, which give the step's gradient: in
this process, or side by side in several.

A part's gradient is computed alone and added to those before it, in the order of the parts. So the
sum is the same to the byte by however many processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import Batch
from trace_bench.trainers.grpo import policy_loss
from trace_bench.trainers.model import Learner
from trace_bench.trainers.settings import TrainerSettings
from trace_bench.trainers.tree import Tokens, build

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Part:
    """Sequences of a minibatch with the advantages and weights [sampled tokens] of their tokens.
    `fresh`: the old policy is the learner as it is."""

    sequences: Sequence[Tokens]
    advantages: Tensor
    weights: Tensor
    fresh: bool


@dataclass(frozen=True)
class Passed:
    """The part's share of the loss, means over its sampled tokens, and the log-probabilities of
    each of its sequences before the step."""

    loss: float
    clipped: float
    kl: float
    logprobs: list[np.ndarray]


Passes = Callable[[Sequence[Part]], Iterator[Passed]]
"""Adds the gradients of all parts to those of the learner's parameters."""


def one(learner: Learner, part: Part, settings: TrainerSettings) -> Passed:
    """Adds the gradient of the part's loss to those of the learner's parameters."""
    new = learner.logprobs(build(part.sequences))
    advantages, weights = (each.to(learner.device) for each in (part.advantages, part.weights))
    loss = policy_loss(_batch(new, part, advantages), weights, settings)
    torch.autograd.backward(loss.loss)
    own = split(new, part.sequences)
    return Passed(float(loss.loss.detach()), float(loss.clipped), float(loss.kl), own)


def here(learner: Learner, settings: TrainerSettings) -> Passes:
    """In this process, one after the other."""
    return lambda parts: (one(learner, part, settings) for part in parts)


@contextmanager
def passing(
    learner: Learner, settings: TrainerSettings, workers: int, log: Callable[[str], None]
) -> Iterator[Passes]:
    """`Passes` by `workers` forks of this process as long as the block lasts; by this process if
    that is 1. Where there is a GPU, autograd works in a fork only if it never did in the process
    that forked: else this one computes all, which is logged. Raises UserError for a fork that ends
    by itself, and RuntimeError with the traceback of what a fork raises."""
    if workers == 1:
        yield here(learner, settings)
        return
    _ = learner.memory_budget  # measured once for all
    forks: list[_Fork] = []
    try:
        for _ in range(workers):
            forks.append(_Fork(learner, settings))
        able = [fork.hear()[0] for fork in forks]
        if not all(able):
            log("policy.workers: no fork can compute gradients here, so one process does")
            yield here(learner, settings)
        else:
            yield lambda parts: _by(forks, learner, parts)
    finally:
        for fork in forks:
            fork.end()


def split(logprobs: Tensor, sequences: Sequence[Tokens]) -> list[np.ndarray]:
    ends = np.cumsum([len(s.sampled) for s in sequences])[:-1]
    return np.split(logprobs.detach().cpu().numpy(), ends)


def _batch(new: Tensor, part: Part, advantages: Tensor) -> Batch:
    """What the loss of these sequences depends on."""

    def joined(values: Sequence[np.ndarray | None]) -> Tensor | None:
        there = [v for v in values if v is not None]
        return torch.from_numpy(np.concatenate(there)).to(new.device) if there else None

    some = part.sequences
    old = new.detach() if part.fresh else joined([s.logprobs for s in some])
    assert old is not None
    return Batch(
        new,
        old,
        advantages,
        torch.tensor([len(s.sampled) for s in some], device=new.device),
        joined([s.logprobs if s.reported is None else s.reported for s in some]),
        joined([s.base for s in some]),
        joined([s.teacher for s in some]),
    )


def _by(forks: Sequence[_Fork], learner: Learner, parts: Sequence[Part]) -> Iterator[Passed]:
    weights = [p.detach() for p in learner.parameters]
    for n, fork in enumerate(forks[: len(parts)]):
        fork.ask(weights, parts[n :: len(forks)])
    for n in range(len(parts)):
        passed, gradients = forks[n % len(forks)].hear()
        for parameter, gradient in zip(learner.parameters, gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            elif gradient is not None:
                parameter.grad += gradient
        yield passed


class _Fork:
    """A process that has the learner and computes gradients with weights that it is given."""

    def __init__(self, learner: Learner, settings: TrainerSettings) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._pipe, os.getpid(), learner, settings)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, weights: Sequence[Tensor], parts: Sequence[Part]) -> None:
        with suppress(BrokenPipeError):  # how it ended is said when it is heard
            self._pipe.send_bytes(pickle.dumps((weights, parts)))

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def hear(self) -> Any:
        """[whether it can compute gradients] at first, then [Passed, gradients] for each part."""
        try:
            kind, *told = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            raise UserError(
                f"a process of policy.workers ended by itself ({self._process.exitcode}; -9: "
                "killed, perhaps for its memory). Run the same command again, or lower "
                "`policy.workers`."
            ) from None
        if kind == "refused":
            raise UserError(told[0])
        if kind == "raised":
            raise RuntimeError(f"in a process of policy.workers:\n{told[0]}")
        return told


def _work(
    pipe: Connection, other: Connection, parent: int, learner: Learner, settings: TrainerSettings
) -> None:
    """What a fork does, until the process that forked it ends. An interrupt is that one's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other.close()
    if sys.platform.startswith("linux"):  # else a run that is killed leaves its folder locked
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    told: list[tuple[Any, ...]] = [("ready", _has_autograd())]
    with suppress(EOFError, BrokenPipeError):
        while os.getppid() == parent:
            for each in told:
                pipe.send_bytes(pickle.dumps(each))
            weights, parts = pickle.loads(pipe.recv_bytes())
            with torch.no_grad():
                for parameter, weight in zip(learner.parameters, weights, strict=True):
                    parameter.copy_(weight)
            told = [_gradient(learner, part, settings) for part in parts]


def _gradient(learner: Learner, part: Part, settings: TrainerSettings) -> tuple[Any, ...]:
    for parameter in learner.parameters:
        parameter.grad = None
    try:
        passed = one(learner, part, settings)
    except UserError as error:
        return "refused", str(error)
    except Exception:
        return "raised", traceback.format_exc()
    return "passed", passed, [p.grad for p in learner.parameters]


def _has_autograd() -> bool:
    try:
        torch.autograd.backward(torch.ones(1, requires_grad=True))
    except RuntimeError:
        return False
    return True
