"""How much there is to read: how large the package is, and what one run needs of it.

    python tests/bench/reading.py [--still] [--ceiling LINES] [--files] [method=trace ...]

Prints the package's non-blank lines and files; more lines than the ceiling are an error. Then,
unless told to be still, runs the main job (or other settings) in a folder of its own under
`coverage` and counts the statements that ran inside functions, which are the lines that a reader
who follows the run has to read, with their files. One core, some two minutes.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "trace_bench"
MAIN = ("method=trace", "env=toolsandbox")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def size() -> tuple[int, int]:
    """(non-blank lines of the package's Python files, the files)."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return sum(bool(line.strip()) for text in texts for line in text.splitlines()), len(texts)


def lines_of_run(words: list[str]) -> Counter[Path]:
    """By file: statements inside functions that a run of these settings executes in its process."""
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as place:
        data = str(Path(place, "data"))
        command = [sys.executable, "-m", "coverage", "run", f"--source={PACKAGE}"]
        command += [f"--data-file={data}", "-m", "trace_bench", *words, f"run_dir={place}/run"]
        variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the run failed:\n{done.stderr[-2000:]}")
        coverage = Coverage(data_file=data)
        coverage.load()
        counts: Counter[Path] = Counter()
        for name in coverage.get_data().measured_files():
            _, statements, _, missing, _ = coverage.analysis2(name)
            ran = (set(statements) - set(missing)) & inside_functions(Path(name))
            if ran:
                counts[Path(name).relative_to(ROOT)] = len(ran)
        return counts


def inside_functions(path: Path) -> set[int]:
    """The lines of a file's function bodies, without the lines that define the functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [s for node in ast.walk(tree) if isinstance(node, FUNCTIONS) for s in node.body]
    return {n for s in bodies for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}


def rooms(counts: Counter[Path]) -> str:
    """The lines of each part of the package and of each file."""
    parts: dict[str, list[int]] = {}
    for path, count in counts.items():
        parts.setdefault(path.parts[1], []).append(count)
    lines = [f"  {sum(n):5d} in {len(n):2d}  {part}" for part, n in sorted(parts.items())]
    return "\n".join(lines + [f"  {count:5d}  {path}" for path, count in sorted(counts.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("settings", nargs="*", default=MAIN, help="of the run (the main job)")
    parser.add_argument("--still", action="store_true", help="runs nothing")
    parser.add_argument("--ceiling", type=int, help="non-blank lines that the package may have")
    parser.add_argument("--files", action="store_true", help="the run's lines by part and file")
    chosen = parser.parse_args()
    lines, files = size()
    print(f"non-blank lines of the package: {lines} in {files} files")
    if chosen.ceiling is not None and lines > chosen.ceiling:
        sys.exit(f"the ceiling is {chosen.ceiling}: what is added is paid for by what goes")
    if not chosen.still:
        counts = lines_of_run([*chosen.settings])
        print(f"lines inside functions that the run needs: {counts.total()} in {len(counts)} files")
        if chosen.files:
            print(rooms(counts))


if __name__ == "__main__":
    main()
