"""Adapters on the stock vLLM with a GPU: what .ci/vllm tests on a CPU.

    TRACE_BENCH_VLLM=<python with vllm> .venv/bin/python tests/gpu/vllm_adapters.py [MODEL]

MODEL is a folder or a hub name of a Qwen3-like model (default: the tiny agent). Makes two random
LoRA adapters for it, serves it, loads them while it runs, and checks: base and adapters give
different answers, the base model's do not change when adapters act beside it, names are gone after
unloading.
Prints requests and tokens per second for the base model alone and for all three in one batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.vllm_process import serve

from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.llm.client import Endpoint
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.tiny import MODEL_FOLDER

RANK, REQUESTS, TOKENS = 16, 384, 64
DRIFT = 0.05  # of a log-probability, in bfloat16 with other rows in the batch


def adapter(folder: Path, name: str, config: object, seed: int) -> AdapterRef:
    """A random adapter of the attention's query and value projections."""
    generator = torch.Generator().manual_seed(seed)
    hidden, layers = config.hidden_size, config.num_hidden_layers  # type: ignore[attr-defined]
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads  # type: ignore[attr-defined]
    out = {
        "q_proj": config.num_attention_heads * head,  # type: ignore[attr-defined]
        "v_proj": config.num_key_value_heads * head,  # type: ignore[attr-defined]
    }
    weights: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        for module, size in out.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            a = torch.randn(RANK, hidden, generator=generator) / hidden**0.5
            b = torch.randn(size, RANK, generator=generator) * 0.1
            weights |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(out)}
    settings |= {"task_type": "CAUSAL_LM", "base_model_name_or_path": None, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return AdapterRef(name, str(folder))


def ask(policy: OpenAIPolicy, adapters: list[str | None]) -> tuple[list[TurnReply], float]:
    """One greedy turn a request, all at once; (replies in order, seconds)."""
    requests = [
        TurnRequest(
            n,
            ({"role": "user", "content": f"Tell me about the number {n % 16}."},),
            adapter=name,
            temperature=0.0,
            max_tokens=TOKENS,
        )
        for n, name in enumerate(adapters)
    ]
    began, got = time.monotonic(), dict[int, TurnReply]()
    policy.submit(requests)
    while len(got) < len(requests):
        got |= {reply.episode: reply for reply in policy.collect()}
    seconds = time.monotonic() - began
    for n in got:
        policy.release(n)
    return [got[n] for n in range(len(requests))], seconds


def main(model: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        two = pair(folder, model)
        with serve(model, folder / "log", name="served", cpu=False) as url:
            print(adapters_act(url, two, REQUESTS))
    return 0


def pair(folder: Path, model: str) -> tuple[AdapterRef, AdapterRef]:
    """Two random adapters of a model."""
    config = AutoConfig.from_pretrained(model)
    return adapter(folder / "one", "one@0001", config, 0), adapter(
        folder / "two", "two@0001", config, 1
    )


def adapters_act(url: str, two: Sequence[AdapterRef], requests: int) -> str:
    """Loads them and asks for so many turns; what was found. Raises AssertionError."""
    policy = OpenAIPolicy(Endpoint((url,)), "served", capacity=requests, extra=None)
    alone, seconds = ask(policy, [None] * requests)
    said = [report("base alone", alone, seconds)]
    policy.load(AgentSpec("served", adapters=tuple(two)))
    names = [None, *(a.name for a in two)]
    mixed, seconds = ask(policy, [names[n // 16 % 3] for n in range(requests)])
    said.append(report("with two adapters", mixed, seconds))
    base = [n for n in range(requests) if n // 16 % 3 == 0]
    drift = max(abs(first(mixed[n]) - first(alone[n])) for n in base)
    texts = [[text(mixed[n]) for n in range(i * 16, i * 16 + 16)] for i in range(3)]
    policy.close()
    other = OpenAIPolicy(Endpoint((url,)), "served", capacity=1, extra=None)
    left = [m["id"] for m in other._client.ask("/models", None)["data"]]
    other.close()
    assert drift < DRIFT, f"adapters leak into the base model's rows: {drift:.3f}"
    assert texts[0] != texts[1] != texts[2] != texts[0], "adapters change nothing"
    assert left == ["served"], left
    return f"{'; '.join(said)}; the base model moves by {drift:.4f}"


def first(reply: TurnReply) -> float:
    assert reply.turn is not None, reply.error
    return reply.turn.logprobs[0]


def text(reply: TurnReply) -> str:
    assert reply.turn is not None, reply.error
    return str(reply.turn.reply["content"])


def report(what: str, replies: Sequence[TurnReply], seconds: float) -> str:
    tokens = sum(len(reply.turn.token_ids) for reply in replies if reply.turn)
    return f"{what} {len(replies) / seconds:.1f} requests/s, {tokens / seconds:.0f} tokens/s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(MODEL_FOLDER)))
