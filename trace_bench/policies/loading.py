"""Models from a folder or a hub name, through transformers: all that is read of them is read here.

A program that comes with a model is run only where the settings ask for it
(`model.trust_remote_code`); without an answer transformers would ask at the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.settings.models import trusted

if TYPE_CHECKING:
    from trace_bench.policies.precision import DType


def load_model(
    model_path: str | Path, device: str = "cpu", dtype: DType = "float32"
) -> tuple[Any, Any]:
    """(model in evaluation mode, tokenizer). `dtype`: the numbers of its products
    (`policies.precision`). Raises UserError, as all of these do, for what cannot be loaded."""
    from transformers import AutoModelForCausalLM

    from trace_bench.policies.precision import cast_products, chosen

    tokenizer = load_tokenizer(model_path)
    with _loading(model_path) as trust:
        model: Any = AutoModelForCausalLM.from_pretrained(  # the stub of `to` has another type
            model_path, dtype="auto", trust_remote_code=trust
        )
    size = sum(p.numel() for p in model.parameters())
    cast_products(model, chosen(dtype, size, device))
    return model.to(device).eval(), tokenizer


def load_tokenizer(model_path: str | Path) -> Any:
    from transformers import AutoTokenizer

    with _loading(model_path) as trust:
        return AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust)


def load_config(model_path: str | Path) -> Any:
    from transformers import AutoConfig

    with _loading(model_path) as trust:
        return AutoConfig.from_pretrained(model_path, trust_remote_code=trust)


def without_weights(model_path: str | Path) -> Any:
    """The model on torch's device "meta", from its configuration."""
    import torch
    from transformers import AutoModelForCausalLM

    config = load_config(model_path)
    with _loading(model_path) as trust, torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)


@contextmanager
def _loading(model_path: str | Path) -> Iterator[bool]:
    """Loads without progress bars, and raises UserError for what cannot be loaded. Gives whether
    the model's own program may run."""
    place = str(model_path)
    if not Path(place).exists() and (place[:1] in "./~" or place.count("/") > 1):
        raise UserError(
            f"cannot load a model from {place!r}: there is no such folder. Change `model.path`."
        )
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # transformers' bar for loading would disturb ours
    try:
        yield trusted(place)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        if "trust_remote_code" in why:
            raise UserError(
                f"the model {place!r} comes with a program of its own, and none is run here. Serve "
                "it with vLLM's --trust-remote-code and policy=openai, change `model.path`, or, if "
                "you have read that program, set model.trust_remote_code=true (model=hf)."
            ) from error
        raise UserError(
            f"cannot load a model from {place!r}: {why}. Needed: a folder or hub name of a Hugging "
            "Face causal language model. Change the setting `model`."
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()
