"""A weighted sum of adapters as one adapter, for a router that is undecided (the paper's method,
step 4, a variant).

The update sum_i w_i s_i B_i A_i is represented exactly: the A_i are stacked vertically, the
w_i s_i B_i horizontally, and the rank is the sum of the ranks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import CONFIG, WEIGHTS, read_config, read_weights

STEPS = 10  # weights are rounded to tenths, which limits the number of distinct sums


@dataclass(frozen=True)
class Mixture:
    """(adapter name, weight) in the agent's order; the rest up to 1 is the base model's weight."""

    parts: tuple[tuple[str, float], ...]

    @property
    def name(self) -> str:
        return "+".join(f"{name}*{weight:g}" for name, weight in self.parts)


def mixture(shares: Sequence[tuple[str | None, float]], least: float) -> Mixture | str | None:
    """The smallest set of choices (None: the base model) with at least the share `least` of the
    probability, renormalized; just the name if one choice is left."""
    total = sum(p for _, p in shares)
    chosen: list[tuple[str | None, float]] = []
    for name, p in sorted(shares, key=lambda s: -s[1]):
        if sum(q for _, q in chosen) >= least * total:
            break
        chosen.append((name, p))
    kept = sum(p for _, p in chosen)
    rounded = {name: round(STEPS * p / kept) / STEPS for name, p in chosen}
    parts = tuple((n, rounded[n]) for n, _ in shares if n is not None and rounded.get(n))
    if not parts:
        return None
    return parts[0][0] if len(parts) == 1 and parts[0][1] == 1.0 else Mixture(parts)


def merge(wanted: Mixture, adapters: Sequence[AdapterRef]) -> AdapterRef:
    """The sum as an adapter on disk, beside the adapters' folder; each sum is written once. Raises
    UserError for adapters that cannot be read."""
    import torch
    from safetensors.torch import save_file

    by_name = {a.name: a for a in adapters}
    refs = [(by_name[name], weight) for name, weight in wanted.parts]
    digest = hashlib.sha256(
        json.dumps([(str(Path(r.path).resolve()), w) for r, w in refs]).encode()
    ).hexdigest()[:12]
    folder = Path(refs[0][0].path).parent.parent / "merged" / digest
    out = AdapterRef(wanted.name, str(folder))
    if (folder / CONFIG).exists():
        return out
    configs = [read_config(ref) for ref, _ in refs]
    tensors = [read_weights(ref) for ref, _ in refs]
    places = sorted({key.rpartition(".lora_")[0] for t in tensors for key in t})
    ranks = [int(c["r"]) for c in configs]
    merged: dict[str, Any] = {}
    for place in places:
        shape = next(_pair(t, place) for t in tensors if f"{place}.lora_A.weight" in t)
        above, beside = [], []
        for t, config, rank, (_, weight) in zip(tensors, configs, ranks, refs, strict=True):
            if f"{place}.lora_A.weight" in t:
                a, b = _pair(t, place)
                above.append(a.float())
                beside.append(b.float() * weight * _scale(config))
            else:
                above.append(torch.zeros(rank, shape[0].shape[1]))
                beside.append(torch.zeros(shape[1].shape[0], rank))
        merged[f"{place}.lora_A.weight"] = torch.cat(above, 0).contiguous()
        merged[f"{place}.lora_B.weight"] = torch.cat(beside, 1).contiguous()
    targets = sorted({m for c in configs for m in c["target_modules"]})
    config = {**configs[0], "r": sum(ranks), "lora_alpha": sum(ranks), "use_rslora": False}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(merged, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({**config, "target_modules": targets}, indent=1))
    return out


def _pair(tensors: dict[str, Any], place: str) -> tuple[Any, Any]:
    return tensors[f"{place}.lora_A.weight"], tensors[f"{place}.lora_B.weight"]


def _scale(config: dict[str, Any]) -> float:
    rank = int(config["r"])
    return float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
