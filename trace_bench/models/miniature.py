"""Random models of a few hundred thousand parameters with the architecture of another one, for a
rehearsal: its layers in small, its tokenizer and template where they are at hand.

The architecture is read from the model's config.json where `model` is a folder, else taken from the
family by its name (`trainers.memory.SHAPES`); without a folder the tokenizer is the tiny agent's,
whose template is ChatML with calls as Qwen3 writes them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_object
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.memory import SHAPES, Sizes, shape_of

HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 32, 64, 96, 2  # vLLM on a CPU takes no smaller heads
EXPERTS, ACTIVE = 4, 2
CONFIG = "config.json"
WITH_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges.txt")
KINDS = {"Qwen3": "qwen3", "Qwen2.5": "qwen2", "SmolLM2": "llama"}
"""The architecture of a family, by how its models' names begin."""


@dataclass(frozen=True)
class Miniature:
    """`same`: what it has of the model that it stands for, `other`: what it has not, in words."""

    folder: Path
    same: tuple[str, ...]
    other: tuple[str, ...]


def make(model: str, folder: Path, context: int, seed: int = 0) -> Miniature:
    """Writes the miniature of a model (its folder or name) that holds so many tokens. Raises
    UserError for a model of which neither a folder nor a family is known."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    shape, source = shape_of(model), Path(model)
    if shape is None:
        families = ", ".join(SHAPES)
        raise UserError(
            f"the sizes of {model} are not known: it is no folder with a {CONFIG}, and of no known "
            f"family ({families}). Set `model.path` to its folder (the weights are not "
            "needed there), or change `model`."
        )
    at_hand = (source / CONFIG).is_file()
    facts = read_object(source / CONFIG) if at_hand else {"model_type": _kind(model, shape)}
    tokens = at_hand and any(source.glob("tokenizer*"))
    source = source if tokens else MODEL_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in WITH_TOKENIZER:
        for file in source.glob(name):
            shutil.copy(file, folder)
    ids = read_object(source / CONFIG)
    sizes = {**facts, **_small(shape, facts), "vocab_size": ids["vocab_size"]}
    config = AutoConfig.for_model(**sizes)
    config.max_position_embeddings = max(context, 1024)
    config.architectures = None
    config.eos_token_id, config.pad_token_id = ids["eos_token_id"], ids.get("pad_token_id")
    config.bos_token_id = ids.get("bos_token_id")
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return Miniature(folder, *_said(config, at_hand, tokens, model))


def _kind(model: str, shape: Sizes) -> str:
    name = model.rpartition("/")[2]
    kind = next(k for begin, k in KINDS.items() if name.lower().startswith(begin.lower()))
    return f"{kind}_moe" if shape.experts else kind


def _small(shape: Sizes, config: dict[str, Any]) -> dict[str, Any]:
    """The sizes, in the same relations where they matter: shared keys and values, tied ends."""
    sizes = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS if shape.kv_heads == shape.heads else HEADS // 2,
        "head_dim": HEAD_DIM,
        "intermediate_size": INNER,
        "tie_word_embeddings": shape.tied,
        "initializer_range": 0.1,  # wide enough that an adapter changes what is sampled
        "dtype": "float32",
        "use_cache": True,
    }
    if shape.experts:
        few = {"num_experts": EXPERTS, "num_experts_per_tok": ACTIVE}
        sizes |= {**few, "moe_intermediate_size": INNER // 2}
    if "layer_types" in config:
        sizes["layer_types"] = config["layer_types"][:LAYERS]
    return sizes


def _said(config: Any, at_hand: bool, tokens: bool, model: str) -> tuple[Any, Any]:
    experts = " with experts" if "moe" in config.model_type else ""
    ends = "tied" if config.tie_word_embeddings else "separate"
    same = [
        f"architecture {config.model_type}{experts}, by "
        f"{'its config.json' if at_hand else 'the family of its name'}",
        f"{ends} embeddings and head, {'its' if tokens else 'fewer'} {config.vocab_size} ids",
    ]
    other = [f"its size and weights ({LAYERS} layers of {HIDDEN}, random)"]
    if tokens:
        same.append("its tokenizer and chat template")
    else:
        other.append(
            f"the tokenizer and template of {model} (they are in no folder here; the tiny agent's "
            "stand in, with calls as Qwen3 writes them)"
        )
    return tuple(same), tuple(other)
