"""The first minutes on a GPU: what only a GPU can show, each line shown, FAILED or skipped.

    TRACE_BENCH_VLLM=<python with vllm> python tests/gpu/first.py [--only NAME ...] [--model MODEL]

MODEL is a folder or a hub name of a Qwen3-like model (default: the tiny agent). Without a GPU the
checks run on the CPU as far as that goes. Checks:
  mismatch   a sampler in bf16 against the trainer in float32, in log-probability (trainer.mismatch)
  memory     the peak of a training pass with LoRA against the forecast
  adapters   vLLM loads adapters while it serves; the base model beside them stays as it is
  graphs     with CUDA graphs vLLM answers as without them, adapters too
  sleep      after sleep (level 1) and wake, with tensor parallelism where there are two GPUs, an
             adapter answers as before
  weights    verl's weights reach its sampler: two iterations of trainer=verl, sampler and trainer
             compared
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.vllm_adapters import adapters_act, ask, first, pair
from passes import lora_pass, needed, peak, plain_model
from servers.vllm_process import VARIABLE, serve

from trace_bench.core.store import read_lines
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.llm.client import Endpoint
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.loading import DType, chosen
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import build, parts, stretches
from trace_bench.trainers.verl.settings import VerlSettings

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SHARE = ("--gpu-memory-utilization", "0.3")  # others may have the rest; unasked, vLLM takes 0.9
SAME = 0.05  # of a log-probability, in bf16 by other kernels
WITHIN = 0.15  # of the forecast


class Skip(Exception):
    """Why a check cannot be made here."""


def mismatch(model: str, folder: Path) -> str:
    suite = EmbeddedSuite()
    rounded = chosen("auto", 10**9, DEVICE) == torch.bfloat16  # this processor can
    numbers: DType = "bfloat16" if rounded else "float32"
    policy = LocalPolicy(model, batch=8, device=DEVICE, dtype=numbers)
    tasks = tuple(suite.tasks("train")[:8])
    played = Player(policy, Suites(suite)).play(
        EpisodeBatch(AgentSpec(model), tasks, tuple(range(8)))
    )
    learner = Learner(model, LINEAR, 16, 32.0, DEVICE, "float32")
    tokens = stretches(*played)
    with torch.no_grad():
        new = torch.cat([learner.logprobs(build(p))
                         for p in parts(tokens, 2**14, learner.memory_budget)])  # fmt: skip
    old = torch.cat([torch.from_numpy(t.logprobs) for t in tokens]).to(new)
    mean, most = float((new - old).abs().mean()), float((new - old).abs().max())
    alarm = VerlSettings().mismatch
    assert 0 < mean < alarm, f"mean {mean:.4f}, and trainer.mismatch is {alarm}"
    where = f"{len(new)} tokens in {numbers} on {DEVICE}"
    return f"{where}: mean {mean:.2g}, largest {most:.2g}, alarm {alarm}"


def memory(model: str, folder: Path) -> str:
    large = {
        "hidden_size": 1024,
        "num_hidden_layers": 8,
        "head_dim": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 3072,
    }
    few = {"hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 384}
    length = 8192 if GPU else 256
    sizes = {**(large if GPU else few), "max_position_embeddings": length}
    shape, plain = plain_model(folder / "shaped", DEVICE, **sizes)
    _, work = lora_pass(plain, LINEAR, torch.randint(0, 600, (1, length), device=DEVICE))
    if GPU:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        most = torch.cuda.max_memory_allocated() - before
    else:
        most = peak(work)
    wanted = needed(shape, LINEAR, length)
    text = f"{length} tokens: {most / 1e6:.1f} MB, forecast {wanted / 1e6:.1f} MB"
    assert abs(wanted / most - 1) < WITHIN, text
    return text


def adapters(model: str, folder: Path) -> str:
    two = pair(_with_vllm(folder), model)
    more = (*(SHARE if GPU else ()), "--enforce-eager")
    with serve(model, folder / "vllm.log", name="served", cpu=not GPU, more=more) as url:
        return adapters_act(url, two, 384 if GPU else 48)


def graphs(model: str, folder: Path) -> str:
    _needs_gpu("CUDA graphs")
    two = pair(_with_vllm(folder), model)
    turns = []
    for more in (("--enforce-eager",), ()):
        how = (*SHARE, *more)
        with serve(model, folder / "vllm.log", name="served", cpu=False, more=how) as url:
            turns.append(_first_logprobs(url, two))
    moved = max(abs(a - b) for a, b in zip(*turns, strict=True))
    assert moved < SAME, f"a log-probability moves by {moved:.3f}"
    return f"{len(turns[0])} answers of base and adapters: a log-probability moves by {moved:.4f}"


def sleep(model: str, folder: Path) -> str:
    _needs_gpu("vLLM's sleep mode")
    two = pair(_with_vllm(folder), model)
    over = min(2, torch.cuda.device_count())
    more = (*SHARE, "--enforce-eager", "--enable-sleep-mode", "--tensor-parallel-size", str(over))
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # has /sleep and /wake_up
    with serve(model, folder / "vllm.log", name="served", cpu=False, more=more) as url:
        root = url.removesuffix("/v1")
        policy = OpenAIPolicy(Endpoint((url,)), "served", capacity=64, extra=None)
        policy.load(AgentSpec("served", adapters=two))
        names = [None, *(a.name for a in two)] * 8
        before = [first(reply) for reply in ask(policy, names)[0]]
        for path in ("/sleep?level=1", "/wake_up"):
            asked = urllib.request.Request(root + path, method="POST")
            urllib.request.urlopen(asked, timeout=120).close()
        after = [first(reply) for reply in ask(policy, names)[0]]
        policy.close()
    moved = max(abs(a - b) for a, b in zip(before, after, strict=True))
    apart = max(abs(before[0] - before[1]), abs(before[0] - before[2]))
    assert moved < SAME < apart, f"moves by {moved:.3f}; base and adapters are {apart:.3f} apart"
    return f"{over} GPU(s): a log-probability moves by {moved:.4f}, adapters by {apart:.2f}"


def weights(model: str, folder: Path) -> str:
    missing = [name for name in ("verl", *(("vllm",) if GPU else ())) if find_spec(name) is None]
    if missing:
        raise Skip(f"{', '.join(missing)} is not installed in this interpreter")
    run = folder / "run"
    command = [
        *(sys.executable, "-m", "trace_bench", "method=grpo", "env=toolsandbox", "trainer=verl"),
        *("model=hf", f"model.path={model}", "policy.context=1024", "checkpoints=[]", "budget=64"),
        *("evaluation.limit=4", "trainer.restarts=0", f"trainer.device={DEVICE}"),
        f"run_dir={run}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
    steps = [line for line in read_lines(run / "metrics.jsonl") if line["phase"] == "training"]
    apart = [float(line["logprob_difference_mean"]) for line in steps]
    assert max(apart) < VerlSettings().mismatch, apart
    return f"{len(apart)} iterations: sampler and trainer are {max(apart):.2g} apart at most"


CHECKS: dict[str, Callable[[str, Path], str]] = {
    "mismatch": mismatch, "memory": memory, "adapters": adapters, "graphs": graphs,
    "sleep": sleep, "weights": weights,
}  # fmt: skip


def _needs_gpu(what: str) -> None:
    if not GPU:
        raise Skip(f"{what} needs a GPU")


def _with_vllm(folder: Path) -> Path:
    """The folder, where there is a vLLM."""
    if VARIABLE not in os.environ:
        raise Skip(f"{VARIABLE} names no interpreter with vLLM")
    return folder


def _first_logprobs(url: str, two: Sequence[AdapterRef]) -> list[float]:
    policy = OpenAIPolicy(Endpoint((url,)), "served", capacity=64, extra=None)
    policy.load(AgentSpec("served", adapters=tuple(two)))
    turns = [first(reply) for reply in ask(policy, [None, *(a.name for a in two)] * 8)[0]]
    policy.close()
    return turns


def main(arguments: Sequence[str]) -> int:
    """1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--model", default=str(MODEL_FOLDER))
    chosen = parser.parse_args(arguments)
    device = torch.cuda.get_device_name() if GPU else "no GPU: the CPU as far as that goes"
    print(f"{device}; torch {torch.__version__}", flush=True)
    failed = 0
    for name in chosen.only:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            try:
                mark, text = "shown", CHECKS[name](chosen.model, Path(place))
            except Skip as why:
                mark, text = "skipped", str(why)
            except Exception as error:  # the other checks are made all the same
                mark, text = "FAILED", f"{type(error).__name__}: {error}"
                failed += 1
        print(f"{mark:<8} {name:<9} {text} ({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
