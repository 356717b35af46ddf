"""verl's stock vLLM rollout, as on a GPU, on a CPU: in the environment of verl_vllm_env.sh.

tests/trainers/verl_vllm_env.sh DIR       # once; several GB
TRACE_BENCH_VERL_VLLM=DIR/bin/python pytest -m verl tests/trainers/test_verl_vllm.py
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import verl_job as jobs

PYTHON = os.environ.get("TRACE_BENCH_VERL_VLLM")
pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(PYTHON is None, reason="TRACE_BENCH_VERL_VLLM names no interpreter"),
]
ROLLOUT = "actor_rollout_ref.rollout"
STOCK = [
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.enforce_eager=true",
    f"{ROLLOUT}.dtype=float32",
    f"+{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode=false",
]


def test_the_adapter_travels_to_vllm(tmp_path: Path) -> None:
    """Two iterations: the second one's rollouts are made by vLLM with the adapter that the first
    one trained, and their log-probabilities are the trainer's."""
    assert PYTHON is not None
    lines = ",".join(f'"{line}"' for line in STOCK)
    command = [PYTHON, "-m", "trace_bench", *jobs.CPU, "budget=64", "evaluation.limit=4"]
    command += ["checkpoints=[]", "trainer.restarts=0", f"run_dir={tmp_path / 'run'}"]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [*command, f"trainer.verl=[{lines}]"], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert jobs.once_each(tmp_path / "run") == {f"train/grpo/iter{i:04d}": 32 for i in range(2)}
    first, second = jobs.metrics(tmp_path / "run")
    assert first["failures"] == second["failures"] == first["inexact"] == second["inexact"] == 0
    assert max(m["logprob_difference_mean"] for m in (first, second)) < 1e-5
    assert second["kl"] is not None and first["grad_norm"] > 0
