"""The entries of bfcl-eval's multi-turn categories and the schemas of their tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trace_bench.core.chat import tool_json
from trace_bench.core.types import Tool
from trace_bench.envs import package_folder

PACKAGE, VERSION = "bfcl-eval", "2026.3.23"
INSTALL = f"pip install 'mpmath>=1.3' && pip install --no-deps {PACKAGE}=={VERSION}"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SCENARIOS = 200  # of the category base; the other categories vary them, under the same numbers

# The names of JSON schema for those of the package that differ.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "any": "string"}


@cache
def known_bad() -> Mapping[str, str]:
    """Entries whose answer no agent can find out (docs/bfcl.md): the reason by id ("base_4")."""
    found: Mapping[str, str] = json.loads(Path(__file__).with_name("known_bad.json").read_text())
    return found


@dataclass(frozen=True)
class Data:
    """The entries of some categories as plain data, in the package's order, and their revision.

    An entry has `id` ("miss_func_12"), `category`, `scenario` (0 ... 199), `classes` (names of tool
    classes), `config` (their initial states), `turns` (the user's text of each turn; None where
    withheld tools are handed over), `withheld` (turn, as text, to names of tools) and `answers`
    (for each turn the package's own calls, as Python source)."""

    entries: tuple[Mapping[str, Any], ...]
    revision: str


def load(categories: Sequence[str]) -> Data:
    """The entries of these categories. Raises UserError if the package is missing or has another
    version than the tested one."""
    folder, digest = installed() / "data", hashlib.sha256()
    entries: list[Mapping[str, Any]] = []
    for category in categories:
        name = f"BFCL_v4_multi_turn_{category}.json"
        texts = [(folder / name).read_bytes(), (folder / "possible_answer" / name).read_bytes()]
        for text in texts:
            digest.update(text)
        for raw, answer in zip(*map(_lines, texts), strict=True):
            entries.append(_entry(category, raw, answer["ground_truth"]))
    return Data(tuple(entries), f"{PACKAGE} {VERSION}, entries {digest.hexdigest()[:12]}")


def installed() -> Path:
    """Where bfcl-eval is installed, without the packages that it pins. Raises UserError."""
    return package_folder("bfcl", PACKAGE, VERSION, INSTALL, "bfcl_eval", "mpmath")


def tools_of(entry: Mapping[str, Any]) -> tuple[tuple[Tool, ...], Mapping[str, tuple[Tool, ...]]]:
    """(the tools at the start, the withheld tools by turn)."""
    everything = [tool for name in entry["classes"] for tool in _schemas(name)]
    later = {
        turn: tuple(tool for tool in everything if tool["function"]["name"] in names)
        for turn, names in entry["withheld"].items()
    }
    hidden = {name for names in entry["withheld"].values() for name in names}
    return tuple(t for t in everything if t["function"]["name"] not in hidden), later


def more_tools(tools: Sequence[Tool]) -> str:
    """The user's text that hands over withheld tools: their schemas, then the package's own
    sentence. (An episode's list of tools is fixed at its start, so they stand in the text, as they
    do for the package's prompted models.)"""
    from bfcl_eval.constants.default_prompts import (
        DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC as SENTENCE,
    )

    listed = "\n".join(json.dumps(tool["function"]) for tool in tools)
    return f"{listed}\n{SENTENCE}"


def _entry(category: str, raw: Mapping[str, Any], answers: list[list[str]]) -> dict[str, Any]:
    number = int(raw["id"].rpartition("_")[2])
    return {
        "id": f"{category}_{number}",
        "category": category,
        "scenario": number,
        "classes": raw["involved_classes"],
        "config": raw["initial_config"],
        "turns": [turn[0]["content"] if turn else None for turn in raw["question"]],
        "withheld": raw.get("missed_function", {}),
        "answers": answers,
    }


@cache
def _schemas(name: str) -> tuple[Tool, ...]:
    from bfcl_eval.constants.executable_backend_config import (
        MULTI_TURN_FUNC_DOC_FILE_MAPPING as FILES,
    )

    file = installed() / "data" / "multi_turn_func_doc" / FILES[name]
    docs = _lines(file.read_bytes())
    return tuple(tool_json(d["name"], d["description"], _schema(d["parameters"])) for d in docs)


def _schema(value: Any) -> Any:
    """A JSON schema from the package's, which has type names of its own."""
    if isinstance(value, list):
        return [_schema(part) for part in value]
    if not isinstance(value, dict):
        return value
    out = {key: _schema(part) for key, part in value.items()}
    if isinstance(kind := value.get("type"), str):
        out["type"] = _TYPES.get(kind, kind)
    return out


def _lines(text: bytes) -> Iterator[Any]:
    return (json.loads(line) for line in text.decode().splitlines() if line.strip())
