"""What of a part from outside the package belongs to a run's identity: module, version, a hash of
its source and, of an object that was given in Python, its state.

The hash covers the file that defines the part and the modules beside it that it imports, or every
Python file of its package, so that changed code gives a different run. It does not cover data files
and other installed packages; a suite can report those in its `about`. The state is the
constructor's arguments if the object keeps all of them in attributes of the same names (with or
without a leading underscore), else all attributes: `Suite(size=24)` and `Suite(size=48)` give
different runs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

from trace_bench.core.checked import parameters, takes_any
from trace_bench.core.errors import UserError
from trace_bench.core.factory import Factory
from trace_bench.core.store import canonical

DEEPEST = 12  # levels of objects within objects
LONGEST = 4000  # characters; a longer state is stored as a hash


@dataclass(frozen=True)
class Origin:
    """Where a part's code comes from. `version`: None for a file that is not installed."""

    module: str
    attribute: str
    version: str | None
    sha256: str
    state: Any = None


def origin_of(factory: Factory, distribution: metadata.Distribution | None) -> Origin:
    """The origin of a factory's target. Raises UserError if its source cannot be read."""
    target = factory.target
    module, _, attribute = factory.text.partition(":")
    digest = hashlib.sha256()
    for path in (files := list(_files(module))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    if not files:
        digest.update(_text(target, factory).encode())
    version = distribution.version if distribution is not None else _version(module)
    state = None if factory.importable else state_of(target, factory.where)
    return Origin(module, attribute, version, digest.hexdigest()[:16], state)


def _version(module: str) -> str | None:
    """Version of the installed package that contains a module; None for a local file."""
    file = _file(module)
    if file is None or not {"site-packages", "dist-packages"} & set(file.parts):
        return None
    packages = metadata.packages_distributions().get(module.partition(".")[0], [])
    return metadata.version(packages[0]) if packages else None


def _file(module: str) -> Path | None:
    """The file of an imported module; None for one typed in a console."""
    file = vars(sys.modules[module]).get("__file__") if module in sys.modules else None
    return Path(file) if file else None


def _files(module: str) -> Iterator[Path]:
    """The source files of a module, in a fixed order; none for a module typed in a console."""
    file, root = _file(module), _file(module.partition(".")[0])
    if file is None or not file.is_file():
        return
    if root is not None and root.name == "__init__.py":
        yield from sorted(root.parent.rglob("*.py"))
    else:
        yield from sorted(_with_siblings(file))


def _with_siblings(file: Path) -> set[Path]:
    """The file and the modules beside it that it imports, directly or indirectly."""
    seen: set[Path] = set()
    left = [file.resolve()]
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imports(path):
            beside = path.parent / f"{name}.py"
            package = path.parent / name / "__init__.py"
            if beside.is_file():
                left.append(beside)
            elif package.is_file() and "site-packages" not in package.parts:
                left += package.parent.rglob("*.py")
    return seen


def _imports(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # a sibling that is never imported
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
            if node.level and not node.module:
                names |= {a.name for a in node.names}
    return names - {"", "trace_bench"}


def _text(target: Any, factory: Factory) -> str:
    """The source of a target without a file, such as a class typed in a notebook."""
    source = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    try:
        return inspect.getsource(source)
    except (OSError, TypeError) as error:
        raise UserError(
            f"the source of {factory.text} cannot be read ({error}), and it is part of the run's "
            "identity. Put it into a file and import it from there."
        ) from error


def name_of(target: Any) -> str:
    """ "module:attribute" of a class or function, or of an object's class."""
    if isinstance(target, functools.partial):
        return name_of(target.func)
    named = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    return f"{named.__module__}:{named.__qualname__}"


def state_of(target: Any, where: str) -> Any:
    """The object's state as JSON-safe data. Raises UserError if it is nested too deeply."""
    state = _plain(target, where, DEEPEST + 1)
    if isinstance(state, dict):
        state.pop("is", None)  # the origin has it
    elif inspect.isclass(target) or inspect.isroutine(target):
        return {}
    text = canonical(state)
    if len(text) > LONGEST:
        return {"sha256": hashlib.sha256(text.encode()).hexdigest()[:16]}
    return state


def _plain(value: Any, where: str, left: int) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)  # JSON has no nan and no inf
    if isinstance(value, Enum | PurePath):
        return str(value)
    if left == 0:
        raise UserError(
            f"the object in `{where}` is nested more than {DEEPEST} levels deep, so that it cannot "
            "be part of the run's identity. Give a class or function instead, and its arguments "
            "as options."
        )
    within = functools.partial(_plain, where=where, left=left - 1)
    if isinstance(value, Mapping):
        return {str(key): within(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [within(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(canonical(within(inner)) for inner in value)
    named = name_of(value)
    inner = {name: within(held) for name, held in _attributes(value).items()}
    if inner:
        return {"is": named, **inner}
    if inspect.isclass(value) or inspect.isroutine(value):
        return named
    return {"is": named, "sha256": _pickled(value)}


def _attributes(target: Any) -> Mapping[str, Any]:
    """Constructor arguments, or else all attributes; a function's closure; none of a class."""
    if inspect.isclass(target):
        return {}
    if isinstance(target, functools.partial):
        return {"func": target.func, "args": target.args, "keywords": target.keywords}
    if inspect.ismethod(target):
        return {"self": target.__self__}
    if inspect.isfunction(target):
        cells = zip(target.__code__.co_freevars, target.__closure__ or (), strict=True)
        return {name: cell.cell_contents for name, cell in cells}
    slots = [n for cls in type(target).__mro__ for n in vars(cls).get("__slots__", ())]
    held = {n: getattr(target, n) for n in slots if n[:2] != "__" and hasattr(target, n)}
    held |= getattr(target, "__dict__", {})
    places = {n: n if n in held else f"_{n}" for n in parameters(type(target))}
    if places and not takes_any(type(target)) and held.keys() >= set(places.values()):
        return {name: held[place] for name, place in places.items()}
    return held


def _pickled(value: Any) -> str | None:
    """Hash of an object without attributes, such as an array; None if none can be made."""
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
    except Exception:  # a lock or a file: no run depends on it
        return None
