"""The entries of bfcl-eval's multi-turn categories with the schemas of their tools, and one
episode's tool classes. Each episode has instances of its own; the package's executor, which keeps
them in module globals and evaluates a model's text as Python, is not used."""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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
REFUSED = frozenset({"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"})
"""Names that the package's executor refuses."""
# MathAPI computes to as many digits as a call asks for, also where the number is a text, and
# repeats a text or a list that is multiplied; these limits keep a call under a second.
_MOST = {"precision": 1000, "decimal_places": 1000, "exponent": 1000}
_LARGEST = 1e300
_FILES = 10_000  # the most that may be copied: folders that are copied into each other double


@cache
def known_bad() -> Mapping[str, str]:
    """Entries whose answer no agent can find out (docs/bfcl.md): the reason by id ("base_4")."""
    reasons: Mapping[str, str] = json.loads(Path(__file__).with_name("known_bad.json").read_text())
    return reasons


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
    """The entries of these categories. UserError without the package in the tested version."""
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


# -- one episode ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BfclCall:
    """A tool call. `positional`: arguments without names, of the package's own calls only."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()


class BfclWorld:
    """The tool classes of an entry in their initial state."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        from bfcl_eval.constants.executable_backend_config import STATELESS_CLASSES

        self.instances: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        long = entry["category"] == "long_context"
        for name in entry["classes"]:
            instance = tool_class(name)()
            if name not in STATELESS_CLASSES:
                config = copy.deepcopy(entry["config"].get(name, {}))
                instance._load_scenario(config, long_context=long)
            self.instances[name] = instance
            self._methods.update({m: getattr(instance, m) for m in methods_of(name)})

    def call(self, call: BfclCall) -> str:
        """What the tool returns, or `Error during execution: ...`, as the package words it."""
        try:
            return _text(self._run(call))
        except Exception as error:  # the benchmark shows every error to the agent
            return f"Error during execution: {error}"

    def _run(self, call: BfclCall) -> Any:
        if call.name in REFUSED:
            raise ValueError(f"Function call {call.name} is not allowed.")
        if (method := self._methods.get(call.name)) is None:
            raise NameError(f"name {call.name!r} is not defined")
        if "MathAPI" in self.instances and call.name in methods_of("MathAPI"):
            _check_numbers(call.arguments)
        if call.name == "cp" and _is_full(self.instances["GorillaFileSystem"]):
            raise ValueError(f"there are more than {_FILES} files and folders")
        # Tools keep what they are given, so every replay gives them values of its own.
        return method(*copy.deepcopy(call.positional), **copy.deepcopy(dict(call.arguments)))


def parse(source: str) -> BfclCall:
    """A call in the package's answers, cd(folder='temp'), with literal arguments. ValueError."""
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{source!r} is no call") from error
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(f"{source!r} is no call")
    positional = tuple(ast.literal_eval(argument) for argument in node.args)
    arguments = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    return BfclCall(node.func.id, arguments, positional)


def named(call: BfclCall, classes: Sequence[str]) -> BfclCall:
    """The same call with all arguments by name, as a model writes it."""
    owner = next(c for c in reversed(classes) if call.name in methods_of(c))
    names = list(inspect.signature(getattr(tool_class(owner), call.name)).parameters)[1:]
    return BfclCall(
        call.name, {**dict(zip(names, call.positional, strict=False)), **call.arguments}
    )


@cache
def tool_class(name: str) -> type:
    """One of the package's tool classes. TravelAPI reads the clock for a traveller's age; here it
    reads the day of the package's release, so that an episode is the same on every day."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    module: Any = importlib.import_module(CLASS_FILE_PATH_MAPPING[name])
    if name == "TravelAPI":
        module.datetime = _Release
    cls: type = getattr(module, name)
    return cls


@cache
def methods_of(name: str) -> tuple[str, ...]:
    """The names of a class's tools: its public methods."""
    members = inspect.getmembers(tool_class(name)(), inspect.ismethod)
    return tuple(m for m, _ in members if not m.startswith("_"))


class _Release(datetime):
    """Stands in for the class of that name in the module of TravelAPI."""

    @classmethod
    def today(cls) -> _Release:
        return cls(2026, 3, 23)


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for what would compute without end."""
    repeated = any(isinstance(v, list) or _number(v) is None for v in arguments.values())
    for name, value in arguments.items():
        most = _MOST.get(name, 10**6 if repeated else _LARGEST)
        if (number := _number(value)) is not None and not abs(number) <= most:
            raise ValueError(f"{name} must be between -{most} and {most}")


def _number(value: Any) -> float | None:
    """A number, also one in a text, as the tools read it."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_full(files: Any) -> bool:
    """Whether a folder that can be reached holds more than `_FILES` files and folders, each as
    often as it stands there: a copy shares what it holds with the original. One that was removed is
    reached from what it shares."""
    left, sizes, seen = [files.root, files._current_dir], dict[int, float](), dict[int, Any]()
    while left:
        if id(item := left.pop()) not in seen and item is not None:
            seen[id(item)] = item
            left += [getattr(item, "parent", None), *getattr(item, "contents", {}).values()]
    try:
        return any(_size(item, sizes) > _FILES for item in seen.values())
    except RecursionError:
        return True


def _size(item: Any, sizes: dict[int, float]) -> float:
    """How many files and folders are in a folder; without end where it holds itself."""
    if id(item) not in sizes:
        sizes[id(item)] = math.inf
        inner = getattr(item, "contents", {}).values()
        sizes[id(item)] = sum(1 + _size(part, sizes) for part in inner)
    return sizes[id(item)]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is dict:
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            pass  # it holds an object, such as a number of mpmath
    return str(value)
