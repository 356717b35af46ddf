"""The passes of an optimizer step over the parts of its batch, which give the step's gradient: in
this process, or side by side in several.

A part's gradient is computed alone and added to those before it, in the order of the parts. So the
sum is the same to the byte by however many processes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
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


Passes = Callable[[Learner, Sequence[Part], TrainerSettings], Iterator[Passed]]
"""Adds the gradients of all parts to those of the learner's parameters."""


def one(learner: Learner, part: Part, settings: TrainerSettings) -> Passed:
    new = learner.logprobs(build(part.sequences))
    advantages, weights = (each.to(learner.device) for each in (part.advantages, part.weights))
    loss = policy_loss(_batch(new, part, advantages), weights, settings)
    torch.autograd.backward(loss.loss)
    own = split(new, part.sequences)
    return Passed(float(loss.loss.detach()), float(loss.clipped), float(loss.kl), own)


def here(learner: Learner, parts: Sequence[Part], settings: TrainerSettings) -> Iterator[Passed]:
    """`Passes` in this process, one after the other."""
    for part in parts:
        yield one(learner, part, settings)


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


class Forks:
    """`Passes` by `count` forks of this process, which stay until it ends. This one leaves all
    gradients to them: where torch finds a GPU, autograd works in a fork only if it never did in the
    process that forked.
    `learner_of`: the learner of a model, in a fork: the one that was there at the fork, or another
    that it then loads."""

    def __init__(self, count: int, learner_of: Callable[[str], Learner]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes, self._processes = list[Connection](), list[BaseProcess]()
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, [*self._pipes, ours], learner_of), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.end = weakref.finalize(self, _end, self._pipes, self._processes)

    def __call__(
        self, learner: Learner, parts: Sequence[Part], settings: TrainerSettings
    ) -> Iterator[Passed]:
        weights = [p.detach() for p in learner.parameters]
        count = len(self._pipes)
        for n, pipe in enumerate(self._pipes[: len(parts)]):
            with suppress(BrokenPipeError):  # what it says, or how it ended, is read below
                pipe.send_bytes(pickle.dumps((learner.path, weights, parts[n::count], settings)))
        for n in range(len(parts)):
            passed, gradients = self._told(n % count)
            for parameter, gradient in zip(learner.parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                elif gradient is not None:
                    parameter.grad += gradient
            yield passed

    def _told(self, fork: int) -> tuple[Passed, list[Tensor | None]]:
        try:
            kind, *told = pickle.loads(self._pipes[fork].recv_bytes())
        except (EOFError, OSError):
            process = self._processes[fork]
            process.join()
            raise UserError(
                f"a process of policy.workers ended by itself ({process.exitcode}; -9: killed, "
                "perhaps for its memory). Run the same command again, or lower `policy.workers`."
            ) from None
        if kind == "refused":
            raise UserError(told[0])
        if kind == "raised":
            raise RuntimeError(f"in a process of policy.workers:\n{told[0]}")
        return told[0], told[1]


def _end(pipes: Sequence[Connection], processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
        process.join()
    for pipe in pipes:
        pipe.close()


def _work(
    pipe: Connection, others: Sequence[Connection], learner_of: Callable[[str], Learner]
) -> None:
    """What a fork does, until the process that forked it is gone. An interrupt is that one's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()  # else it would still be heard when its owner is gone

    def tell(*what: Any) -> None:
        pipe.send_bytes(pickle.dumps(what))

    try:
        _check_autograd()
        while True:
            model, weights, parts, settings = pickle.loads(pipe.recv_bytes())
            learner = learner_of(model)
            with torch.no_grad():
                for parameter, weight in zip(learner.parameters, weights, strict=True):
                    parameter.copy_(weight)
            for part in parts:
                for parameter in learner.parameters:
                    parameter.grad = None
                passed = one(learner, part, settings)
                tell("passed", passed, [p.grad for p in learner.parameters])
    except (EOFError, OSError):
        return
    except UserError as error:
        tell("refused", str(error))
    except BaseException:
        tell("raised", traceback.format_exc())


def _check_autograd() -> None:
    try:
        torch.autograd.backward(torch.ones(1, requires_grad=True))
    except RuntimeError as error:
        raise UserError(
            "policy.workers: where there is a GPU, no fork of a process that computed gradients "
            "(here an earlier run did) can compute any. Start a new process, or set "
            "policy.workers=1 (the result is the same)."
        ) from error
