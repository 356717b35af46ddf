"""The data of a domain in inspect-evals, read without leaving files behind, and its revision."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError

PACKAGE, VERSION = "inspect-evals", "0.26.0"
SPLITS = ("train", "test", "base")  # of the benchmark; telecom also has small and full


@dataclass(frozen=True)
class DomainData:
    """A domain's tasks (the benchmark's own records, by id), the ids of every split, its folder."""

    domain: str
    folder: Path
    records: Mapping[str, Mapping[str, Any]]
    splits: Mapping[str, Sequence[str]]
    revision: str


def load(domain: str) -> DomainData:
    """The data of a domain. Raises UserError if the package is missing or has another version than
    the tested one."""
    folder = package_folder() / "data" / "domains" / domain
    text = _read(folder / ("tasks.json.gz" if domain == "telecom" else "tasks.json"))
    splits = json.loads(_read(folder / "split_tasks.json"))
    records = {record["id"]: record for record in json.loads(text)}
    digest = hashlib.sha256(text).hexdigest()[:12]
    return DomainData(domain, folder, records, splits, f"{PACKAGE} {VERSION}, tasks {digest}")


def package_folder() -> Path:
    """Where the τ² port is installed."""
    try:
        found = metadata.version(PACKAGE)
        import inspect_evals.tau2 as tau2
    except (metadata.PackageNotFoundError, ImportError) as error:
        raise UserError(
            f"env=tau2 needs {PACKAGE} {VERSION}: pip install '.[tau2]', or sandbox=docker with "
            "the image of `python -m trace_bench.sandbox.build tau2`."
        ) from error
    if found != VERSION:
        raise UserError(
            f"env=tau2 was measured with {PACKAGE} {VERSION}, and {found} is installed: its tasks "
            "may differ. Install that version."
        )
    return Path(str(tau2.__file__)).parent


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
    return _read(package_folder() / "data" / "user_simulator" / name).decode()


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
