"""What a model needs of memory when it is trained by FSDP with LoRA and served by vLLM, in bytes.

Sources: sharding, ZeRO (arXiv 1910.02054); checkpoints of activations, Korthikanti et al. 2022
(arXiv 2205.05198); LoRA, arXiv 2106.09685; the cache of keys and values, vLLM (arXiv 2309.06180).
What one layer keeps was counted on transformers' Qwen3 and is measured in tests/trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core.store import read_if_there

GPU = 80  # GB of memory of a GPU, assumed in estimates
CHUNK = 512  # tokens whose logits are there at once, in verl's fused kernels
OVERHEAD = 3e9  # of a GPU: CUDA contexts, communication, what a sleeping vLLM keeps (assumed)


@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes. inner: of the MLP, or of one expert; active: experts of one token."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    tied: bool = False
    experts: int = 0
    active: int = 0

    @property
    def modules(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of a layer's linear projections; those of an expert for experts."""
        q, kv, h = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden
        attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
        up = (h, self.inner)
        return attention | {"gate_proj": up, "up_proj": up, "down_proj": (self.inner, h)}

    @property
    def layer(self) -> int:
        """Parameters of one layer, norms left out."""
        each = {name: a * b for name, (a, b) in self.modules.items()}
        mlp = sum(each[name] for name in ("gate_proj", "up_proj", "down_proj"))
        return sum(each.values()) + mlp * max(self.experts - 1, 0) + self.hidden * self.experts

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + (1 if self.tied else 2) * self.vocab * self.hidden

    def unreached(self, targets: Sequence[str]) -> str:
        """Why an adapter cannot have these layers: transformers 5 keeps the experts of a layer as
        one parameter. "" if it can."""
        attention = [*self.modules][:4]
        if not self.experts or not (others := [name for name in targets if name not in attention]):
            return ""
        return (
            f"trainer.target_modules has {', '.join(others)}, and the experts of this model are "
            f"one parameter that has no adapter: set trainer.target_modules=[{','.join(attention)}]"
        )

    def read(self, tokens: float) -> float:
        """Parameters that a pass over so many tokens reads, of experts those that some token chose;
        for one token those that it is multiplied by."""
        unused = (1 - self.active / self.experts) ** tokens * self.experts if self.experts else 0
        layer = self.layer - unused * 3 * self.hidden * self.inner
        return self.layers * layer + self.vocab * self.hidden

    def operations(self, tokens: float, pairs: float) -> float:
        """Of a pass over so many tokens, of which so many pairs attend, one to the other."""
        return 2 * self.read(1) * tokens + 4 * self.layers * self.heads * self.head_dim * pairs

    def cache(self, gpus: int, share: float) -> float:
        """Bytes for keys and values in a vLLM on this share of the memory of so many GPUs."""
        return gpus * (share * GPU * 1e9 - OVERHEAD) - 2 * self.parameters

    def lora(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of an adapter, in those of the layers whose sizes are known."""
        reached = [name for name in targets if name in self.modules and not self.unreached([name])]
        return self.layers * rank * sum(sum(self.modules[name]) for name in reached)

    @property
    def kv_token(self) -> int:
        """The keys and values of one token, in bf16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def kept(self, targets: Sequence[str]) -> int:
        """What a token needs in the pass back through one layer, which is computed again: norms in
        float32, inputs of adapters, queries, expanded keys and values, and the MLP's products."""
        q, kv, h = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden
        mlp = 14 * self.inner * max(self.active, 1) + 4 * h * self.active
        gated = 2 * h * bool({"gate_proj", "up_proj"} & set(targets) and not self.experts)
        return 10 * h + gated + 14 * q + 4 * kv + mlp

    def activations(self, tokens: int, targets: Sequence[str]) -> int:
        """A pass over so many tokens with a checkpoint at each layer, in bf16."""
        return tokens * (2 * self.hidden * self.layers + self.kept(targets))

    def logits(self, tokens: int) -> int:
        """Of one chunk, in bf16, and four times in float32: logits, probabilities, their
        logarithms or gradient, and a product."""
        return min(tokens, CHUNK) * self.vocab * (2 + 4 * 4)


QWEN = 151936
SHAPES = {
    "Qwen3-0.6B": Sizes(28, 1024, 16, 8, 128, 3072, QWEN, tied=True),
    "Qwen3-1.7B": Sizes(28, 2048, 16, 8, 128, 6144, QWEN, tied=True),
    "Qwen3-4B": Sizes(36, 2560, 32, 8, 128, 9728, QWEN, tied=True),
    "Qwen3-8B": Sizes(36, 4096, 32, 8, 128, 12288, QWEN),
    "Qwen3-14B": Sizes(40, 5120, 40, 8, 128, 17408, QWEN),
    "Qwen3-32B": Sizes(64, 5120, 64, 8, 128, 25600, QWEN),
    "Qwen3-30B-A3B": Sizes(48, 2048, 32, 4, 128, 768, QWEN, experts=128, active=8),
    "Qwen3-Coder-30B-A3B": Sizes(48, 2048, 32, 4, 128, 768, QWEN, experts=128, active=8),
    "SmolLM2-135M": Sizes(30, 576, 9, 3, 64, 1536, 49152, tied=True),
    "Qwen2.5-1.5B": Sizes(28, 1536, 12, 2, 128, 8960, QWEN, tied=True),
    "Qwen2.5-3B": Sizes(36, 2048, 16, 2, 128, 11008, QWEN, tied=True),
    "Qwen2.5-7B": Sizes(28, 3584, 28, 4, 128, 18944, 152064),
    "Qwen2.5-14B": Sizes(48, 5120, 40, 8, 128, 13824, 152064),
    "Qwen2.5-32B": Sizes(64, 5120, 40, 8, 128, 27648, 152064),
}


def shape_of(model: str) -> Sizes | None:
    """Of a folder with a config.json, else of a family by its name; None for any other."""
    c: Any = read_if_there(Path(model) / "config.json")
    if c:
        try:
            return _read(c)
        except (KeyError, TypeError):
            return None
    name = model.rpartition("/")[2].lower()
    keys = [key for key in SHAPES if f"{name}-".startswith(f"{key.lower()}-")]
    short = [key for key in SHAPES if f"{key.lower()}-".startswith(f"{name}-")]
    if not keys and len(short) == 1:  # "smollm2", of which there is one
        keys = short
    return SHAPES[max(keys, key=len)] if keys else None


def _read(c: dict[str, Any]) -> Sizes:
    heads = c["num_attention_heads"]
    experts = c.get("num_experts") or c.get("num_local_experts") or 0  # transformers 5 writes these
    return Sizes(
        c["num_hidden_layers"],
        c["hidden_size"],
        heads,
        c.get("num_key_value_heads") or heads,
        c.get("head_dim") or c["hidden_size"] // heads,
        c["moe_intermediate_size"] if experts else c["intermediate_size"],
        c["vocab_size"],
        bool(c.get("tie_word_embeddings")),
        experts,
        c["num_experts_per_tok"] if experts else 0,
    )
