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

from trace_bench.core.beginning import WEIGHTS as FILES
from trace_bench.core.errors import UserError
from trace_bench.core.store import plain_file, read_bytes
from trace_bench.core.types import AdapterRef

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = FILES
_PREFIX = "base_model.model."
_UNSUPPORTED = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias")


@dataclass(frozen=True)
class Adapter:
    """`weights` maps a linear module's name to (A [r, in], scale · B [out, r])."""

    name: str
    path: str
    weights: Mapping[str, tuple[Tensor, Tensor]]


def read_adapter(ref: AdapterRef, shapes: Mapping[str, tuple[int, int]]) -> Adapter:
    """Reads an adapter for a model whose linear modules have `shapes` name -> (out, in). Raises
    UserError if files are missing, a feature is unsupported, or a shape does not fit."""
    config = read_config(ref)
    used = [key for key in _UNSUPPORTED if config.get(key)]
    if config.get("peft_type") != "LORA" or used:
        raise UserError(
            f"adapter {ref.name!r} ({ref.path}) uses {config.get('peft_type')} with "
            f"{used or 'no extras'}; the local policy runs plain LoRA only. Use the setting "
            "`policy=openai` for others."
        )
    tensors = read_weights(ref)
    rank = next((v.shape[0] for k, v in tensors.items() if ".lora_A" in k), 1)
    return adapter_of(ref.name, tensors, scale_of(config, rank), shapes, ref.path)


def scale_of(config: Mapping[str, Any], rank: int) -> float:
    """What B A is multiplied by."""
    return float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def check_paths(loaded: Mapping[str, str], wanted: Mapping[str, AdapterRef]) -> None:
    """Raises UserError if a name stands for another path than before. `known`: paths by name."""
    for name, path in loaded.items():
        if name in wanted and wanted[name].path != path:
            raise UserError(
                f"adapter name {name!r} stands for {path} and for {wanted[name].path}; a name "
                "is never used twice."
            )


def adapter_of(
    name: str,
    tensors: Mapping[str, Tensor],
    scale: float,
    shapes: Mapping[str, tuple[int, int]],
    path: str = "",
) -> Adapter:
    """An adapter from weights under PEFT's names. Raises UserError if a shape does not fit."""
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


def read_weights(ref: AdapterRef) -> dict[str, Tensor]:
    """The adapter's tensors by PEFT's names. Raises UserError for a file that is missing or
    damaged, and for a number that is not finite."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(ref.path) / WEIGHTS
    try:
        with plain_file(path):  # else it might never end
            tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(ref, path, str(error)) from error
    for name, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise _damaged(ref, path, f"{name} holds numbers that are not finite")
    return tensors


def _damaged(ref: AdapterRef, path: Path, why: str) -> UserError:
    """A run's own adapter can be made again: its rollouts are stored."""
    folder = Path(ref.path).parent
    return UserError(
        f"adapter {ref.name!r}: cannot read {path} ({why}). Needed: a folder in PEFT's format. An "
        f"adapter that this run has trained is trained again from the stored rollouts, without "
        f"new ones, when {folder} is removed and the same command run again."
    )


def read_config(ref: AdapterRef) -> dict[str, Any]:
    """The adapter's configuration. Raises UserError if it cannot be read."""
    path = Path(ref.path) / CONFIG
    try:
        config = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(ref, path, str(error)) from error
    alpha = config.get("lora_alpha") if isinstance(config, dict) else None
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise _damaged(ref, path, f"its lora_alpha is {alpha!r}, no number")
    return dict(config)


def _fits(name: str, module: str, pair: Mapping[str, Tensor], shape: tuple[int, int]) -> None:
    out, width = shape
    sizes = {part: tuple(value.shape) for part, value in sorted(pair.items())}
    a, b = sizes.get("A", ()), sizes.get("B", ())
    if len(a) != 2 or len(b) != 2 or a[1] != width or b[0] != out or a[0] != b[1]:
        raise UserError(
            f"adapter {name!r} does not fit the model: {module} has shape {shape}, so A must be "
            f"(r, {width}) and B ({out}, r); the adapter has A {a} and B {b}. Change the setting "
            "`model`, or train the adapter again."
        )
