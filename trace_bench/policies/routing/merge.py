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

from trace_bench.core.store import file_hash, write_bytes, write_json
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import (
    CONFIG,
    WEIGHTS,
    block_of,
    read_config,
    read_weights,
)
from trace_bench.policies.routing.ties import factors, ties

Pair = tuple[Any, Any] | int
"""A and B of one layer, scaled; or the rank of an adapter that leaves the layer as it is."""

Weight = float | tuple[float, ...]
"""Of an adapter's update: one number, or one for each transformer block."""

STEPS = 10  # weights are rounded to tenths, which limits the number of distinct sums


@dataclass(frozen=True)
class Mixture:
    """(adapter name, weight) in the agent's order. The weights are those of the updates, which are
    added to the base model; they need not sum to one. `density`: merged by TIES instead of added,
    with this share of each update's values."""

    parts: tuple[tuple[str, Weight], ...]
    density: float | None = None

    @property
    def blocks(self) -> bool:
        """Whether each transformer block has weights of its own."""
        return any(isinstance(weight, tuple) for _, weight in self.parts)

    @property
    def name(self) -> str:
        """Unique among the sums of an agent's adapters. With weights for each block it has their
        range and a hash of them all, since the list would be long."""
        text = "+".join(f"{name}*{_text(weight)}" for name, weight in self.parts)
        if self.blocks:
            return f"{text}#{hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()[:10]}"
        return text if self.density is None else f"ties{self.density:g}({text})"


def _text(weight: Weight) -> str:
    if isinstance(weight, tuple) and len(set(weight)) > 1:
        return f"{min(weight):g}..{max(weight):g}"
    return f"{weight[0] if isinstance(weight, tuple) else weight:g}"


def around(rows: Sequence[Sequence[float]]) -> list[float]:
    """The weight of the adapter O that all others were trained on from, for each row of their
    weights: O + sum_i w_i (A_i - O) = (1 - sum_i w_i) O + sum_i w_i A_i. It may be negative."""
    return [round(1.0 - sum(row), 6) + 0.0 for row in rows]  # -0.0 + 0.0 is 0.0


def mixture(
    shares: Sequence[tuple[str | None, float]], least: float, otherwise: str | None = None
) -> Mixture | str | None:
    """The smallest set of choices (None: the base model) with at least the share `least` of the
    probability, renormalized; just the name if one choice is left. `otherwise`: the choice that the
    others were trained on from."""
    total = sum(p for _, p in shares)
    chosen: list[tuple[str | None, float]] = []
    for name, p in sorted(shares, key=lambda s: -s[1]):
        if sum(q for _, q in chosen) >= least * total:
            break
        chosen.append((name, p))
    kept = sum(p for _, p in chosen)
    rounded = {name: round(STEPS * p / kept) / STEPS for name, p in chosen}
    if otherwise is not None:
        rounded[otherwise] = around([[w for n, w in rounded.items() if n != otherwise]])[0]
    parts = tuple((n, rounded[n]) for n, _ in shares if n is not None and rounded.get(n))
    if not parts:
        return None
    return parts[0][0] if len(parts) == 1 and parts[0][1] == 1.0 else Mixture(parts)


def merge(wanted: Mixture, adapters: Sequence[AdapterRef]) -> AdapterRef:
    """The sum as an ordinary adapter in PEFT's format, which any server can load. It lies beside
    the adapters' folder and is written once, known by what is in it. Raises UserError for adapters
    that cannot be read."""
    by_name = {a.name: a for a in adapters}
    refs = [(by_name[name], weight) for name, weight in wanted.parts]
    digest = _digest(refs, wanted.density)
    folder = Path(refs[0][0].path).parent.parent / "merged" / digest
    out = AdapterRef(wanted.name, str(folder))
    if not (folder / CONFIG).exists():
        _write(folder, refs, wanted.density)
    return out


def _digest(refs: Sequence[tuple[AdapterRef, Weight]], density: float | None) -> str:
    """Changes with the weights of the adapters and of the sum, not with the place on disk."""
    held = [(*(file_hash(Path(ref.path) / f) for f in (WEIGHTS, CONFIG)), w) for ref, w in refs]
    return hashlib.sha256(json.dumps([held, density]).encode()).hexdigest()[:12]


def _write(folder: Path, refs: Sequence[tuple[AdapterRef, Weight]], density: float | None) -> None:
    from safetensors.torch import save

    configs = [read_config(ref) for ref, _ in refs]
    tensors = [read_weights(ref) for ref, _ in refs]
    rank = sum(int(c["r"]) for c in configs)
    merged: dict[str, Any] = {}
    for place in sorted({key.rpartition(".lora_")[0] for t in tensors for key in t}):
        pairs = [pair_of(t, place, c) for t, c in zip(tensors, configs, strict=True)]
        weights = [w[block_of(place)] if isinstance(w, tuple) else w for _, w in refs]
        pair = _sum(pairs, weights) if density is None else _ties(pairs, weights, density, rank)
        for part, value in zip("AB", pair, strict=True):
            merged[f"{place}.lora_{part}.weight"] = value.contiguous()
    targets = sorted({m for c in configs for m in c["target_modules"]})
    config = {**configs[0], "r": rank, "lora_alpha": rank, "use_rslora": False}
    write_bytes(folder / WEIGHTS, save(merged, metadata={"format": "pt"}))
    write_json(folder / CONFIG, {**config, "target_modules": targets})  # last: then it is whole


def _sum(pairs: Sequence[Pair], weights: Sequence[float]) -> tuple[Any, Any]:
    """A and B of the weighted sum; an adapter without the layer has zeros there."""
    import torch

    a, b = _sizes(pairs)
    above = [p[0] if isinstance(p, tuple) else torch.zeros(p, a) for p in pairs]
    beside = [
        p[1] * w if isinstance(p, tuple) else torch.zeros(b, p)
        for p, w in zip(pairs, weights, strict=True)
    ]
    return torch.cat(above, 0), torch.cat(beside, 1)


def _ties(
    pairs: Sequence[Pair], weights: Sequence[float], density: float, rank: int
) -> tuple[Any, Any]:
    import torch

    a, b = _sizes(pairs)
    updates = [p[1] @ p[0] if isinstance(p, tuple) else torch.zeros(b, a) for p in pairs]
    return factors(ties(updates, weights, density), rank)


def _sizes(pairs: Sequence[Pair]) -> tuple[int, int]:
    """(in, out) of the layer, of which at least one adapter has weights."""
    a, b = next(p for p in pairs if isinstance(p, tuple))
    return int(a.shape[1]), int(b.shape[0])


def pair_of(tensors: dict[str, Any], place: str, config: dict[str, Any]) -> Pair:
    """(A, scale * B) of a layer; the adapter's rank, if it does not change this layer."""
    if f"{place}.lora_A.weight" not in tensors:
        return int(config["r"])
    a, b = (tensors[f"{place}.lora_{part}.weight"].float() for part in "AB")
    return a, b * _scale(config)


def _scale(config: dict[str, Any]) -> float:
    rank = int(config["r"])
    return float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
