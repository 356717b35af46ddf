"""What the package takes from verl is there, each by its name: where a release of verl moved
something, this says what, before a job fails in one of its processes."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

PLACE = "trace_bench.trainers.verl"
FOLDER = Path(__file__).parents[2] / PLACE.replace(".", "/")
OURS = {
    "steps.StepTrainer": {
        "iteration", "submit", "episodes", "end", "actors", "advantages", "_several",
        "_minibatches",
    },
    "sampler.Sampler": {"wait"},
    "engine.VerlEngine": set[str](),
    "episodes.EpisodeLoop": set[str](),
    "cpu.CpuPlatform": set[str](),
    "cpu.server.CpuReplica": set[str](),
    "cpu.server.CpuRollout": set[str](),
    "cpu.server.CpuWorker": set[str](),
}  # fmt: skip
"""The methods that are called here alone; all others of these classes take the place of verl's."""


def trees() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(FOLDER.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def parts() -> Iterator[tuple[str, type, type]]:
    """The name of each class that inherits one of verl's, itself, and verl's."""
    import trace_bench.trainers.verl.cpu  # noqa: F401  the platform, before verl is asked for one

    for path, tree in trees():
        inner = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.bases:
                kind = getattr(import_module(f"{PLACE}.{inner}"), node.name)
                base = kind.__mro__[1]
                if base.__module__.split(".")[0] == "verl":
                    yield f"{inner}.{node.name}", kind, base


def test_every_name_that_is_imported_is_there() -> None:
    names = {
        (node.module or "", alias.name)
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "verl"
        for alias in node.names
    }
    assert len(names) > 20
    missing = []
    for module, name in sorted(names):
        try:
            if not hasattr(import_module(module), name):
                import_module(f"{module}.{name}")
        except ImportError as error:
            missing.append(f"from {module} import {name}: {error}")
    assert not missing


def test_what_takes_the_place_of_a_method_is_called_by_that_name_and_so() -> None:
    seen = {name: (kind, base) for name, kind, base in parts()}
    assert seen.keys() == OURS.keys()
    for name, (kind, base) in seen.items():
        functions = {n: f for n, f in vars(kind).items() if callable(f) or isinstance(f, property)}
        new = {n for n in functions if not hasattr(base, n) and not n.startswith("__")}
        assert new == OURS[name], f"{base.__module__}.{base.__name__} has not what {name} changes"
        for each in functions.keys() - new - {"__init__"}:
            takes(f"{name}.{each}", functions[each], getattr(base, each))


def takes(name: str, ours: Any, verls: Any) -> None:
    """Fails unless the function takes the arguments of the one whose place it has."""
    if isinstance(verls, property) or not inspect.isfunction(verls):
        return
    empty, named = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    every = [
        p for p in inspect.signature(verls).parameters.values() if p.kind < 2 or p.kind == named
    ]
    by_name = {p.name: None for p in every if p.kind == named and p.default is empty}
    try:
        inspect.signature(ours).bind(*[None for p in every if p.kind != named], **by_name)
    except TypeError as error:
        raise AssertionError(f"{name}{inspect.signature(verls)}: {error}") from error


def test_the_methods_of_verl_that_are_called_are_there() -> None:
    for name, kind, base in parts():
        source = Path(sys.modules[kind.__module__].__file__ or "").read_text()
        classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
        (tree,) = (n for n in classes if n.name == kind.__name__)
        functions = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
        methods = [f for f in functions if isinstance(f, ast.Attribute)]
        called = {f.attr for f in methods if ast.unparse(f.value) in ("self", "super()")}
        missing = {n for n in called if not hasattr(kind, n)} - set(instance_attributes(tree))
        assert not missing, f"{base.__module__}.{base.__name__} has not what {name} calls"


def instance_attributes(tree: ast.AST) -> Iterator[str]:
    """The names that a class gives to what it keeps."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
