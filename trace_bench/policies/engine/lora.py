"""LoRA adapters as PEFT writes them: `adapter_config.json` and `adapter_model.safetensors`.

The update of a linear layer with weight W [out, in] is W + scale · B A with A [r, in],
B [out, r] and scale = alpha / r (Hu et al. 2021, section 4.1), or alpha / sqrt(r) with rsLoRA.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = "base_model.model."
_UNSUPPORTED = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias")


@dataclass(frozen=True)
class Adapter:
    """`weights` maps a linear module's name to (A [r, in], scale · B [out, r])."""

    name: str
    path: str
    weights: Mapping[str, tuple[Tensor, Tensor]]


def read_adapter(ref: AdapterRef, shapes: Mapping[str, tuple[int, int]]) -> Adapter:
    """Reads an adapter for a model whose linear modules have `shapes` name -> (out, in).

    Raises UserError if files are missing, a feature is unsupported, or a shape does not fit."""
    from safetensors.torch import load_file

    folder = Path(ref.path)
    config = _config(folder, ref.name)
    file = folder / "adapter_model.safetensors"
    if not file.exists():
        raise UserError(f"adapter {ref.name!r}: {file} does not exist. Train it again.")
    tensors = load_file(file)
    rank = next((v.shape[0] for k, v in tensors.items() if ".lora_A" in k), 1)
    root = math.sqrt(rank) if config.get("use_rslora") else rank
    scale = config["lora_alpha"] / root
    return adapter_of(ref.name, tensors, scale, shapes, ref.path)


def adapter_of(
    name: str,
    tensors: Mapping[str, Tensor],
    scale: float,
    shapes: Mapping[str, tuple[int, int]],
    path: str = "",
) -> Adapter:
    """An adapter from weights under PEFT's names; `scale` is alpha / rank. Raises UserError if a
    shape does not fit."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        module, _, part = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".lora_")
        pairs.setdefault(module, {})[part] = value.float()
    weights = {}
    for module, pair in pairs.items():
        if module not in shapes:
            raise UserError(
                f"adapter {name!r} ({path}) has weights for {module!r}, which is not a "
                f"linear layer of this model ({', '.join(sorted(shapes)[:8])}, ...). It was "
                "trained for another model: change the setting `model`, or train it again."
            )
        _fits(name, module, pair, shapes[module])
        weights[module] = (pair["A"], pair["B"] * scale)
    return Adapter(name, path, weights)


def _config(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"adapter {name!r}: cannot read {path} ({error}); needed: a folder in PEFT's format."
        ) from error
    used = [key for key in _UNSUPPORTED if config.get(key)]
    if config.get("peft_type") != "LORA" or used:
        raise UserError(
            f"adapter {name!r} ({path}) uses {config.get('peft_type')} with {used or 'no extras'}; "
            "the local policy runs plain LoRA only. Use the setting `policy=openai` for others."
        )
    return config


def _fits(name: str, module: str, pair: Mapping[str, Tensor], shape: tuple[int, int]) -> None:
    out, width = shape
    found = {part: tuple(value.shape) for part, value in sorted(pair.items())}
    a, b = found.get("A", ()), found.get("B", ())
    if len(a) != 2 or len(b) != 2 or a[1] != width or b[0] != out or a[0] != b[1]:
        raise UserError(
            f"adapter {name!r} does not fit the model: {module} has shape {shape}, so A must be "
            f"(r, {width}) and B ({out}, r); the adapter has A {a} and B {b}. Change the setting "
            "`model`, or train the adapter again."
        )
