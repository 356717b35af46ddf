"""How much the tests of the core see: small changes made to it, and whether a test fails.

    python tests/bench/mutants.py [--count 40] [--timeout 900] [--file FILE] [NUMBER ...]

Makes a list of mutants of the files in `CONCERN`, the same whenever the files are: another operator
or constant, `or` for `and`, a value that is not returned. Each is put into a copy of the tree, in
which the tests of the folders that concern its file run until the first one fails. Prints a line
each and how many were caught; tests that fail without a mutant do not count. `--file`: results are
appended to it, a JSON line each, and those already in it are not made again. `--root CHECKOUT`: of
another checkout, such as a commit before. NUMBER: of the list, these alone. One core; a mutant that
no test sees takes as long as all these tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SEED = 20261128
CONCERN = {
    "trace_bench/runner/ledger.py": ("runner/test_ledger.py", "core", "runner", "play"),
    "trace_bench/runner/lab.py": ("runner/test_lab.py", "runner", "play"),
    "trace_bench/core/store.py": (
        "core/test_store.py", "attack/test_endless_files.py", "core", "runner"
    ),
    "trace_bench/trainers/grpo.py": ("trainers/test_grpo.py", "trainers"),
    "trace_bench/envs/toolsandbox/score.py": ("envs/test_toolsandbox_env.py", "envs"),
}  # fmt: skip
"""By file: the tests that are about it, which run first, and the folders that concern it."""
OTHER: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
EMPTY = ("return", "None", "False")
TREE = ("conf", "containers", "docs", "examples", "results", "sweeps", "tests", "trace_bench")


@dataclass(frozen=True)
class Mutant:
    """`text` in place of the bytes from `start` to `end` of a file."""

    file: str
    line: int
    start: int
    end: int
    before: str
    text: str

    def put(self, root: Path) -> None:
        source = (root / self.file).read_bytes()
        (root / self.file).write_bytes(
            source[: self.start] + self.text.encode() + source[self.end :]
        )


def mutants(root: Path, count: int) -> list[Mutant]:
    """As many of each file, chosen by lot, in the order of the files."""
    files = [name for name in CONCERN if (root / name).exists()]
    draw, chosen = random.Random(SEED), []
    for n, name in enumerate(files):
        every = list(_of_file(root, name))
        share = count // len(files) + (n < count % len(files))
        chosen += sorted(draw.sample(every, min(share, len(every))), key=lambda m: m.start)
    return chosen


def _of_file(root: Path, name: str) -> Iterator[Mutant]:
    source = (root / name).read_bytes()
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in _places(ast.parse(source)):
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(source[start:end].decode().split())
        yield Mutant(name, node.lineno, start, end, before, _changed(node))


def _places(tree: ast.Module) -> Iterator[Any]:
    """What can be changed inside functions; no part of a message."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inside = {n: None for f in functions for s in f.body for n in ast.walk(s)}
    texts = {part for n in inside if isinstance(n, ast.JoinedStr) for part in ast.walk(n)}
    for node in inside:
        operator = getattr(node, "op", None) or getattr(node, "ops", [None])[0]
        number = isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)
        value = isinstance(node, ast.Return) and ast.unparse(node.value or node) not in EMPTY
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant | ast.JoinedStr):
            text = not isinstance(getattr(node.right, "value", ""), int | float)
            operator = None if text else operator
        if node not in texts and (type(operator) in OTHER or number or value):
            yield node


def _changed(node: Any) -> str:
    """The text of the node after its change."""
    match node:
        case ast.Return():
            return "return None"
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            return repr(value + 1)
        case ast.Compare():
            node.ops[0] = OTHER[type(node.ops[0])]()
        case _:
            node.op = OTHER[type(node.op)]()
    text = ast.unparse(node)
    return text if isinstance(node, ast.stmt) else f"({text})"


def tested(root: Path, names: Sequence[str], timeout: float, *more: str) -> tuple[str, list[str]]:
    """What the tests of these names or folders say, and which failed."""
    there = [name for name in names if (root / name.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *more]
    (root / "tmp").mkdir(exist_ok=True)  # where the shared runs of this mutant lie
    place = {"PYTHONPATH": str(root), "TMPDIR": str(root / "tmp"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *there], cwd=root, env={**os.environ, **place}, timeout=timeout, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "caught (timeout)", []
    ends = [line.partition(" - ")[0].partition(" ") for line in done.stdout.splitlines()]
    bad = [name for mark, _, name in ends if mark in ("FAILED", "ERROR")]
    return ("caught" if done.returncode else "NOT CAUGHT"), bad


def result(mutant: Mutant, root: Path, timeout: float, broken: set[str]) -> dict[str, Any]:
    """What the tests say of a mutant. `broken`: tests that fail without one, to which others are
    added that are seen to."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for path in [root / name for name in TREE] + [p for p in root.iterdir() if p.is_file()]:
            if path.is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "*.png", "*.svg")
                shutil.copytree(path, copy / path.name, symlinks=True, ignore=skipped)
            elif path.exists():
                shutil.copy(path, copy)
        while True:
            mutant.put(copy)
            less = [f"--deselect={test}" for test in sorted(broken)]
            first, *folders = [f"tests/{name}" for name in CONCERN[mutant.file]]
            said, bad = tested(copy, [first], timeout, "-x", *less)
            if said == "NOT CAUGHT":
                said, bad = tested(copy, folders, timeout, "-x", *less)
            shutil.copy(root / mutant.file, copy / mutant.file)
            if not bad or tested(copy, bad, timeout)[0] == "NOT CAUGHT":
                return {**asdict(mutant), "said": said, "test": bad}
            broken |= {*bad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one mutant")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    options = parser.parse_args()
    root, file = options.root.resolve(), options.file
    lines = file.read_text().splitlines() if file and file.exists() else []
    before = {(r["file"], r["start"], r["text"]): r for r in map(json.loads, lines)}
    every, broken, caught = mutants(root, options.count), set[str](), 0
    numbers = options.numbers or range(len(every))
    for number in numbers:
        mutant = every[number]
        one = before.get((mutant.file, mutant.start, mutant.text))
        if one is None:
            one = result(mutant, root, options.timeout, broken)
            if file:
                with file.open("a") as opened:
                    opened.write(json.dumps(one) + "\n")
        caught += one["said"] != "NOT CAUGHT"
        change = f"{mutant.before[:60]} -> {mutant.text[:60]}"
        print(f"{number:2d} {one['said']:16} {mutant.file}:{mutant.line}  {change}", flush=True)
    print(f"{caught} of {len(numbers)} caught")


if __name__ == "__main__":
    main()
