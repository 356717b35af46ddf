"""Several adapters as one: their weighted sum (the paper's step 4, a variant); and one of a smaller
rank in the place of another.

The update sum_i w_i s_i B_i A_i is represented exactly: the A_i are stacked vertically, the
w_i s_i B_i horizontally, and the rank is the sum of the ranks. What has no low rank becomes the
closest matrix of the rank that is wanted (Eckart and Young 1936).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.protocols import Policy
from trace_bench.core.store import file_hash, write_bytes, write_json
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.engine.lora import CONFIG, WEIGHTS, read_config, read_whole, scale_of

if TYPE_CHECKING:
    from torch import Tensor

Pair = tuple[Any, Any] | int
"""A and B of one layer, scaled; or the rank of an adapter that leaves the layer as it is."""


@dataclass(frozen=True)
class Mixture:
    """(adapter name, weight) in the agent's order. The weights are those of the updates, which are
    added to the base model; they need not sum to one."""

    parts: tuple[tuple[str, float], ...]

    @property
    def name(self) -> str:
        """Unique among the sums of an agent's adapters."""
        return "+".join(f"{name}*{weight:g}" for name, weight in self.parts)


def around(weights: Iterable[float]) -> float:
    """The weight of the adapter O that all others were trained on from, beside theirs:
    O + sum_i w_i (A_i - O) = (1 - sum_i w_i) O + sum_i w_i A_i. It may be negative."""
    return round(1.0 - sum(weights), 6) + 0.0  # -0.0 + 0.0 is 0.0


def plain(parts: Iterable[tuple[str, float]]) -> Mixture | str | None:
    """Their sum; just a name, or None (the base model), where that is what it amounts to."""
    there = tuple((name, weight) for name, weight in parts if weight)
    if not there:
        return None
    return there[0][0] if len(there) == 1 and there[0][1] == 1.0 else Mixture(there)


def merge(wanted: Mixture, adapters: Sequence[AdapterRef], place: Path | None = None) -> AdapterRef:
    """The sum as an ordinary adapter in PEFT's format, which any server can load. It lies in
    `place` (None: beside the adapters' folder) and is written once, known by what is in it. Raises
    UserError for adapters that cannot be read."""
    by_name = {a.name: a for a in adapters}
    refs = [(by_name[name], weight) for name, weight in wanted.parts]
    folder = (place or beside(refs[0][0])) / _digest(refs)
    out = AdapterRef(wanted.name, str(folder))
    if not (folder / CONFIG).exists():
        _write(folder, refs)
    return out


def beside(adapter: AdapterRef) -> Path:
    """The folder of sums that an adapter is the first part of."""
    return Path(adapter.path).parent.parent / "merged"


def _digest(refs: Sequence[tuple[AdapterRef, float]]) -> str:
    """Changes with the weights of the adapters and of the sum, not with the place on disk."""
    held = [(*(file_hash(Path(ref.path) / f) for f in (WEIGHTS, CONFIG)), w) for ref, w in refs]
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:12]


def _write(folder: Path, refs: Sequence[tuple[AdapterRef, float]]) -> None:
    configs, tensors = zip(*(read_whole(ref) for ref, _ in refs), strict=True)
    merged: dict[str, Any] = {}
    for place in sorted({key.rpartition(".lora_")[0] for t in tensors for key in t}):
        pairs = [pair_of(t, place, c) for t, c in zip(tensors, configs, strict=True)]
        for part, value in zip("AB", _sum(pairs, [w for _, w in refs]), strict=True):
            merged[f"{place}.lora_{part}.weight"] = value.contiguous()
    targets = sorted({m for c in configs for m in c["target_modules"]})
    _store(folder, merged, {**configs[0], "target_modules": targets}, sum(c["r"] for c in configs))


def _store(folder: Path, tensors: dict[str, Any], config: dict[str, Any], rank: int) -> None:
    from safetensors.torch import save

    write_bytes(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    scale = {"r": rank, "lora_alpha": rank, "use_rslora": False}
    write_json(folder / CONFIG, {**config, **scale})  # last: then it is whole


def _sum(pairs: Sequence[Pair], weights: Sequence[float]) -> tuple[Any, Any]:
    """A and B of the weighted sum; an adapter without the layer has zeros there."""
    import torch

    first_a, first_b = next(p for p in pairs if isinstance(p, tuple))
    a, b = first_a.shape[1], first_b.shape[0]
    above = [p[0] if isinstance(p, tuple) else torch.zeros(p, a) for p in pairs]
    beside = [
        p[1] * w if isinstance(p, tuple) else torch.zeros(b, p)
        for p, w in zip(pairs, weights, strict=True)
    ]
    return torch.cat(above, 0), torch.cat(beside, 1)


def pair_of(tensors: dict[str, Any], place: str, config: dict[str, Any]) -> Pair:
    """(A, scale * B) of a layer; the adapter's rank, if it does not change this layer."""
    if f"{place}.lora_A.weight" not in tensors:
        return int(config["r"])
    a, b = (tensors[f"{place}.lora_{part}.weight"].float() for part in "AB")
    return a, b * scale_of(config)


def factors(update: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(A [rank, in], B [out, rank]) whose product B A is the closest matrix of that rank, or, for a
    smaller matrix, the update itself with zeros added."""
    import torch

    u, s, v = torch.linalg.svd(update.double(), full_matrices=False)
    kept = min(rank, len(s))
    a = torch.zeros(rank, update.shape[1])
    b = torch.zeros(update.shape[0], rank)
    root = s[:kept].sqrt()
    a[:kept] = (root[:, None] * v[:kept]).float()
    b[:, :kept] = (u[:, :kept] * root).float()
    return a, b


def compress(wanted: AdapterRef, like: AdapterRef, name: str) -> AdapterRef:
    """`wanted` with the rank of `like`, as the adapter `name`, so that a trainer can go on from a
    sum; it lies beside `wanted` and is written once. Raises UserError for unreadable adapters."""
    rank = read_config(like)["r"]
    folder = Path(wanted.path).with_name(f"{Path(wanted.path).name}-rank{rank}")
    out = AdapterRef(name, str(folder))
    if (folder / CONFIG).exists():
        return out
    config, tensors = read_whole(wanted)
    small: dict[str, Any] = {}
    for place in sorted({key.rpartition(".lora_")[0] for key in tensors}):
        pair = pair_of(tensors, place, config)
        if isinstance(pair, tuple):
            for part, value in zip("AB", factors(pair[1] @ pair[0], rank), strict=True):
                small[f"{place}.lora_{part}.weight"] = value.contiguous()
    _store(folder, small, config, rank)
    return out


class MergedSums:
    """Makes the sums of `agent`'s adapters that a router chooses usable, each on its first use;
    `policy` runs them and has loaded the agent. A sum is written as an adapter, by `merge` in
    `place`: there are few, since weights are rounded, and each costs as much as one adapter."""

    def __init__(self, policy: Policy, agent: AgentSpec, place: Path | None = None) -> None:
        self._policy, self._agent, self._place = policy, agent, place
        self._merged: dict[str, AdapterRef] = {}

    def name_of(self, choice: str | Mixture | None) -> str | None:
        """The name under which the policy runs a router's choice from now on. Raises UserError
        for adapters that cannot be read."""
        if not isinstance(choice, Mixture):
            return choice
        if choice.name not in self._merged:
            merged = merge(choice, self._agent.adapters, self._place)
            every = (*self._agent.adapters, *self._merged.values(), merged)
            self._policy.load(replace(self._agent, adapters=every))
            self._merged[choice.name] = merged
        return choice.name
