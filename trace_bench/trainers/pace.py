"""How long rollouts and updates take on GPUs: an estimate from a model's sizes and stated rates.

Reading and training cost arithmetic: two operations for each active parameter and token of a pass
(Kaplan et al. 2020, arXiv 2001.08361). Writing costs memory traffic: each step reads the weights
and the cache of all live episodes (Pope et al. 2022, arXiv 2211.05102). The rates are the vendor's
figures of an H100 SXM with 80 GB; the shares of them that are reached are assumed (some 40 % of the
operations is what large runs report: Chowdhery et al. 2022, arXiv 2204.02311). Nothing here was
measured on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trace_bench.core.protocols import Typical
from trace_bench.trainers.memory import Sizes

OPERATIONS, BANDWIDTH = 989e12, 3.35e12  # of one GPU: bf16 operations and bytes in a second
READ, WRITE = 0.4, 0.5  # shares of them that are reached when reading and writing
TRAIN, TRAIN_EXPERTS = 0.3, 0.15  # and when training, dense and with experts
STEP = 0.005  # seconds of a step beside memory traffic: kernels, LoRA, sampling
CACHED = 0.9  # of a turn's prompt that a prefix cache holds
USER = 60  # tokens of a user's turn, by a model of the same size
OLD, EPOCH = 2, 6  # operations for a parameter and token: old probabilities; there, again, back
SWITCH, START = 30.0, 300.0  # seconds: from sampling to training and back; a start of the trainer


@dataclass(frozen=True)
class Played:
    """`seconds` of so many rollouts, and how many are live at once."""

    seconds: float
    live: int


def active(shape: Sizes) -> float:
    """Parameters that one token passes through."""
    idle = shape.experts - shape.active if shape.experts else 0
    return shape.parameters - shape.layers * idle * 3 * shape.hidden * shape.inner


def step_seconds(shape: Sizes, live: int, tokens: float, gpus: int) -> float:
    """Of one token of each of the live episodes on a server of so many GPUs; `tokens`: of one
    episode. Of experts those are read that some episode chose."""
    share = 1.0
    if shape.experts:
        share = 1 - (1 - shape.active / shape.experts) ** live
    rest = shape.parameters - (shape.parameters - active(shape)) * (1 - share)
    moved = 2 * rest + live * tokens * shape.kv_token
    return STEP + moved / (gpus * BANDWIDTH * WRITE)


def played(
    shape: Sizes, rollouts: int, typical: Typical, servers: int, gpus: int, cache: float, most: int
) -> Played:
    """Rollouts on so many servers of `gpus` GPUs with `cache` bytes of keys and values each;
    `most`: live episodes in all. They run in waves, as long as an episode."""
    tokens = typical.prompt + typical.completion
    fits = max(1, int(cache // (tokens * shape.kv_token)))
    each = max(1, min(fits, math.ceil(min(most, rollouts) / servers)))
    step = step_seconds(shape, each, tokens, gpus)
    fresh = each * (1 - CACHED) * typical.prompt
    reading = fresh * 2 * active(shape) / (gpus * OPERATIONS * READ)
    turn = typical.completion * step + reading
    episode = typical.turns * turn + typical.user * USER * step
    return Played(math.ceil(rollouts / (each * servers)) * episode, each * servers)


def update_seconds(shape: Sizes, rollouts: int, typical: Typical, gpus: int, epochs: int) -> float:
    """Of the optimizer steps of one iteration, each episode one sequence."""
    tokens = rollouts * (typical.prompt + typical.completion)
    share = TRAIN_EXPERTS if shape.experts else TRAIN
    return tokens * (OLD + EPOCH * epochs) * active(shape) / (gpus * OPERATIONS * share)


def said(parts: Mapping[str, float], gpus: int) -> list[str]:
    """The hours and GPU-hours as lines, with what they assume. `parts`: seconds by what."""
    total = sum(parts.values()) / 3600
    each = ", ".join(f"{name} {seconds / 3600:.1f}" for name, seconds in parts.items())
    return [
        f"about {total:.1f} hours, {total * gpus:.0f} GPU-hours on {gpus} GPU(s) ({each})",
        f"  assumed, not measured: H100 (989 Tops, 3.35 TB/s), of which writing reaches {WRITE:.0%}"
        f", reading {READ:.0%}, training {TRAIN:.0%} (with experts {TRAIN_EXPERTS:.0%}); "
        f"{CACHED:.0%} of prompts cached; {SWITCH:.0f} s an iteration between sampling and "
        f"training; {START:.0f} s a start; the environments' own time is not in it",
    ]
