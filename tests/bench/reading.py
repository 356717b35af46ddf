"""How much there is to read: what one run needs of the package, and how large the package is.

    python tests/bench/reading.py [method=trace env=toolsandbox ...]

Runs the main job (or the settings given) in a folder of its own under `coverage`, counts the
statements that ran inside functions, which are the lines that a reader who follows the run has to
read, and prints them with the number of their files; `--files` lists these by room. Then, without
running anything: the package's non-blank lines, its protocols and abilities, the keys in conf/ that
repeat a default, and the files of methods/trace. One core, some two minutes.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from trace_bench.settings.choices import fill

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "trace_bench"
MAIN = ("method=trace", "env=toolsandbox")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def run_lines(words: list[str]) -> Counter[Path]:
    """By file: statements inside functions that a run of these settings executes in its process."""
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as place:
        data = str(Path(place, "data"))
        command = [sys.executable, "-m", "coverage", "run", f"--source={PACKAGE}"]
        command += [f"--data-file={data}", "-m", "trace_bench", *words, f"run_dir={place}/run"]
        own = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=place, env=own, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the run failed:\n{done.stderr[-2000:]}")
        coverage = Coverage(data_file=data)
        coverage.load()
        found: Counter[Path] = Counter()
        for name in coverage.get_data().measured_files():
            _, statements, _, missing, _ = coverage.analysis2(name)
            ran = (set(statements) - set(missing)) & inside_functions(Path(name))
            if ran:
                found[Path(name).relative_to(ROOT)] = len(ran)
        return found


def inside_functions(path: Path) -> set[int]:
    """The lines of a file's function bodies, without the lines that define the functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [s for node in ast.walk(tree) if isinstance(node, FUNCTIONS) for s in node.body]
    return {n for s in bodies for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}


def size() -> tuple[int, int]:
    """(non-blank lines of the package's Python files, the files)."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    return sum(bool(line.strip()) for text in texts for line in text.splitlines()), len(files)


def interfaces() -> list[str]:
    """The classes in core/protocols that say what a part can do: all but its values."""
    found = []
    for path in sorted((PACKAGE / "core" / "protocols").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            values = isinstance(node, ast.ClassDef) and any(
                "dataclass" in ast.unparse(mark) for mark in node.decorator_list
            )
            if isinstance(node, ast.ClassDef) and not values and node.name[0] != "_":
                found.append(node.name)
    return found


def repeated_keys() -> tuple[list[str], int]:
    """(`file: key` of those in conf/ whose value would be the same without them, how many keys
    there are)."""
    repeated, count = [], 0
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text) or {}
        group = path.parent.name
        own = leaves({k: v for k, v in data.items() if k != "hydra"})
        inner = group not in ("conf", "experiment") and "@package _global_" not in text
        without = composed_without(path, text, data)
        for key, value in own:
            count += 1
            if OmegaConf.select(without, f"{group}.{key}" if inner else key, default=...) == value:
                repeated.append(f"{path.relative_to(ROOT)}: {key}")
    return repeated, count


def composed_without(path: Path, text: str, data: Mapping[str, Any]) -> DictConfig:
    """What a run has that chooses the file, if the file had no keys of its own."""
    kept = yaml.safe_dump({k: v for k, v in data.items() if k in ("defaults", "hydra")})
    head = "# @package _global_\n" if "@package _global_" in text else ""
    chosen = [] if path.stem == "config" else [f"{path.parent.name}={path.stem}"]
    with tempfile.TemporaryDirectory() as place:
        conf = shutil.copytree(ROOT / "conf", Path(place, "conf"))
        (conf / path.relative_to(ROOT / "conf")).write_text(head + kept)
        with initialize_config_dir(str(conf), version_base="1.3"):
            fill()
            return compose("config", chosen)


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that holds no further keys, with dots, and its value."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif prefix or key != "defaults":
            yield prefix + key, value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("settings", nargs="*", default=MAIN, help="of the run (the main job)")
    parser.add_argument("--files", action="store_true", help="the lines of each file and room")
    parser.add_argument("--still", action="store_true", help="runs nothing")
    chosen = parser.parse_args()
    lines, files = size()
    repeated, keys = repeated_keys()
    if not chosen.still:
        ran = run_lines([*chosen.settings])
        print(f"lines inside functions that the run needs: {ran.total()} in {len(ran)} files")
        if chosen.files:
            rooms: dict[str, list[int]] = {}
            for path, count in ran.items():
                rooms.setdefault(path.parts[1], []).append(count)
            for room, counts in sorted(rooms.items(), key=lambda item: -sum(item[1])):
                print(f"  {sum(counts):5d} in {len(counts):2d}  {room}")
            for path, count in sorted(ran.items()):
                print(f"  {count:5d}  {path}")
    print(f"non-blank lines of the package: {lines} in {files} files")
    print(f"protocols and abilities in core/protocols: {len(interfaces())}")
    print(f"keys in conf/ that repeat a default: {len(repeated)} of {keys}")
    if chosen.files:
        print("\n".join(f"  {key}" for key in repeated))
    print(f"files in methods/trace: {len(list((PACKAGE / 'methods' / 'trace').rglob('*.py')))}")


if __name__ == "__main__":
    main()
