"""What training needs of machines and time: the formulas against what torch allocates, and
what a dry run says of the shipped layouts for GPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import verl_job as jobs
from pages import ROOT
from passes import lora_pass, needed, peak, plain_model

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, Typical
from trace_bench.envs.tau2.suite import Tau2Suite
from trace_bench.sandbox.build import COMPILER, DEFAULT_BASE, base_of
from trace_bench.settings.choices import conf_dir
from trace_bench.settings.compose import compose
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.grpo import Mismatch
from trace_bench.trainers.local import LocalTrainer, TrainerSettings
from trace_bench.trainers.loop import of_sampler
from trace_bench.trainers.memory import SHAPES, shape_of
from trace_bench.trainers.verl import machines
from trace_bench.trainers.verl.compose import overrides
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.trainer import VerlTrainer

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
DENSE, EXPERTS = SHAPES["Qwen3-8B"], SHAPES["Qwen3-30B-A3B"]


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-8B", 8.19), ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.53),
     ("Qwen2.5-7B-Instruct", 7.62), ("Qwen3-0.6B", 0.596)],
)  # fmt: skip
def test_the_families_have_the_parameters_of_their_names(name: str, billions: float) -> None:
    shape = shape_of(name)
    assert shape is not None and shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_name_or_a_layer_is_not_taken_for_another() -> None:
    assert shape_of("Qwen/Qwen3-3") is None and shape_of("org/unknown-8B") is None
    assert EXPERTS.kv_token == 98304
    assert DENSE.lora(8, ["q_proj", "nowhere"]) == 36 * 8 * (4096 + 32 * 128)


@pytest.mark.parametrize("targets", [LINEAR, LINEAR[:4]])
def test_a_miniatures_memory_is_within_15_percent(tmp_path: Path, targets: tuple[str, ...]) -> None:
    widths: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 384}
    shape, plain = plain_model(tmp_path, num_hidden_layers=3, **widths)
    held = sum(p.nbytes for p in plain.parameters())
    assert 2 * shape.parameters == pytest.approx(held, rel=0.15)
    ids = torch.randint(0, 600, (1, 256))
    with torch.no_grad():
        cache = plain(input_ids=ids, use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert 256 * shape.kv_token == pytest.approx(kept, rel=0.15)
    lora, work = lora_pass(plain, targets, ids)
    assert needed(shape, targets, 256) == pytest.approx(peak(work), rel=0.15)
    optimizer = torch.optim.AdamW(lora)
    optimizer.step()
    moments = [v for s in optimizer.state.values() for n, v in s.items() if n != "step"]
    tensors = [*lora, *(p.grad for p in lora if p.grad is not None), *moments]
    assert 4 * 2 * shape.lora(8, targets) == sum(t.nbytes for t in tensors)


# -- the shipped layouts --------------------------------------------------------------------------


def missing(*words: str) -> tuple[str, str]:
    """(what a dry run says of the GPUs, what cannot fit)."""
    chosen = compose(words)
    billions = 8.2 if "8B" in chosen.model.name else 30.5
    lines, lacking = machines.machines(jobs.verl_settings(chosen), jobs.facts(chosen), billions)
    of_gpus = [f for f in lacking if any(w in f for w in ("GPU", "vLLM in training", "vLLM serve"))]
    here = ("verl", "this machine", "device")  # what this machine lacks
    return "\n".join(lines), "\n".join(f for f in of_gpus if not any(w in f for w in here))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_shipped_layouts_fit(name: str, tmp_path: Path) -> None:
    assert sorted(LAYOUTS) == sorted(p.stem for p in (conf_dir() / "trainer").glob("verl_*.yaml"))
    said, cannot = missing(*LAYOUTS[name])
    assert not cannot
    places, size = ("0", 1) if name == "verl_8b" else ("4,5,6,7", 4)
    assert f"VLLM_USE_FLASHINFER_SAMPLER=0 CUDA_VISIBLE_DEVICES={places} python -m vllm" in said
    told = "q_proj k_proj v_proj o_proj " + ("gate_proj" if name == "verl_8b" else "qkv_proj --")
    assert f"--max-lora-rank 16 --lora-target-modules {told}" in said
    assert f"--tensor-parallel-size {size} " in said and "a GPU in training: " in said
    assert "host memory of a machine: " in said and "disk: " in said
    settings = jobs.verl_settings(compose(LAYOUTS[name]))
    lines = overrides(jobs.spec(trainer=settings), tmp_path)
    assert "actor_rollout_ref.model.use_fused_kernels=true" in lines
    assert "algorithm.rollout_correction.rollout_is_threshold=2.0" in lines
    assert "actor_rollout_ref.model.use_remove_padding=false" in lines
    assert "actor_rollout_ref.actor.use_dynamic_bsz=false" in lines


def test_a_pass_has_no_more_tokens_than_its_limit_with_padding() -> None:
    for ranks, groups, size, most in ((4, 8, 16, 4), (1, 4, 16, 16), (2, 4, 8, 4), (16, 8, 16, 1)):
        for context in (1024, 16384, 32000, 40000):
            s = VerlSettings(gpus=ranks, groups=groups, group_size=size, batch_tokens=32768)
            rows = s.rows(context)
            assert rows * context <= max(32768, context) and 1 <= rows <= most
            assert groups * size // ranks % rows == 0


LAYERS, HIDDEN, QUERIES, KEYS, INNER, EXPERT_COUNT, CHOSEN, VOCAB = (
    48, 2048, 32 * 128, 4 * 128, 768, 128, 8, 151936,
)  # fmt: skip
PROJECTIONS, EXPERT = 2 * HIDDEN * (QUERIES + KEYS), 3 * HIDDEN * INNER
ROUTER, ENDS = HIDDEN * EXPERT_COUNT, VOCAB * HIDDEN
LAYER = PROJECTIONS + EXPERT_COUNT * EXPERT + ROUTER
WHOLE = LAYERS * LAYER + 2 * ENDS
ACTIVE = LAYERS * (PROJECTIONS + CHOSEN * EXPERT + ROUTER) + ENDS
"""Of Qwen3-30B-A3B, by hand: 30.5 billion parameters, of which a token is multiplied by 3."""


def test_the_papers_memory_by_hand() -> None:
    """One row of 32,000 tokens at a time. float32 weights on four GPUs; head, embeddings and two
    layers in bf16; a bf16 vector at each layer; one layer computed again; 512 rows of logits."""
    again = 10 * HIDDEN + 14 * QUERIES + 4 * KEYS + CHOSEN * (14 * INNER + 4 * HIDDEN)
    activations = 32000 * (2 * HIDDEN * LAYERS + again)
    gathered, logits = 2 * 2 * ENDS + 2 * 2 * LAYER, 512 * VOCAB * (2 + 16)
    by_hand = (4 * WHOLE / 4 + gathered + activations + logits + 3e9) / 1e9
    said = re.search(r"a GPU in training: (\d+) GB", missing(TAU2)[0])
    assert said is not None and float(said[1]) == pytest.approx(by_hand, rel=0.15)
    assert 50 < by_hand < 55


def test_the_papers_hours_by_hand() -> None:
    """40 iterations of 128 episodes, which grow evenly from the 4,600 tokens of policy and tools:
    with 8,000 in the mean to 11,400 at the last of 14 turns."""
    final, written = 2 * 8000 - 4600 + 120, 14 * 120 + 7 * 60
    pair, kv = 4 * LAYERS * QUERIES, 2 * 2 * LAYERS * KEYS  # operations, bytes

    # Forward before and in the step, again at the checkpoints, and back through frozen weights: 4
    # times 2 operations; attention, half a square without padding: 3 times, and back 2.5.
    learned = 128 * (8 * ACTIVE * final + 5.5 * pair * final**2 / 2) / (4 * 989e12 * 0.15)
    assert 100 < learned < 300

    # Two vLLMs of two GPUs at 60 %: 29 GB beside the weights hold 42 of 64 live episodes.
    held = ((2 * (48e9 - 3e9) - 2 * WHOLE) / kv - 4600) / (final - 4600)
    assert 41 < held < 43
    traffic = 2 * (WHOLE - ENDS) * 0.94 + held * 8120 * kv  # 42 of them choose 94 % of the experts
    writing = 64 / held * written * (0.005 + traffic / (2 * 3.35e12 * 0.5))
    fresh = final - 4600 + (1 - held / 64) * 14 * (8000 - 4600)
    reading = 64 * fresh * (2 * ACTIVE + pair * 8000) / (2 * 989e12 * 0.4)

    # All others on four GPUs, 64 at a time, which fit: 98 % of the experts.
    traffic = 2 * (WHOLE - ENDS) * 0.98 + 64 * 8120 * kv
    each = written * (0.005 + traffic / (4 * 3.35e12 * 0.5)) / 64
    each += (final - 4600) * (2 * ACTIVE + pair * 8000) / (4 * 989e12 * 0.4)

    seconds = 40 * (learned + writing + reading + 30) + 8 * 300 + 2660 * each
    chosen = compose([TAU2])
    trainer = VerlTrainer(jobs.verl_settings(chosen), jobs.facts(chosen))
    steps, warning, total, assumed = trainer.outlook(8, 5120, 2660, Tau2Suite.typical)
    said = re.search(r"about ([\d.]+) hours, (\d+) GPU-hours on 8 GPU", total)
    assert said is not None and float(said[1]) == pytest.approx(seconds / 3600, rel=0.15)
    assert int(said[2]) == pytest.approx(8 * seconds / 3600, rel=0.15)
    assert f"{final} tokens, 4600 of them common" in assumed
    assert f"{int(held)} of its 64 live" in assumed
    assert "8 adapter(s) of 640 rollouts: 5 optimizer step(s)" in steps and "5e-05" in warning
    assert trainer.outlook(8, 5120, 2660, None) == [steps, warning]


def test_padding_and_longer_episodes_cost_hours() -> None:
    def seconds(rows: int, **changes: Any) -> float:
        typical = replace(Typical(14, 8000, 120, 7, 4600), **changes)
        return machines.update_seconds(VerlSettings(), DENSE, typical, rows)

    assert seconds(2) > 1.3 * seconds(1) and seconds(8) > seconds(2)
    assert seconds(1, prompt=16000) > 2.5 * seconds(1), "attention grows with the square"
    few, many = (
        machines.play_seconds(DENSE, Typical(14, 8000, 120, 7), 1, 0.5, n) for n in (1, 64)
    )
    assert few[1] == 1 < many[1] < 64 and few[0] > many[0], "many share the reading of weights"


@pytest.mark.parametrize(
    ("changes", "steps", "rate", "warned"),
    [({}, 20, "0.0017", False), ({"decay": "constant", "learning_rate": 1e-5}, 20, "1e-05", False),
     ({"learning_rate": 1e-5}, 20, "5.5e-06", False),
     ({"learning_rate": 1e-5, "epochs": 1}, 10, "5.5e-06", True)],
)  # fmt: skip
def test_optimizer_steps_follow_from_the_recipe(
    changes: dict[str, Any], steps: int, rate: str, warned: bool
) -> None:
    said = LocalTrainer(TrainerSettings(**changes), RunContext()).outlook(2, 640, 0, None)
    assert f"2 adapter(s) of 320 rollouts: {steps} optimizer step(s)" in said[0]
    assert f"mean rate of {rate} (10 iteration(s) of 32" in said[0]
    assert len(said) == 1 + warned


FLAGS = [
    ("trainer.rank=24", "--max-lora-rank 32 "),
    ("trainer.rank=512", "--max-lora-rank 512 "),
    ("model.name=Qwen/Qwen3-30B-A3B", "--tool-call-parser hermes"),
    ("model.name=Qwen/Qwen3-Coder-30B-A3B-Instruct", "--tool-call-parser qwen3_coder"),
]


@pytest.mark.parametrize(("change", "said"), FLAGS)
def test_the_servers_command_follows_the_settings(change: str, said: str) -> None:
    assert said in missing(TAU2, change)[0]


TOO_LARGE = [
    (["trainer.gpus=8"], "node_gpus=8 leave the agent's server 0 GPU"),
    (["trainer.gpus=1", "trainer.tensor_parallel=1"], r"training needs \d+ GB of each GPU"),
    (["trainer.rank=513"], "vLLM serves adapters up to rank 512: lower trainer.rank=513"),
    (["trainer.gpu_memory=0.4"], "vLLM in training cannot hold one episode of 32000 tokens"),
]


@pytest.mark.parametrize(("changes", "why"), TOO_LARGE)
def test_what_cannot_fit_is_refused_with_what_would(changes: list[str], why: str) -> None:
    cannot = missing(TAU2, *changes)[1]
    assert re.search(why, cannot), cannot


def test_a_layout_for_experts_that_have_no_adapter_is_refused() -> None:
    chosen = compose([TAU2, "trainer.target_modules=[q_proj,up_proj]"])
    _, lacking = machines.machines(jobs.verl_settings(chosen), jobs.facts(chosen), 30.5)
    assert any(line.startswith("trainer.target_modules has up_proj, ") for line in lacking)


def test_the_correction_on_gpus_may_be_changed(tmp_path: Path) -> None:
    def correction(**changes: Any) -> list[str]:
        lines = overrides(jobs.spec(trainer=VerlSettings(**changes)), tmp_path)
        return [line.partition("correction.")[2] for line in lines if "rollout_correction" in line]

    assert correction(device="cpu") == []
    assert correction() == ["rollout_is=token", "rollout_is_threshold=2.0"]
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


@pytest.mark.parametrize(
    ("mean", "limit", "stops"),
    [(0.09, 0.0, False), (0.11, 0.0, True), (0.49, 0.05, False), (0.51, 0.05, True),
     (float("nan"), 0.05, True)],
)  # fmt: skip
def test_a_sampler_far_from_the_trainer_stops_a_run(mean: float, limit: float, stops: bool) -> None:
    said: list[str] = []
    lab: Any = SimpleNamespace(log=said.append)
    if stops:
        with pytest.raises(UserError, match=r"^it: sampler and trainer differ.*which no rounding"):
            of_sampler("it", Mismatch(mean, mean, 0.0), limit, lab)
    else:
        assert of_sampler("it", Mismatch(mean, mean, 0.0), limit, lab)["logprob_alarm"]
        assert said[0].startswith("warning: it: sampler and trainer differ")
