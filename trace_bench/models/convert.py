"""A GGUF file or a Hugging Face folder as a folder that runs and training take.

The weights become safetensors in bfloat16, at most (a GGUF file's are quantized: that rounding is
far below theirs). The tokenizer gets the chat template that is asked for, and the eos token that
ends a turn in it: a tokenizer that is read from a GGUF file may name another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core.chat import make_tool
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.store import plain_file, read_bytes, reason, write_json
from trace_bench.models import NOTE, Note
from trace_bench.tiny.template import CHAT_TEMPLATE, END, START

ARCHITECTURES = ("llama", "qwen2", "qwen3")
OWN, HERMES = "own", "hermes"
_TOOL = make_tool("zqxtool", "A tool.", x="string?")


def convert(source: Path, folder: Path, template: str, said: str = "") -> None:
    """Writes the model at `source` (a .gguf file, or a folder) to `folder`. `template`: "hermes" is
    ChatML with one line for each tool and Hermes calls, "own" the model's, else a Jinja file.
    `said`: what the model's note names as its source.

    Raises UserError for what cannot be read, another architecture, and a template or tokenizer
    that agents cannot use."""
    from trace_bench.policies.chat import Chat

    text = _template(template)
    how = _reads(source)
    tokenizer = _tokenizer(source, how, text, template)
    Chat(tokenizer, str(source)).check_tools(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], [_TOOL]
    )
    model = _weights(source, how)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.bos_token_id = model.generation_config.bos_token_id = None
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    with _quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    size = sum(p.numel() for p in model.parameters())
    kind = str(model.config.model_type)
    write_json(folder / NOTE, Note(said or str(source.resolve()), kind, size, template))


def _template(template: str) -> str | None:
    """The text of a chat template; None for the model's own."""
    if template == OWN:
        return None
    if template == HERMES:
        return CHAT_TEMPLATE
    try:
        return read_bytes(Path(template), "Change `--template`.").decode()
    except (OSError, ValueError) as error:
        raise UserError(
            f"--template {template}: {reason(error)}; allowed: {HERMES}, {OWN}, or a file with a "
            "Jinja template."
        ) from error


def _reads(source: Path) -> dict[str, Any]:
    """The arguments with which transformers reads a file or folder."""
    if source.is_dir():
        for file in (f for f in source.iterdir() if f.exists() and not f.is_dir()):
            with plain_file(file, "Name another folder."):
                pass  # else it might never end
        return {"pretrained_model_name_or_path": str(source)}
    if not source.is_file() or source.suffix != ".gguf":
        raise UserError(
            f"{source} is neither a folder nor a .gguf file; needed: a Hugging Face model's folder "
            "or a GGUF file. Name another path."
        )
    try:
        import gguf  # noqa: F401  transformers reads GGUF with it
    except ImportError as error:
        raise UserError(
            "a GGUF file is read with the package gguf: pip install '.[gguf]'."
        ) from error
    return {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}


def _tokenizer(source: Path, how: dict[str, Any], text: str | None, template: str) -> Any:
    from transformers import AutoTokenizer

    with _reading(source):
        tokenizer = AutoTokenizer.from_pretrained(trust_remote_code=False, **how)
    tokenizer.clean_up_tokenization_spaces = False
    if text is not None:
        tokenizer.chat_template = text
    if template == HERMES:
        for token in (START, END):
            if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
                raise UserError(
                    f"{token} is no token of {source}, so --template hermes (ChatML) does not fit "
                    "it. Use --template own, or a file with a template for this model."
                )
        tokenizer.eos_token = tokenizer.pad_token = END
    return tokenizer


def _weights(source: Path, how: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with _reading(source):
        config = AutoConfig.from_pretrained(trust_remote_code=False, **how)
        if config.model_type not in ARCHITECTURES:
            raise unknown("architecture", config.model_type, ARCHITECTURES, "add PATH")
        if "gguf_file" not in how:
            return AutoModelForCausalLM.from_pretrained(
                dtype="auto", trust_remote_code=False, **how
            )
        model: Any = AutoModelForCausalLM.from_pretrained(
            dtype=torch.float32, trust_remote_code=False, **how
        )
    return model.to(torch.bfloat16)


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Reads quietly; raises UserError for a file that cannot be read."""
    try:
        with _quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # a damaged file may raise anything
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise UserError(
            f"{source} cannot be read as a language model ({type(error).__name__}: {why}). Needed: "
            f"a GGUF file or Hugging Face folder of one of {', '.join(ARCHITECTURES)}."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars of transformers and of its GGUF reader."""
    import transformers.modeling_gguf_pytorch_utils as reader
    from transformers.utils import logging

    enabled, bar = logging.is_progress_bar_enabled(), reader.tqdm
    logging.disable_progress_bar()
    reader.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        reader.tqdm = bar
        if enabled:
            logging.enable_progress_bar()
