"""An adapter of a smaller rank in the place of another, so that a trainer can go on from a sum of
adapters: of every layer's update the closest matrix of that rank (Eckart and Young 1936)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_bench.core.store import write_bytes, write_json
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import CONFIG, WEIGHTS, read_config, read_weights
from trace_bench.policies.routing.merge import pair_of
from trace_bench.policies.routing.ties import factors


def compress(wanted: AdapterRef, like: AdapterRef, name: str) -> AdapterRef:
    """`wanted` with the rank of `like`, as the adapter `name`; it lies beside `wanted` and is
    written once. Raises UserError for adapters that cannot be read."""
    from safetensors.torch import save

    rank = int(read_config(like)["r"])
    folder = Path(wanted.path).with_name(f"{Path(wanted.path).name}-rank{rank}")
    out = AdapterRef(name, str(folder))
    if (folder / CONFIG).exists():
        return out
    config, tensors = read_config(wanted), read_weights(wanted)
    small: dict[str, Any] = {}
    for place in sorted({key.rpartition(".lora_")[0] for key in tensors}):
        pair = pair_of(tensors, place, config)
        if isinstance(pair, tuple):
            for part, value in zip("AB", factors(pair[1] @ pair[0], rank), strict=True):
                small[f"{place}.lora_{part}.weight"] = value.contiguous()
    write_bytes(folder / WEIGHTS, save(small, metadata={"format": "pt"}))
    write_json(folder / CONFIG, {**config, "r": rank, "lora_alpha": rank, "use_rslora": False})
    return out
