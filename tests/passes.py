"""A training pass as verl makes it, of a random Qwen3: bf16, LoRA, a checkpoint at each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from models import save_model

from trace_bench.trainers.memory import Sizes, shape_of

VOCAB, RANK = 600, 8


def plain_model(folder: Path, device: str = "cpu", **sizes: Any) -> tuple[Sizes, Any]:
    """A random Qwen3 of these sizes in bf16, and its shape as its config.json says it."""
    from transformers import AutoModelForCausalLM

    save_model(folder, vocab_size=VOCAB, tie_word_embeddings=False, **sizes)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.to(device)
    shape = shape_of(str(folder))
    assert isinstance(shape, Sizes)
    return shape, model


def lora_pass(
    plain: Any, targets: Sequence[str], ids: torch.Tensor
) -> tuple[list[Any], Callable[[], None]]:
    """(its LoRA parameters, a pass forward and back over the ids), run once before."""
    from peft import LoraConfig, get_peft_model

    how = LoraConfig(r=RANK, target_modules=list(targets), task_type="CAUSAL_LM")
    model: Any = get_peft_model(plain, how, autocast_adapter_dtype=False)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()

    def work() -> None:
        hidden = model.base_model.model.model(input_ids=ids, use_cache=False)[0]
        torch.autograd.backward(hidden.sum())

    work()  # whatever is allocated once
    lora = [p for p in model.parameters() if p.requires_grad]
    for p in lora:
        p.grad = None
    return lora, work


def needed(shape: Sizes, targets: Sequence[str], tokens: int) -> int:
    """What such a pass allocates, by the forecast."""
    return shape.activations(tokens, targets) + 2 * shape.lora(RANK, targets)


def peak(work: Callable[[], None]) -> int:
    """Bytes allocated by `work` on the CPU, at their most."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most
