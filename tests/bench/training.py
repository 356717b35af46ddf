"""Training tokens/s beside a plain peft + AdamW loop, on the same rollouts with the same loss.

    python tests/bench/training.py [--model FOLDER] [--dtype auto] [--threads 1] [--groups 4]

The plain loop is what one writes first, in float32: every trajectory a padded row, peft's layers,
logits at all places. Both do the same number of optimizer steps; tokens are those of the
trajectories, prompts included, so that work that is saved shows as speed. The adapters that come
out are compared too. The last lines are JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playing import play
from sandboxes import in_process as suite

from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec
from trace_bench.policies.loading import DType
from trace_bench.policies.local import LocalPolicy
from trace_bench.trainers.adapters import restart
from trace_bench.trainers.algorithms import GRADIENT, policy_loss
from trace_bench.trainers.grpo import Advantages, Batch, group_advantages, token_weights
from trace_bench.trainers.local import TrainerSettings
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tokens, stretches
from trace_bench.trainers.update import minibatches, update


def rollouts(
    model: str, settings: TrainerSettings, dtype: DType
) -> tuple[list[Tokens], Advantages]:
    """One iteration's trajectories of the embedded suite, groups that teach nothing left out (as
    in training)."""
    tasks = suite("toolsandbox", "embedded").tasks("train")
    kept: list[Tokens] = []
    rewards: list[float] = []
    policy = LocalPolicy(model, batch=32, dtype=dtype)
    for number, task in enumerate(tasks):
        seeds = [stable_seed("bench", number, i) for i in range(settings.group_size)]
        played = play(
            policy, suite("toolsandbox", "embedded"), AgentSpec(model), [task] * len(seeds), seeds
        )
        group = [0.0 if t.score is None else t.score.similarity for t in played]
        if max(group) > min(group):
            kept += stretches(*played)
            rewards += group
        if len(rewards) == settings.groups * settings.group_size:
            break
    labels = torch.arange(len(rewards)) // settings.group_size
    return kept, group_advantages(torch.tensor(rewards), labels)


class Plain:
    """peft + AdamW, padded rows."""

    def __init__(self, model: str, settings: TrainerSettings) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        config = LoraConfig(
            r=settings.rank,
            lora_alpha=int(settings.alpha),
            target_modules=list(settings.target_modules),
            task_type="CAUSAL_LM",
        )
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.model = get_peft_model(base, config).eval()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.trained = trained
        self.optimizer = torch.optim.AdamW(trained, settings.learning_rate, weight_decay=0.0)

    def copy_from(self, learner: Learner) -> None:
        """The same start."""
        mine = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, layer in learner.layers.items():
                for letter, value in (("A", layer.a), ("B", layer.b)):
                    mine[f"base_model.model.{name}.lora_{letter}.default.weight"].copy_(value)

    def step(
        self, batch: Sequence[Tokens], advantages: torch.Tensor, settings: TrainerSettings
    ) -> None:
        width = max(len(b.ids) for b in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, b in enumerate(batch):
            ids[row, : len(b.ids)] = torch.from_numpy(b.ids)
            mask[row, : len(b.ids)] = 1
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        rows = torch.cat([torch.full((len(b.sampled),), i) for i, b in enumerate(batch)])
        places = torch.from_numpy(np.concatenate([b.sampled for b in batch]))
        new = logits.log_softmax(-1)[rows, places - 1, ids[rows, places]]
        old = torch.from_numpy(np.concatenate([b.logprobs for b in batch]))
        lengths = torch.tensor([len(b.sampled) for b in batch])
        spread = advantages.repeat_interleave(lengths)
        self.optimizer.zero_grad()
        given = Batch(new, old, spread, lengths)
        policy_loss(given, token_weights(lengths), settings.algorithm).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, GRADIENT)
        self.optimizer.step()


def main() -> None:
    default = Path(__file__).resolve().parents[2] / "trace_bench" / "tiny" / "model"
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=str(default))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    how = parser.parse_args()
    torch.set_num_threads(how.threads)
    settings = TrainerSettings(groups=how.groups)
    sequences, found = rollouts(how.model, settings, how.dtype)
    everything = [True] * len(sequences)
    targets, rank, alpha = settings.target_modules, settings.rank, settings.alpha
    learner = Learner(how.model, targets, rank, alpha, dtype=how.dtype)
    restart(learner.layers, 0)
    plain = Plain(how.model, settings)
    plain.copy_from(learner)
    optimizer = torch.optim.AdamW(learner.parameters, settings.learning_rate, weight_decay=0.0)
    ours: list[float] = []
    theirs: list[float] = []
    difference = 0.0
    for turn in range(how.repeat + 1):  # in turns, so that both see the same machine
        steps = update(learner, optimizer, [[s] for s in sequences], found, settings, turn)
        ours.append(steps.tokens / steps.seconds)
        started = time.perf_counter()
        for members in minibatches(everything, settings, turn):
            plain.step([sequences[i] for i in members], found.values[members], settings)
        theirs.append(steps.tokens / (time.perf_counter() - started))
        if turn == 0:  # AdamW amplifies rounding from step to step
            difference = _difference(learner, plain)
    ours, theirs = ours[1:], theirs[1:]  # the first round warms up
    print(
        json.dumps(
            {
                "trajectories": len(sequences),
                "tokens": sum(len(s.ids) for s in sequences),
                "sampled": sum(len(s.sampled) for s in sequences),
                "threads": how.threads,
                "ours_tokens_per_s": round(statistics.median(ours)),
                "plain_tokens_per_s": round(statistics.median(theirs)),
                "ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
                "largest_weight_difference_after_one_iteration": difference,
            }
        )
    )


def _difference(learner: Learner, plain: Plain) -> float:
    mine = dict(plain.model.named_parameters())
    return max(
        float((mine[f"base_model.model.{n}.lora_{x}.default.weight"] - v).abs().max().detach())
        for n, layer in learner.layers.items()
        for x, v in (("A", layer.a), ("B", layer.b))
    )


if __name__ == "__main__":
    main()
