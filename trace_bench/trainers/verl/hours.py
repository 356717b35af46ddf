"""Hours and GPU-hours of a run whose trainer is verl, by `trainers.pace`."""

from __future__ import annotations

import math

from trace_bench.core.protocols import RunContext, Workload
from trace_bench.trainers.memory import shape_of
from trace_bench.trainers.pace import START, SWITCH, played, said, update_seconds
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.preflight import server_cache, server_gpus, training_cache


def hours(s: VerlSettings, run: RunContext, work: Workload) -> list[str]:
    """The lines of a dry run; none for a model of unknown sizes, or without GPUs."""
    shape, typical = shape_of(run.model), work.typical
    if shape is None or run.context is None or s.device == "cpu":
        return []
    ranks, size = s.gpus * s.nnodes, s.groups * s.group_size
    iterations = math.ceil(work.training / size)
    replicas = max(1, ranks // s.tensor_parallel)
    cache = training_cache(s, shape)
    one = played(shape, size, typical, replicas, s.tensor_parallel, cache, size)
    update = update_seconds(shape, size, typical, ranks, s.epochs)
    parts = {
        f"rollouts of {iterations} iterations, {one.live} live,": iterations * one.seconds,
        "their updates": iterations * (update + SWITCH),
        f"{work.trainings} start(s)": work.trainings * START,
    }
    gpus = 0
    if run.at_servers:
        gpus = server_gpus(s, shape, run.context)[2]
        room = server_cache(s, shape, max(gpus, 1))
        other = played(shape, work.others, typical, s.nnodes, max(gpus, 1), room, run.batch)
        parts[f"{work.others} other rollouts, {other.live} live,"] = other.seconds
    return said(parts, ranks + (0 if s.serving else gpus * s.nnodes))
