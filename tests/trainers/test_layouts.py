"""The shipped layouts for GPUs: they compose, and the image has what they need."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verl_job as jobs
from pages import ROOT

from trace_bench.core.errors import UserError
from trace_bench.sandbox.build import COMPILER, DEFAULT_BASE, base_of
from trace_bench.settings.choices import conf_dir
from trace_bench.settings.compose import compose
from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import Mismatch
from trace_bench.trainers.record import of_sampler
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl import machines, preflight
from trace_bench.trainers.verl.compose import overrides

TAU2 = "experiment=paper_tau2"
SERVERS = "policy.base_url=[http://node1:8000/v1,http://node2:8000/v1]"
LAYOUTS = {
    "verl_8b": [
        *(TAU2, "model.name=Qwen/Qwen3-8B", "trainer=verl_8b"),
        *("policy.context=16384", "policy.batch=8"),
    ],
    "verl_30b": [TAU2],
    "verl_30b_nodes": [
        TAU2, "trainer=verl_30b_nodes", "trainer.ray_address=node1:6379", SERVERS,
    ],
}  # fmt: skip


def test_every_layout_is_tried() -> None:
    assert sorted(LAYOUTS) == sorted(p.stem for p in (conf_dir() / "trainer").glob("verl_*.yaml"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_gpu_needs_is_set(name: str, tmp_path: Path) -> None:
    settings = jobs.verl_settings(compose(LAYOUTS[name]))
    given = overrides(jobs.spec(trainer=settings), tmp_path)
    assert "actor_rollout_ref.model.use_fused_kernels=true" in given
    assert "algorithm.rollout_correction.rollout_is='token'" in given
    assert "algorithm.rollout_correction.rollout_is_threshold=2.0" in given
    assert not settings.flash_attention
    assert "actor_rollout_ref.model.use_remove_padding=false" in given
    preflight._shape(settings)


def missing(*given: str) -> tuple[str, str]:
    """(what a dry run says of the GPUs, what cannot fit)."""
    chosen = compose([*given])
    own = jobs.verl_settings(chosen)
    billions = 8.2 if "8B" in chosen.model.name else 30.5
    lines, found = machines.machines(own, jobs.facts(chosen), billions)
    here = [f for f in found if any(w in f for w in ("GPU", "vLLM in training", "vLLM serves"))]
    here = [f for f in here if "verl" not in f and "this machine" not in f and "device" not in f]
    return "\n".join(lines), "\n".join(here)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_shipped_layouts_fit(name: str) -> None:
    said, cannot = missing(*LAYOUTS[name])
    assert not cannot
    places, size = ("0", 1) if name == "verl_8b" else ("4,5,6,7", 4)
    assert f"CUDA_VISIBLE_DEVICES={places} python -m vllm" in said
    told = "q_proj k_proj v_proj o_proj " + ("gate_proj" if name == "verl_8b" else "qkv_proj --")
    assert f"--max-lora-rank 16 --lora-target-modules {told}" in said
    assert "VLLM_USE_FLASHINFER_SAMPLER=0 CUDA_VISIBLE_DEVICES" in said
    assert f"--tensor-parallel-size {size} " in said and "a GPU in training: " in said
    assert "host memory of a machine: " in said and "disk: " in said


@pytest.mark.parametrize(("rank", "served"), [(1, "1"), (24, "32"), (200, "256"), (512, "512")])
def test_vllm_takes_some_ranks_only(rank: int, served: str) -> None:
    said, _ = missing(TAU2, f"trainer.rank={rank}")
    assert f"--max-lora-rank {served} " in said


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("Qwen/Qwen3-30B-A3B", "hermes"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder"),
    ],
)
def test_the_servers_command_names_the_parser_of_what_the_model_writes(
    name: str, parser: str
) -> None:
    said, _ = missing(TAU2, f"model.name={name}")
    assert f"--tool-call-parser {parser}\n" in f"{said}\n"


def test_a_layout_for_experts_that_have_no_adapter_is_refused() -> None:
    chosen = compose([TAU2, "trainer.target_modules=[q_proj,up_proj]"])
    _, found = machines.machines(jobs.verl_settings(chosen), jobs.facts(chosen), 30.5)
    assert any(line.startswith("trainer.target_modules has up_proj, ") for line in found)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["trainer.gpus=8"], "node_gpus=8 leave 0: lower trainer.gpus to 4, or let both share"),
        (["trainer.gpus=1", "trainer.tensor_parallel=1"], r"training needs \d+ GB of each GPU"),
        (["trainer.rank=513"], "vLLM serves adapters up to rank 512: lower trainer.rank=513"),
        (["trainer.gpu_memory=0.4"], "vLLM in training cannot hold one episode of 32000 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_would(changes: list[str], why: str) -> None:
    _, cannot = missing(TAU2, *changes)
    assert re.search(why, cannot), cannot


def test_the_correction_is_the_algorithms_where_it_says_so(tmp_path: Path) -> None:
    def correction(**changes: Any) -> list[str]:
        given = overrides(jobs.spec(trainer=VerlSettings(**changes)), tmp_path)
        return [line.partition("correction.")[2] for line in given if "rollout_correction" in line]

    bound = Algorithm(truncate=5.0)
    assert correction(device="cpu") == []
    assert correction(device="cpu", algorithm=bound)[1] == "rollout_is_threshold=5.0"
    assert correction(algorithm=bound)[1] == "rollout_is_threshold=5.0"
    off = "algorithm.rollout_correction.rollout_is=null"
    assert correction(verl=(off,))[-1] == "rollout_is=null", "the last one counts"


def test_the_image_has_what_the_layouts_need() -> None:
    """vLLM's kernels are Triton's, which compiles with a C compiler and Python's headers."""
    dockerfile = (ROOT / "containers/verl/Dockerfile").read_text()
    assert "slim" not in base_of("verl") and base_of("base") == DEFAULT_BASE
    assert re.search(r"^RUN cc --version && test -f .*Python\.h", dockerfile, re.MULTILINE)
    assert COMPILER[0] == "gcc" and "python3-dev" in COMPILER
    pins = (ROOT / "containers/verl/requirements.txt").read_text()
    for name in ("vllm", "triton", "verl"):
        assert re.search(rf"^{name}==", pins, re.MULTILINE), name
    flash = re.search(r"^flash[-_]attn", pins, re.MULTILINE)
    for chosen in LAYOUTS.values():
        assert flash or not jobs.verl_settings(compose(chosen)).flash_attention


def test_without_a_compiler_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    preflight._compiler(VerlSettings(device="cpu"))
    preflight._compiler(VerlSettings(ray_address="node1:6379"))
    with pytest.raises(UserError, match=r"a C compiler \(gcc\) is not here"):
        preflight._compiler(VerlSettings())
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setattr(preflight.sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"none/Python\.h is not here"):
        preflight._compiler(VerlSettings())


@pytest.mark.parametrize(
    ("mean", "limit", "stops"),
    [(0.09, 0.0, False), (0.11, 0.0, True), (0.49, 0.05, False), (0.51, 0.05, True),
     (float("nan"), 0.05, True)],
)  # fmt: skip
def test_a_sampler_far_from_the_trainer_stops_the_run(
    mean: float, limit: float, stops: bool
) -> None:
    said: list[str] = []
    lab: Any = SimpleNamespace(log=said.append)
    if stops:
        with pytest.raises(UserError, match=r"^it: sampler and trainer differ.*which no rounding"):
            of_sampler("it", Mismatch(mean, mean, 0.0), limit, lab)
    else:
        assert of_sampler("it", Mismatch(mean, mean, 0.0), limit, lab)["logprob_alarm"]
        assert said[0].startswith("warning: it: sampler and trainer differ")
