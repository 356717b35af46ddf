"""What a module of a language model may not contain, found by reading it.

The sandbox is what protects from it; these restrictions are about what an environment is: its own
code, the same at every hour and in every process, and no wrapper around the benchmark.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

MODULES = frozenset(
    (
        *("__future__", "collections", "copy", "dataclasses", "datetime", "enum", "functools"),
        *(
            "itertools",
            "json",
            "math",
            "random",
            "re",
            "string",
            "typing",
            "trace_bench.core.types",
        ),
    )
)
NAMES = frozenset(
    (
        *("open", "exec", "eval", "compile", "__import__", "globals", "locals", "vars"),
        *("input", "breakpoint", "memoryview"),
    )
)
CLOCKS = frozenset(("now", "today", "utcnow", "SystemRandom"))
DEFINED = ("make_task", "reference", "Env")
MOST = 60_000  # characters


def violations(code: str) -> list[str]:
    """What is wrong, each in words for the author; [] when all is well. Never raises."""
    if len(code) > MOST:
        return [f"the module has {len(code)} characters; allowed: {MOST}."]
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"the module is not Python: {error}."]
    out = list(dict.fromkeys(_faults(tree)))
    there = {getattr(node, "name", "") for node in tree.body}
    there |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in _names(n)}
    out += [f"`{name}` is not defined at the top of the module." for name in DEFINED
            if name not in there]  # fmt: skip
    return out


def _names(node: ast.Assign) -> list[ast.Name]:
    return [t for t in node.targets if isinstance(t, ast.Name)]


def _faults(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for module in _imported(node):
            if module not in MODULES and module.partition(".")[0] not in MODULES:
                allowed = ", ".join(sorted(MODULES))
                yield f"line {node.lineno}: import of {module}; allowed: {allowed}."  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id in NAMES:
            yield f"line {node.lineno}: {node.id} may not be used."
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("__") and node.attr != "__init__":
                yield f"line {node.lineno}: .{node.attr} may not be used."
            if node.attr in CLOCKS:
                yield f"line {node.lineno}: .{node.attr} is not the same at every hour."


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "."] if not node.level else ["." * node.level]
    return []
