"""A real vLLM in a process of its own, with the interpreter that TRACE_BENCH_VLLM names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from trace_bench.serve.stand_in import POOLING, TURNS, VLLM, vllm

__all__ = ["POOLING", "TURNS", "VARIABLE", "serve"]

VARIABLE = VLLM


def serve(
    model: Path | str,
    log: Path,
    *,
    name: str = "tiny",
    context: int = 1024,
    cpu: bool = True,
    states: bool = False,
    more: Sequence[str] = ("--enforce-eager",),
) -> AbstractContextManager[str]:
    """The base address of a server of `model`; it is stopped at the end. `cpu`: the settings that
    the CPU build needs. `states`: it shows hidden states and makes no turns. `more`: of its
    settings."""
    how = (*(POOLING if states else TURNS), *more)
    return vllm(model, log, name=name, context=context, how=how, cpu=cpu)
