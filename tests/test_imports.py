"""Imports run one way. This reads them, so that the rule stays true."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Container
from functools import cache
from pathlib import Path

import pytest

from trace_bench.sandbox.build import PARTS
from trace_bench.sandbox.protocol import IN_WORKER
from trace_bench.settings.registry import OWN

PACKAGE = Path(__file__).resolve().parents[1] / "trace_bench"

# The parts from the ground up: each may import those before its own layer and itself.
LAYERS = (
    {"core"},
    {"settings", "checklists", "llm", "results"},
    {"envs", "sandbox", "policies", "report"},
    {"play", "serve"},
    {"trainers", "tiny"},
    {"models", "methods", "runner"},
    {"show", "sweep", "check", "new", "record", "rehearse", "__main__"},
)
COMMANDS = {"__main__", "show", "sweep", "check", "new", "rehearse"}  # python -m trace_bench.NAME
OTHER_THINGS = {  # of the same name as a part
    ("runner/report", "base"),  # the row of the base agent
    ("results/records", "base"),  # and its key in a record
    ("envs/toolsandbox_official/suite", "base"),  # a split
    ("core/summary", "grpo"),  # the algorithm that tables leave unsaid
}
HEAVY = {"torch", "transformers", "peft"}


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[str]:
    """Every imported module's full name, at whatever depth of the file."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def inside(names: set[str]) -> set[str]:
    """Parts of the package among imported names."""
    return {n.split(".")[1] for n in names if n.startswith("trace_bench.")}


def test_every_part_has_its_layer() -> None:
    parts = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__"} == set().union(*LAYERS)
    assert len(parts - {"__init__"} - COMMANDS) <= 18


@pytest.mark.parametrize("layer", range(len(LAYERS)), ids=lambda n: "+".join(sorted(LAYERS[n])))
def test_a_part_imports_only_what_lies_before_it(layer: int) -> None:
    before = set().union(*LAYERS[:layer], {"__version__"})
    for path in (p for p in PACKAGE.rglob("*.py") if part(p) in LAYERS[layer]):
        extra = inside(imported(path)) - before - {part(path)}
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """At module level, for the type checker alone too."""
    files = {module_of(p): p for p in PACKAGE.rglob("*.py")}
    graph = {name: at_the_top(path, files) for name, path in files.items()}
    while free := {name for name, needs in graph.items() if not needs & (graph.keys() - {name})}:
        graph = {name: needs for name, needs in graph.items() if name not in free}
    assert not graph, f"in a circle, or above one: {sorted(graph)}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def at_the_top(path: Path, modules: Container[str]) -> set[str]:
    """Those of the package's modules that a file imports outside of functions and classes."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*parsed(path).body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("trace_bench"):
            own = str(node.module).removeprefix("trace_bench").removeprefix(".")
            each = [f"{own}.{alias.name}".removeprefix(".") for alias in node.names]
            names |= {one if one in modules else own for one in each}
        elif isinstance(node, ast.If | ast.Try):
            waiting += [*node.body, *node.orelse]
    return names


def test_environments_need_no_model_library() -> None:
    for path in (PACKAGE / "envs").rglob("*.py"):
        heavy = {n.split(".")[0] for n in imported(path)} & HEAVY
        assert not heavy, f"{path.relative_to(PACKAGE)} imports {sorted(heavy)}"


def test_an_image_has_what_its_worker_imports() -> None:
    files = [PACKAGE / "sandbox" / name for name in IN_WORKER]
    files += [p for name in ("core", "checklists", "envs") for p in (PACKAGE / name).rglob("*.py")]
    for path in files:
        missing = inside(imported(path)) - set(PARTS) - {"__version__"}
        assert not missing, f"{path.relative_to(PACKAGE)} imports {sorted(missing)}"


def test_only_the_entrance_knows_hydra() -> None:
    for path in PACKAGE.rglob("*.py"):
        if {n.split(".")[0] for n in imported(path)} & {"hydra", "omegaconf"}:
            # verl's own settings come from Hydra too.
            verl = path.is_relative_to(PACKAGE / "trainers" / "verl")
            assert verl or part(path) in ("settings", "__main__"), path


def names_of_parts() -> dict[str, set[str]]:
    """Every name that the registry has, with the folders and files that may know it."""
    homes: dict[str, set[str]] = {}
    for group in OWN.values():
        for name, target in group.items():
            module = target.partition(":")[0].removeprefix("trace_bench.")
            for part in name.split("/"):
                homes.setdefault(part, set()).add(module.replace(".", "/"))
    return homes


def test_no_module_compares_the_name_of_a_part() -> None:
    """What differs between parts they say themselves; only a part's own module knows its name."""
    homes = names_of_parts()
    found = []
    for path in PACKAGE.rglob("*.py"):
        where = str(path.relative_to(PACKAGE).with_suffix(""))
        for line, text in compared(parsed(path)):
            if (where, text) in OTHER_THINGS:
                continue
            if text in homes and not any(f"{where}/".startswith(f"{own(h)}/") for h in homes[text]):
                found.append(f"{where}, line {line}: {text!r}")
    assert found == []


def test_comparisons_are_seen_however_they_are_written() -> None:
    written = """
        NAME, FEW = "grpo", ("trace", "rft")
        MORE: tuple[str, ...] = ("sft",)
        a == "gepa" or a != NAME or a in FEW or a == FEW[0] or a in {"base", *MORE}
        match a:
            case "joint":
                pass
    """
    seen = {text for _, text in compared(ast.parse(textwrap.dedent(written)))}
    assert seen == {"gepa", "grpo", "trace", "rft", "base", "sft", "joint"}


def compared(tree: ast.Module) -> list[tuple[int, str]]:
    """Texts that are compared with something or matched, with their lines; also as members of a
    tuple, list or set, and by the name of one of the module's constants."""
    known: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            one = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
            for target in one:
                known |= dict(named(target, statement.value))
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            out += [(node.lineno, t) for side in sides for t in texts(side, known)]
        elif isinstance(node, ast.MatchValue):
            out += [(node.lineno, text) for text in texts(node.value, known)]
    return out


def named(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """The names of an assignment with what each is given."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return [found for one, two in pairs for found in named(one, two)]
    return []


def texts(node: ast.expr, known: dict[str, ast.expr]) -> list[str]:
    if isinstance(node, ast.Name) and node.id in known:
        return texts(known[node.id], {})
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [text for item in node.elts for text in texts(item, known)]
    if isinstance(node, ast.Starred | ast.Subscript):
        return texts(node.value, known)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def own(module: str) -> str:
    """The folder of a part, or its file where it has no folder of its own."""
    folder = module.split("/")[:-1]
    return "/".join(folder[:2]) if len(folder) > 1 else module


def test_a_benchmark_that_imports_helpers_of_the_tests_finds_them() -> None:
    """It is started by its path, so that only its own folder is searched without a word."""
    tests = PACKAGE.parent / "tests"
    helpers = {p.stem for p in tests.glob("*.py")}
    users = [
        path
        for path in sorted((tests / "bench").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in helpers
    ]
    assert len(users) > 3
    assert not [p.name for p in users if "sys.path" not in p.read_text()]
