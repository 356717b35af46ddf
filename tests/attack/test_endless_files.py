"""Every path that a person or a file names may be a pipe that nobody writes to, or a link to a
device without an end: it is refused at once, and nothing of it is kept in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines

# What reads the path: a program that is given it as P, and the file's own name where it has one.
READERS = {
    "env.folder": (
        "from trace_bench.envs.recorded.data import read_split;list(read_split(P.parent, 'train'))",
        "train.jsonl",
    ),
    "method.data": ("from trace_bench.methods.sft.formats import read; list(read(P))", "a.jsonl"),
    "method.data, a document": (
        "from trace_bench.methods.sft.formats import read; list(read(P))",
        "a.json",
    ),
    "env.source": (
        "from trace_bench.envs.tau2.data import _released;"
        "_released('airline', str(P.parents[4]), b'')",
        "data/tau2/domains/airline/tasks.json",
    ),
    "sweep": ("from trace_bench.sweep import read_sweep; read_sweep(P)", "sweep.yaml"),
    "--template": (
        "from trace_bench.models.convert import _template; _template(str(P))",
        "t.jinja",
    ),
    "agent=, config.yaml": (
        "from trace_bench.core.summary import read_settings; read_settings(P)",
        "config.yaml",
    ),
    "model.path": (
        "from trace_bench.settings.identity import weights_hash; weights_hash(str(P.parent))",
        "model.safetensors",
    ),
    "models add, a folder": (
        "from trace_bench.models.convert import _reads; _reads(P.parent)",
        "model-00001-of-00002.safetensors",
    ),
    "models add, a GGUF file": (
        "from trace_bench.models.convert import _reads; _reads(P)",
        "a.gguf",
    ),
    "--plotly": (
        "from trace_bench.report.page import _other; _other(P)",
        "plotly.js",
    ),
    "--config-dir": (
        "from trace_bench.settings.help import text; text('method', P.parents[1])",
        "method/own.yaml",
    ),
    "--config-dir, a run's": (
        "from trace_bench.settings.compose import compose; compose([], P.parents[1])",
        "method/own.yaml",
    ),
    "an adapter's config": (
        "from trace_bench.core.types import AdapterRef;"
        "from trace_bench.policies.engine.lora import read_config;"
        "read_config(AdapterRef('a', str(P.parent)))",
        "adapter_config.json",
    ),
    "an adapter's weights": (
        "from trace_bench.core.types import AdapterRef;"
        "from trace_bench.policies.engine.lora import read_weights;"
        "read_weights(AdapterRef('a', str(P.parent)))",
        "adapter_model.safetensors",
    ),
}
PROGRAM = """
import resource, sys
from pathlib import Path
from trace_bench.core.errors import UserError
P = Path(sys.argv[1])
if {torch}:
    import torch, safetensors.torch
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
try:
    {read}
except UserError as error:
    print(error)
"""


def endless(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("named", READERS)
def test_what_never_ends_is_refused_at_once(named: str, kind: str, tmp_path: Path) -> None:
    read, name = READERS[named]
    path = tmp_path / "place" / name
    endless(kind, path)
    program = PROGRAM.format(read=read, torch="weights" in named)
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-800:]
    said = done.stdout
    assert path.name in said and any(
        w in said for w in ("no plain file", "has no", "nor a .gguf file")
    ), said


def test_a_line_without_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"{}\n\n[" + b"1," * 600)
    lines = bounded_lines(path, 1000, "Change FILE.")
    assert next(lines) == (1, b"{}\n")
    with pytest.raises(UserError, match="line 3 is longer than 1000 bytes"):
        next(lines)
