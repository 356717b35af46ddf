"""Versions of other packages: bounds where a change of theirs could change results or break a run,
exact versions with hashes in images, and no registry by name."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pages import ROOT

MOVED = (
    "torch", "transformers", "peft", "hydra-core", "omegaconf", "gepa", "httpx", "wandb",
    "inspect-evals", "verl", "transferqueue", "hydra-joblib-launcher", "hydra-submitit-launcher",
)  # fmt: skip
"""Packages whose interfaces have changed before, or that compute results."""
UNHASHED = ("verl",)
"""Exact versions only, so far."""
IMAGES = sorted((ROOT / "containers").glob("*/requirements.txt"))
PIN = re.compile(
    r"([A-Za-z0-9][\w.-]*)(?:\[[\w,-]+\])?==([\w.+!]+)((?: --hash=sha256:[0-9a-f]{64})*)"
)


def groups() -> Iterator[list[Requirement]]:
    """What the package needs, and what each extra adds; an extra's own package comes first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        yield [Requirement(text) for text in group if not text.startswith("trace_bench[")]


def requirements() -> Iterator[Requirement]:
    for group in groups():
        yield from group


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def test_every_dependency_has_a_lower_bound_and_some_an_upper_one() -> None:
    found = list(requirements())
    assert {r.name for r in found} >= set(MOVED)
    for r in found:
        bounds = {s.operator for s in r.specifier}
        assert bounds & {">=", "=="}, f"{r} has no lower bound"
        assert r.name not in MOVED or bounds & {"<", "=="}, f"{r} has no upper bound"


def test_what_is_installed_is_within_the_bounds() -> None:
    """verl's extra has narrower bounds than the package, which hold where verl is."""
    for group in groups():
        for r in group if installed(group[0].name) else ():
            if (version := installed(r.name)) is not None:
                assert r.specifier.contains(version, prereleases=True), f"{version} is not {r}"


def pins(path: Path) -> Iterator[str]:
    """The requirements of a file, each on one line."""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield " ".join(line.split())


@pytest.mark.parametrize("path", IMAGES, ids=lambda p: p.parent.name)
def test_what_an_image_holds_is_exact_and_hashed(path: Path) -> None:
    """Without a resolver: what is not named is not there. The image for GPUs has no hashes yet."""
    found = list(pins(path))
    for pin in found:
        match = PIN.fullmatch(pin)
        assert match is not None, f"{path}: {pin[:80]}"
        assert match[3] or path.parent.name in UNHASHED, f"{path}: {pin[:80]}"
    names = [pin.partition("==")[0].partition("[")[0].lower().replace("_", "-") for pin in found]
    assert len(names) == len(set(names)) > 0


def test_images_and_the_project_agree() -> None:
    """A package of which the project names bounds has a version within them in every image, but in
    that of the official ToolSandbox, which has the versions of its own release."""
    bounds = {r.name.lower().replace("_", "-"): r.specifier for r in requirements()}
    for path in [p for p in IMAGES if p.parent.name != "toolsandbox"]:
        for pin in pins(path):
            match = PIN.fullmatch(pin)
            assert match is not None
            name = match[1].lower().replace("_", "-")
            if name in bounds:
                inside = bounds[name].contains(match[2], prereleases=True)
                assert inside, f"{path.parent.name}: {match[1]}=={match[2]}, not {bounds[name]}"


def test_no_registry_is_named() -> None:
    """Where packages come from is the machine's affair."""
    hosts = ["py" + "pi.org", "python" + "hosted", "--index" + "-url", "--extra" + "-index"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix not in (".safetensors", ".png"):
            text = path.read_text(errors="replace")
            assert not [host for host in hosts if host in text], name
