"""The data of a domain as inspect-evals ships it, read without leaving files behind: tasks,
databases and policies."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.envs import package_folder

PACKAGE, VERSION = "inspect-evals", "0.26.0"
TASKS = "v0.2 of sierra-research/tau2-bench 377cecf"
"""The release of the benchmark's tasks that the package ships."""


def port() -> Path:
    """Where the τ² port is installed. Raises UserError."""
    return package_folder("tau2", PACKAGE, VERSION, "pip install '.[tau2]'", "inspect_evals.tau2")


@dataclass(frozen=True)
class DomainData:
    """A domain's tasks (the benchmark's own records, by id), the ids of every split, its folder in
    the package, and a line that names the release of all of it."""

    domain: str
    folder: Path
    records: Mapping[str, Mapping[str, Any]]
    splits: Mapping[str, Sequence[str]]
    revision: str


def load(domain: str) -> DomainData:
    """The data of a domain. Raises UserError if the package is missing or has another version than
    the tested one."""
    folder = port() / "data" / "domains" / domain
    text = _read(folder / ("tasks.json.gz" if domain == "telecom" else "tasks.json"))
    splits = json.loads(_read(folder / "split_tasks.json"))
    records = {record["id"]: record for record in json.loads(text)}
    digest = hashlib.sha256(text).hexdigest()[:12]
    revision = f"tasks {TASKS}, sha256 {digest}; databases and tools of {PACKAGE} {VERSION}"
    return DomainData(domain, folder, records, splits, revision)


def policy_text(data: DomainData) -> str:
    """The benchmark's rules that the agent must follow."""
    if data.domain != "telecom":
        return _read(data.folder / "policy.txt").decode()
    names = ("main_policy.txt", "tech_support_manual.txt")
    return "\n\n".join(_read(data.folder / name).decode() for name in names)


def user_guidelines(domain: str) -> str:
    """The benchmark's instructions for the simulated user's behaviour."""
    name = "simulation_guidelines_tools.txt" if domain == "telecom" else "simulation_guidelines.txt"
    return _read(port() / "data" / "user_simulator" / name).decode()


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
