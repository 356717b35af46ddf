"""One episode's tool classes. Each episode has instances of its own; the package's executor, which
keeps them in module globals and evaluates a model's text as Python, is not used."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

REFUSED = frozenset({"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"})
"""Names that the package's executor refuses."""
# MathAPI computes to as many digits as a call asks for, also where the number is a text, and
# repeats a text or a list that is multiplied; these limits keep a call under a second.
_MOST = {"precision": 1000, "decimal_places": 1000, "exponent": 1000}
_LARGEST = 1e300
_FILES = 10_000  # the most that may be copied: folders that are copied into each other double


@dataclass(frozen=True)
class BfclCall:
    """A tool call. `given` are positional arguments, which only the package's own calls have."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[Any, ...] = ()


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
        """What the tool returns, as the package's executor words it. An exception becomes the
        answer `Error during execution: ...`."""
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
        return method(*copy.deepcopy(call.given), **copy.deepcopy(dict(call.arguments)))


def parse(source: str) -> BfclCall:
    """A call from the package's answers, such as "cd(folder='temp')", whose arguments are literals.
    Raises ValueError for anything else."""
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{source!r} is no call") from error
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(f"{source!r} is no call")
    given = tuple(ast.literal_eval(argument) for argument in node.args)
    arguments = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    return BfclCall(node.func.id, arguments, given)


def named(call: BfclCall, classes: Sequence[str]) -> BfclCall:
    """The same call with all arguments by name, as a model writes it."""
    owner = next(c for c in reversed(classes) if call.name in methods_of(c))
    names = list(inspect.signature(getattr(tool_class(owner), call.name)).parameters)[1:]
    return BfclCall(call.name, {**dict(zip(names, call.given, strict=False)), **call.arguments})


@cache
def tool_class(name: str) -> type:
    """One of the package's tool classes. TravelAPI reads the clock for a traveller's age; here it
    reads the day of the package's release, so that an episode is the same on every day."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    module: Any = importlib.import_module(CLASS_FILE_PATH_MAPPING[name])
    if name == "TravelAPI":
        module.datetime = _Release
    found: type = getattr(module, name)
    return found


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


def _size(item: Any, known: dict[int, float]) -> float:
    """How many files and folders are in a folder; without end where it holds itself."""
    if id(item) not in known:
        known[id(item)] = math.inf
        inner = getattr(item, "contents", {}).values()
        known[id(item)] = sum(1 + _size(part, known) for part in inner)
    return known[id(item)]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is dict:
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            pass  # it holds an object, such as a number of mpmath
    return str(value)
