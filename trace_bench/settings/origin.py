"""The origin of a part from outside the package: module, version, and a hash of its source.

The hash covers the file that defines the part and the modules beside it that it imports, or every
Python file of its package, so that changed code gives a different run. It does not cover data files
and other installed packages; a suite can report those in its `about`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.factory import Factory
from trace_bench.settings.state import state_of


@dataclass(frozen=True)
class Origin:
    """Where a part's code comes from. `version`: of the installed package; None for a local file.
    `state`: of an object that was passed in Python (`settings.state`)."""

    module: str
    attribute: str
    version: str | None
    sha256: str
    state: Any = None


def origin_of(factory: Factory, distribution: metadata.Distribution | None) -> Origin:
    """The origin of a factory's target. Raises UserError if its source cannot be read."""
    target = factory.target
    module = factory.text.partition(":")[0]
    attribute = factory.text.partition(":")[2]
    files = list(_files(module))
    digest = hashlib.sha256()
    if files:
        for path in files:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    else:
        digest.update(_text(target, factory).encode())
    version = distribution.version if distribution is not None else _version(module)
    state = None if factory.importable else state_of(target, factory.where)
    return Origin(module, attribute, version, digest.hexdigest()[:16], state)


def _version(module: str) -> str | None:
    """Version of the installed package that contains a module; None for a local file."""
    file = vars(sys.modules[module]).get("__file__") or "" if module in sys.modules else ""
    if not {"site-packages", "dist-packages"} & set(Path(file).parts):
        return None
    packages = metadata.packages_distributions().get(module.partition(".")[0], [])
    return metadata.version(packages[0]) if packages else None


def _files(module: str) -> Iterator[Path]:
    """The source files of a module, in a fixed order; none for a module typed in a console."""
    found = sys.modules.get(module)
    file = Path(str(found.__file__)) if found is not None and _has_file(found) else None
    if file is None or not file.is_file():
        return
    root = sys.modules[module.partition(".")[0]]
    if _has_file(root) and Path(str(root.__file__)).name == "__init__.py":
        yield from sorted(Path(str(root.__file__)).parent.rglob("*.py"))
        return
    yield from sorted(_with_siblings(file))


def _has_file(module: Any) -> bool:
    return bool(vars(module).get("__file__"))


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
    made = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    try:
        return inspect.getsource(made)
    except (OSError, TypeError) as error:
        raise UserError(
            f"the source of {factory.text} cannot be read ({error}), and it is part of the run's "
            "identity. Put it into a file and import it from there."
        ) from error
