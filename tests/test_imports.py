"""Imports run one way. This reads them, so that the rule stays true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "trace_bench"

# Part of the package -> the parts it may import from (itself is always allowed).
ALLOWED = {
    "types": set(),
    "errors": set(),
    "text": set(),
    "protocols": {"types"},
    "store": {"types", "errors"},
    "ledger": {"types", "errors", "store"},
    "envs": {"types", "errors", "protocols", "store"},
    "llm": {"types", "errors", "store", "text"},
    "policies": {"types", "errors", "protocols", "store", "llm", "text"},
    "rollouts": {"types", "errors", "protocols", "policies", "envs", "text"},
    "trainers": {"types", "errors", "protocols", "store", "policies", "rollouts"},
    "evaluate": {"types", "errors", "protocols", "store", "rollouts", "progress"},
    "methods": {
        *("types", "errors", "protocols", "store", "llm", "policies", "trainers", "envs", "tiny"),
    },
    "tiny": {"types", "errors", "store", "policies", "rollouts", "envs", "results"},
    "results": {"types", "errors", "store"},
    "sandbox": {"types", "errors", "protocols", "envs"},
    "progress": set(),
    "trackers": {"schema", "store", "wandb_tracker"},
    "wandb_tracker": {"errors", "store", "trackers"},
    "lab": {
        *("types", "errors", "protocols", "store", "ledger", "rollouts", "progress", "trackers"),
        *("envs", "llm"),
    },
}
HEAVY = {"torch", "transformers", "peft"}


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every imported module's full name, at whatever depth of the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def inside(names: set[str]) -> set[str]:
    """Parts of the package among imported names."""
    return {n.split(".")[1] for n in names if n.startswith("trace_bench.")}


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_part_imports_only_what_lies_before_it(name: str) -> None:
    files = [p for p in PACKAGE.rglob("*.py") if part(p) == name]
    assert files, f"no such part: {name}"
    for path in files:
        extra = inside(imported(path)) - ALLOWED[name] - {name, "__version__"}
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


def test_environments_need_no_model_library() -> None:
    for path in (PACKAGE / "envs").rglob("*.py"):
        heavy = {n.split(".")[0] for n in imported(path)} & HEAVY
        assert not heavy, f"{path.relative_to(PACKAGE)} imports {sorted(heavy)}"


def test_only_the_entrance_knows_hydra() -> None:
    for path in PACKAGE.rglob("*.py"):
        if {n.split(".")[0] for n in imported(path)} & {"hydra", "omegaconf"}:
            # verl's own settings come from Hydra too.
            verl = path.is_relative_to(PACKAGE / "trainers" / "verl")
            assert verl or part(path) in ("config", "run", "__main__"), path
