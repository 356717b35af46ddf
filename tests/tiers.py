"""Which tests are *fast*: those that import no torch. What a file imports says it, so nobody has to
mark them by hand.

A test in a lane of its own (slow, docker, verl, ...) has no tier. All others of a file are *model*
if the file imports torch, however far away, or what makes a run, whose parts are found by their
names; else *fast*. A file says otherwise by `TIER = "model"`, a test by a mark.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

TESTS = Path(__file__).resolve().parent
HEAVY = {"torch", "transformers", "peft", "safetensors.torch"}
HEAVY |= {"trace_bench.runner.pipeline", "trace_bench.__main__", "trace_bench.run"}  # runs
HEAVY |= {"forks"}  # commands as children of a process that has imported torch
_IMPORT = re.compile(
    r"^(?P<inner>[ ]*)(?:from (?P<source>[\w.]+) import (?P<names>\([^)]*\)|[^\n#]+)"
    r"|import (?P<modules>[\w., ]+))",
    re.MULTILINE,
)
_SAID = re.compile(r'^TIER = "(fast|model)"', re.MULTILINE)

LANES = (
    "slow",
    "worlds",
    "rebuild",
    "docker",
    "podman",
    "rootless",
    "slurm",
    "vllm",
    "gpu",
    "verl",
    "standards",
    "browser",
)


@cache
def of(path: Path) -> str:
    """Fast or model: the tier of a file's tests that have no mark of their own."""
    text = path.read_text(encoding="utf-8")
    if said := _SAID.search(text):
        return said[1]
    return "model" if needs_torch(text) else "fast"


def imports(text: str, *, inner: bool) -> Iterator[str]:
    """Full names of what a module's text imports, with the packages around it. `inner`: also
    inside functions."""
    for line in _IMPORT.finditer(text):
        if line["inner"] and not inner:
            continue
        if line["source"] is None:
            names = re.findall(r"[\w.]+", re.sub(r" as \w+", "", line["modules"]))
        else:
            names = [
                f"{line['source']}.{n}" for n in re.findall(r"(\w+)(?: as \w+)?", line["names"])
            ]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def needs_torch(text: str) -> bool:
    """Whether a test file imports torch, itself or by what it imports."""
    names, seen = [*imports(text, inner=True), *re.findall(r"\btrace_bench\.run\b", text)], set()
    while names:
        name = names.pop()
        if name in HEAVY:
            return True
        if name not in seen:
            seen.add(name)
            names += imported_by(name)
    return False


@cache
def imported_by(name: str) -> tuple[str, ...]:
    """What a module imports when it is imported; of a library, nothing."""
    path = _files().get(name)
    return () if path is None else (*imports(path.read_text(encoding="utf-8"), inner=False),)


@cache
def _files() -> dict[str, Path]:
    """By the name of its import: the modules of the package, and the helpers beside the tests."""
    files = {path.stem: path for path in TESTS.rglob("*.py")}
    for root, folder in ((TESTS, TESTS), (TESTS.parent, TESTS.parent / "trace_bench")):
        for path in folder.rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = path
    return files


class NoTorch:
    """A finder of modules that refuses torch, so that the very test that imports it fails."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name == "torch":
            raise AssertionError('a fast test imports torch: give its file TIER = "model"')
        return None

    @classmethod
    def install(cls) -> None:
        sys.meta_path.insert(0, cls())
