"""`python -m trace_bench.sandbox.build [NAME ...]`: container images, for machines with Docker.

    NAME         a folder under containers/ (default: base)
    --base IMAGE the base image: default the Dockerfile's own, else python:3.11-slim-bookworm;
                 `debootstrap` makes an equivalent one with containers/base.sh if no image registry
                 is reachable

Packages are gathered on this machine by pip, for the Python 3.11 of the image, from the exact and
hashed pins in containers/NAME/requirements.txt (files for Linux on x86-64 and ARM; those of `verl`
are exact without hashes), and copied into the image with the project's environments: nothing is
downloaded or run while the image is built.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import EngineError, UserError, unknown
from trace_bench.sandbox.engine import Docker, Sandbox, answer
from trace_bench.sandbox.protocol import code_hash

BUILDING = Sandbox("docker")
DEFAULT_BASE, OWN_BASE = "python:3.11-slim-bookworm", "trace-bench/python:3.11"
COMPILER = ("gcc", "libc6-dev", "python3-dev")
"""Debian's packages that an image with a base of its own has besides Python."""
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
# The parts of this project that an environment may import (checked by tests/test_imports.py).
PARTS = ("__init__.py", "core", "settings", "checklists", "envs", "sandbox")


def containers() -> Path:
    """The folder with one subfolder per image: beside the package, in a checkout."""
    place = Path(__file__).resolve().parents[2] / "containers"
    if not place.is_dir():
        raise UserError(f"images are built from a checkout of the project: no {place}.")
    return place


def names() -> list[str]:
    return sorted(p.parent.name for p in containers().glob("*/requirements.txt"))


def dockerfile(name: str) -> Path:
    """An image's own, or the one that all others share."""
    special = containers() / name / "Dockerfile"
    return special if special.is_file() else containers() / "Dockerfile"


@command()
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("sandbox.build", __doc__)
    parser.add_argument("names", nargs="*", default=["base"])
    parser.add_argument("--base")
    options = parser.parse_intermixed_args(arguments)
    for name in options.names:
        if name not in names():
            raise unknown("image", name, names(), "NAME")
    docker = Docker.connect(BUILDING)
    for name in options.names:
        build(docker, name, base_image(docker, options.base, base_of(name)))
    return 0


def base_of(name: str) -> str:
    """The base image that a Dockerfile names (ARG BASE=...), or the usual one."""
    base = re.search(r"^ARG BASE=(\S+)$", dockerfile(name).read_text(), re.MULTILINE)
    return base[1] if base else DEFAULT_BASE


def base_image(docker: str, wanted: str | None, usual: str) -> str:
    """The base image with Python 3.11: local, pulled, or made. `usual`: where none is `wanted`."""
    more = () if usual == DEFAULT_BASE else COMPILER
    made_here = f"{OWN_BASE}-compiler" if more else OWN_BASE
    name = made_here if wanted == "debootstrap" else wanted or usual
    with contextlib.suppress(EngineError):
        answer([docker, "image", "inspect", "--format={{.Id}}", name], BUILDING)
        return name
    if wanted == "debootstrap":
        print(f"making {name} with containers/base.sh (debootstrap)", flush=True)
        _run([str(containers() / "base.sh"), name, *more])
        return name
    print(f"pulling {name}", flush=True)
    try:
        _run([docker, "pull", "--quiet", name])
    except UserError as error:
        raise UserError(
            f"the image {name} is not here and cannot be pulled ({error}). Name another one with "
            "--base, or use --base debootstrap to make one from Debian packages."
        ) from error
    return name


def build(docker: str, name: str, base: str) -> str:
    """Builds trace-bench/NAME and returns that name."""
    if sys.version_info[:2] != (3, 11):
        version = ".".join(map(str, sys.version_info[:2]))
        raise UserError(f"images hold Python 3.11 and are put together with it; this is {version}.")
    image = f"trace-bench/{name}:latest"
    command = [docker, "build", "--network=none", f"--build-arg=BASE={base}", f"--tag={image}"]
    with tempfile.TemporaryDirectory() as place:
        context = assemble(Path(place), name)
        print(f"building {image} from {base}", flush=True)
        with context.open("rb") as file:
            _run([*command, f"--label=trace_bench.code={code_hash()}", "-"], stdin=file)
    size = int(answer([docker, "image", "inspect", "--format={{.Size}}", image], BUILDING))
    print(f"built {image}, {size / 2**20:.0f} MiB, code {code_hash()}", flush=True)
    return image


def assemble(place: Path, name: str) -> Path:
    """The build context as a tar file: Dockerfile, site/ (packages) and project/ (our code)."""
    folder, root = containers() / name, Path(__file__).resolve().parents[1]
    context = place / "context"
    (context / "project" / "trace_bench").mkdir(parents=True)
    shutil.copyfile(dockerfile(name), context / "Dockerfile")
    for part in PARTS:
        target, source = context / "project" / "trace_bench" / part, root / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    pins = ("-r", str(folder / "requirements.txt"))
    print(f"gathering the packages of containers/{name}/requirements.txt", flush=True)
    _run([*PIP, "--no-deps", "--no-compile", "--target", str(context / "site"), *pins])
    extra = folder / "prepare.py"  # steps beyond pip
    if extra.exists():
        _run([sys.executable, str(extra), str(context)])
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiled, "-s", str(context), str(context)], stdout=subprocess.DEVNULL)
    archive = place / "context.tar"
    # Docker takes a file whose first header is an extended one for a Dockerfile.
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(context, arcname=".", filter=_plain)
    return archive


def _run(command: Sequence[str], **how: Any) -> None:
    """`how`: arguments of subprocess.run. Raises UserError with the command's last line."""
    done = subprocess.run(command, capture_output=True, text=True, **how)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"`{' '.join(command[:6])} ...` failed: {json.dumps(last)}")


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mode |= 0o444 | (0o111 if info.isdir() else 0)
    return info


if __name__ == "__main__":
    sys.exit(main())
