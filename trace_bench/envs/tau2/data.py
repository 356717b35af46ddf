"""The data of a domain: databases, policies and the older tasks as inspect-evals ships them (read
without leaving files behind), the newer tasks from a checkout of the benchmark. The databases and
policies of both are the same files."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_bytes
from trace_bench.envs import package_folder

PACKAGE, VERSION = "inspect-evals", "0.26.0"
SPLITS = ("train", "test", "base")  # of the benchmark; telecom also has small and full
REPOSITORY = "sierra-research/tau2-bench"

Tasks = Literal["v0.2", "v1.0"]
"""Releases of the benchmark's tasks. v1.0 corrected actions or information to be told in 13 airline
and 12 retail tasks and scores retail by natural-language assertions; telecom's did not change."""

SHIPPED: Tasks = "v0.2"  # by the package, from commit 377cecf
COMMITS = {"v0.2": "377cecf", "v1.0": "fc0055d (v1.0.1)"}
BLOBS = {
    "airline": "ea4ff5e3f5e3d97ca391846a6e8dd9eb3437dc80",
    "retail": "e95a9f898b2d1f6568ea8faec78edc3767ce747d",
    "telecom": "6f41a5e3489e187fa247d729706509d8250a31c1",
}
"""Git's hashes of tasks.json in v1.0.0 and v1.0.1. They identify the tasks better than a commit: a
later commit with the same tasks is as good, and a changed file is noticed."""

IN_IMAGE = "tau2_bench_checkout"  # a folder on the import path, put there by containers/tau2
GET = (
    "Get it with `git clone --depth 1 --branch v1.0.1 https://github.com/sierra-research/tau2-bench"
    "` and name the folder in env.source (sandbox=docker: TAU2_SOURCE=<folder> python -m "
    "trace_bench.sandbox.build tau2, with env.source=null), or set env.tasks=v0.2."
)


def port() -> Path:
    """Where the τ² port is installed. Raises UserError."""
    return package_folder("tau2", PACKAGE, VERSION, "pip install '.[tau2]'", "inspect_evals.tau2")


@dataclass(frozen=True)
class DomainData:
    """A domain's tasks (the benchmark's own records, by id), the ids of every split, its folder in
    the package, the release of the tasks, and a line that names all of it."""

    domain: str
    folder: Path
    records: Mapping[str, Mapping[str, Any]]
    splits: Mapping[str, Sequence[str]]
    tasks: Tasks
    revision: str


def load(domain: str, tasks: Tasks = SHIPPED, source: str | None = None) -> DomainData:
    """The data of a domain. `source`: a checkout of the benchmark, for tasks that the package does
    not ship. Raises UserError if the package is missing or has another version than the tested one,
    and for a checkout that lacks the tasks or has unknown ones."""
    folder = port() / "data" / "domains" / domain
    shipped = _read(folder / ("tasks.json.gz" if domain == "telecom" else "tasks.json"))
    if tasks == SHIPPED:
        if source is not None:
            raise UserError(
                f"env.source={source} is a checkout for env.tasks=v1.0, and env.tasks={tasks} are "
                f"those of {PACKAGE}. Change `env.tasks` or `env.source`."
            )
        text = shipped
    else:
        text = _released(domain, source, shipped)
    splits = json.loads(_read(folder / "split_tasks.json"))
    records = {record["id"]: record for record in json.loads(text)}
    digest = hashlib.sha256(text).hexdigest()[:12]
    revision = (
        f"tasks {tasks} of {REPOSITORY} {COMMITS[tasks]}, sha256 {digest}; databases and tools of "
        f"{PACKAGE} {VERSION}"
    )
    return DomainData(domain, folder, records, splits, tasks, revision)


def _released(domain: str, source: str | None, shipped: bytes) -> bytes:
    """The newer tasks.json: the package's if it is the same file, else the checkout's. Raises
    UserError."""
    if (same := _as_released(shipped, domain)) is not None:
        return same
    place = _checkout(source)
    path = place / "data" / "tau2" / "domains" / domain / "tasks.json"
    named = f"env.source={source}" if source is not None else str(place)
    try:
        data = read_bytes(path, GET)
    except FileNotFoundError as error:
        raise UserError(f"{named} has no tasks of {domain} ({error}). {GET}") from error
    tasks = _as_released(data, domain)
    if tasks is None:
        raise UserError(
            f"{path} has git's hash {_blob(data)}, and the tasks that were measured have "
            f"{BLOBS[domain]}: it is another release, was changed, or stands for a file that is "
            f"stored elsewhere. {GET}"
        )
    return tasks


def _checkout(source: str | None) -> Path:
    if source is not None:
        return Path(source)
    spec = importlib.util.find_spec(IN_IMAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise UserError(f"env.tasks=v1.0 needs a checkout of github.com/{REPOSITORY}. {GET}")
    return Path(places[0])


def _as_released(data: bytes, domain: str) -> bytes | None:
    """The data if its hash is the known one, with or without the line end that the package adds."""
    for text in (data, data.removesuffix(b"\n")):
        if _blob(text) == BLOBS[domain]:
            return text
    return None


def _blob(data: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def policy_text(data: DomainData, solo: bool) -> str:
    """The benchmark's rules that the agent must follow."""
    if data.domain != "telecom":
        return _read(data.folder / "policy.txt").decode()
    names = ("main_policy.txt", "tech_support_manual.txt")
    if solo:
        names = ("main_policy_solo.txt", "tech_support_workflow_solo.txt")
    return "\n\n".join(_read(data.folder / name).decode() for name in names)


def user_guidelines(domain: str) -> str:
    """The benchmark's instructions for the simulated user's behaviour."""
    name = "simulation_guidelines_tools.txt" if domain == "telecom" else "simulation_guidelines.txt"
    return _read(port() / "data" / "user_simulator" / name).decode()


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
