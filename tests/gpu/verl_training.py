"""trainer=verl on a GPU: a model of about 100M parameters, made here, on the embedded suite.

    python tests/gpu/verl_training.py [RUN_DIR] [--budget N] [SETTING ...]

Needs a GPU, verl and vLLM (`pip install -e '.[verl]' 'verl[vllm]'`). The model
is drawn at random, so it earns next to nothing: this is about what runs, and how fast. Further
SETTINGs go to the run, such as trainer.gpus=2. Prints, over the iterations after the first two:
seconds of a step and of its parts, tokens per second, the share of the GPU's peak, and how far
sampler and trainer are apart in log-probability.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from trace_bench.core.store import read_lines
from trace_bench.tiny import MODEL_FOLDER

SHOWN = (
    "timing_s/step",
    "timing_s/gen",
    "timing_s/old_log_prob",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "perf/throughput",
    "perf/mfu/actor",
    "perf/total_num_tokens",
    "trace_bench/logprob_difference_mean",
    "trace_bench/logprob_difference_max",
)
WARM = 2


def make_model(folder: Path) -> int:
    """A Qwen3 with the tiny agent's tokenizer; its number of parameters."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL_FOLDER))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=2304,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/verl_gpu"))
    parser.add_argument("--budget", type=int, default=2560)
    given, settings = parser.parse_known_args()
    model = given.folder / "model"
    if not (model / "config.json").exists():
        print(f"{make_model(model) / 1e6:.0f}M parameters")
    run = given.folder / "run"
    command = [
        *(sys.executable, "-m", "trace_bench", "method=grpo", "env=toolsandbox", "trainer=verl"),
        *("model=hf", f"model.path={model}", "policy.context=1024", "checkpoints=[]"),
        *("trainer.group_size=16", "trainer.groups=16", "trainer.learning_rate=1e-4"),
        *("trainer.save_every=1000", "evaluation.limit=8", "trainer.restarts=0"),
        *(f"budget={given.budget}", f"run_dir={run}", *settings),
    ]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)
    lines = [x for p in sorted(run.rglob("metrics-*.jsonl")) for x in read_lines(p)]
    steps = [x["data"] for x in lines if "timing_s/step" in x["data"]][WARM:]
    print(f"medians of {len(steps)} iterations of 256 episodes:")
    for key in SHOWN:
        values = [float(s[key]) for s in steps if key in s]
        print(f"{key:<40}{statistics.median(values):>14.6g}" if values else f"{key:<40}  none")


if __name__ == "__main__":
    main()
