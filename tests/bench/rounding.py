"""How far small optimizer steps move a model's log-probabilities, and how far rounding to bfloat16
moves them: what is below that cannot be seen (`trainers.job.SEEN`).

    python -m trace_bench.models get smollm2
    python tests/bench/rounding.py [--model FOLDER] [--steps 5] [--rates 1e-5 1e-4]

The model continues 16 openings, sampled at temperature 1 in float32. Printed is the mean absolute
difference of the log-probabilities of those tokens: under the same weights in bfloat16; and after
steps of AdamW on a fresh LoRA adapter of rank 16 (alpha 32, all linear layers), along the policy
gradient with advantages of 1 and -1 drawn for each sequence. One core, some minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from trace_bench.models import CacheSettings, smollm2
from trace_bench.policies.loading import load_model, load_tokenizer
from trace_bench.trainers.algorithms import LINEAR

OPENINGS = ("Name three things", "A letter to a friend", "How to cook rice", "The sea at night")
TOKENS = 48


def logprobs(model: torch.nn.Module, ids: Tensor, start: int) -> Tensor:
    """Of the tokens [sequences, tokens] from `start` on, in float32."""
    logits = model(ids).logits[:, start - 1 : -1].float()
    return logits.log_softmax(-1).gather(2, ids[:, start:, None])[..., 0]


def moved(folder: str, ids: Tensor, start: int, before: Tensor, steps: int, rate: float) -> float:
    """The mean absolute difference after so many steps."""
    torch.manual_seed(0)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=list(LINEAR))
    model = get_peft_model(load_model(folder, dtype="float32")[0], config)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    signs = torch.randint(0, 2, (len(ids), 1)) * 2.0 - 1.0
    for _ in range(steps):
        optimizer.zero_grad()
        (-signs * logprobs(model, ids, start)).mean().backward()
        optimizer.step()
    with torch.inference_mode():
        return float((logprobs(model, ids, start) - before).abs().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=None, help="a folder (default: SmolLM2)")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-5, 1e-4])
    options = parser.parse_args()
    folder = str(Path(options.model or smollm2(CacheSettings())))
    torch.manual_seed(0)
    read = [load_tokenizer(folder)(text)["input_ids"] for text in OPENINGS]
    start = min(map(len, read))
    opening = torch.tensor([words[:start] for words in read for _ in range(4)])
    model = load_model(folder, dtype="float32")[0]
    how = {"do_sample": True, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
    ids = model.generate(opening, attention_mask=torch.ones_like(opening), **how)
    with torch.inference_mode():
        exact = logprobs(model, ids, start)
        half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)  # on any CPU
        rounded = logprobs(half, ids, start)
    print(f"bfloat16: {float((rounded - exact).abs().mean()):.4f}")
    for rate in options.rates:
        far = moved(folder, ids, start, exact, options.steps, rate)
        print(f"{options.steps} steps of {rate:g}: {far:.4f}")


if __name__ == "__main__":
    main()
