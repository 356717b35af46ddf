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
from trace_bench.core.decode import fits
from trace_bench.core.errors import UserError
from trace_bench.core.store import plain_file, read_bytes
from trace_bench.core.types import AdapterRef

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = FILES
_PREFIX = "base_model.model."
SILENT = (  # settings that do not change what the tensors mean once they are trained
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "target_modules", "exclude_modules", "lora_dropout", "layers_to_transform",
    "layers_pattern", "megatron_core", "loftq_config", "qalora_group_size", "runtime_config",
)  # fmt: skip
ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_rslora": (True, False),
    # Those that leave the base model's weights alone; PiSSA, LoftQ and others rewrite them.
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),
}
"""The values of settings that are understood; any other must be off."""


@dataclass(frozen=True)
class Adapter:
    """`weights` maps a linear module's name to (A [r, in], scale · B [out, r])."""

    name: str
    path: str
    weights: Mapping[str, tuple[Tensor, Tensor]]


def read_adapter(ref: AdapterRef, shapes: Mapping[str, tuple[int, int]]) -> Adapter:
    """Reads an adapter for a model whose linear modules have `shapes` name -> (out, in). Raises
    UserError if files are missing, a setting is not one of plain LoRA, or a shape does not fit."""
    config, tensors = read_whole(ref)
    return adapter_of(ref.name, tensors, scale_of(config), shapes, ref.path)


def read_whole(ref: AdapterRef) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An adapter's configuration and tensors, as `read_config` and `read_weights` give them. Raises
    UserError, also for tensors of other ranks than the configuration's."""
    config, tensors = read_config(ref), read_weights(ref)
    ranks = {(*value.shape, 0)[0] for name, value in tensors.items() if ".lora_A" in name}
    if ranks != {config["r"]}:
        raise UserError(
            f"adapter {ref.name!r} ({ref.path}) has r={config['r']} and tensors of the ranks "
            f"{sorted(ranks)}; plain LoRA has one rank. Train the adapter again."
        )
    return config, tensors


def scale_of(config: Mapping[str, Any]) -> float:
    """What B A is multiplied by."""
    rank = config["r"]
    return float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)


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
    if not tensors:
        raise _damaged(ref, path, "it holds no tensors")
    return tensors


def _damaged(ref: AdapterRef, path: Path, why: str) -> UserError:
    """A run's own adapter can be made again: its rollouts are stored."""
    return UserError(
        f"adapter {ref.name!r}: cannot read {path} ({why}). Needed: a folder in PEFT's format. An "
        "adapter that this run has trained is trained again from the stored rollouts, without new "
        f"ones, when {Path(ref.path).parent} is removed and the same command run again."
    )


def read_config(ref: AdapterRef) -> dict[str, Any]:
    """The configuration of a plain LoRA adapter. Raises UserError if it cannot be read, and for a
    setting that would change what the tensors mean."""
    path = Path(ref.path) / CONFIG
    try:
        config = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(ref, path, str(error)) from error
    config = config if isinstance(config, dict) else {}
    r, alpha = config.get("r"), config.get("lora_alpha")
    real = isinstance(alpha, int | float) and type(alpha) is not bool and fits(alpha)
    if type(r) is not int or r < 1 or not real:
        raise _damaged(ref, path, f"its r is {r!r} and its lora_alpha {alpha!r}: no numbers")
    for name, value in {"peft_type": None, **config}.items():
        allowed = ALLOWED.get(name, (None, False, [], {}))
        if name not in ("r", "lora_alpha", *SILENT) and value not in allowed:
            raise UserError(
                f"adapter {ref.name!r} ({ref.path}) has {name}={value!r}; plain LoRA has "
                f"{' or '.join(map(repr, allowed))}. A server may know others (`policy=openai`)."
            )
    return config


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
