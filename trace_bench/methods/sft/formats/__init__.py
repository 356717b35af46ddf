"""Demonstrations of others: the files of `method.data`, each read by what is in it.

.jsonl   a line is a trajectory of the Agent Data Protocol, or a conversation in OpenAI's format
.json    a document of ATIF, or a log of Inspect
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines, read_bytes
from trace_bench.methods.sft.formats import adp, atif, inspect_log, openai
from trace_bench.methods.sft.formats.found import Dialogue

ENDINGS = (".json", ".jsonl")
LONGEST = 64 * 2**20  # bytes of a conversation


def read(place: Path) -> Iterator[Dialogue]:
    """The conversations of a file, or of all files in a folder and below it, by name. Raises
    UserError naming file, line and field of what is not in its format."""
    if not place.is_dir():
        yield from _file(place)
        return
    files = sorted(p for p in place.rglob("*") if p.suffix in ENDINGS and p.is_file())
    if not files:
        raise UserError(
            f"method.data={place} holds no file that ends in {' or '.join(ENDINGS)}. Change "
            "`method.data`."
        )
    for path in files:
        yield from _file(path)


def _file(path: Path) -> Iterator[Dialogue]:
    if path.suffix == ".eval":
        raise UserError(
            f"{path} is compressed by Inspect. Convert it: inspect log convert {path} --to json "
            "--output-dir DIR; then set `method.data` to DIR."
        )
    fix = "Change `method.data`."
    try:
        if path.suffix == ".json":
            yield from _document(_parsed(read_bytes(path, fix), str(path)), str(path))
            return
        for number, line in bounded_lines(path, LONGEST, fix):
            where = f"{path}, line {number}"
            data = _parsed(line, where)
            known = isinstance(data, dict) and openai.is_one(data)
            yield openai.read(data, where) if known else adp.read(data, where)
    except FileNotFoundError as error:
        raise UserError(f"{path} cannot be read ({error}). {fix}") from error


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); see `method.data`.") from error


def _document(data: Any, where: str) -> Iterator[Dialogue]:
    if isinstance(data, dict) and atif.is_one(data):
        yield atif.read(data, where)
    elif isinstance(data, dict) and inspect_log.is_one(data):
        yield from inspect_log.read(data, where)
    else:
        raise UserError(
            f"{where} is neither a document of ATIF 1 (field schema_version) nor a log of Inspect "
            "(fields version and eval). Change `method.data`."
        )
