"""Every path that a person or a file names may be a pipe that nobody writes to, or a link to a
device without an end: it is refused at once, and nothing of it is kept in memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from forks import forked, imported

from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines

# What reads the path: a program that is given it as P, and the file's own name where it has one.
READERS = {
    "env.folder": (
        "from trace_bench.envs.recorded.data import read_split;list(read_split(P.parent, 'train'))",
        "train.jsonl",
    ),
    "method.data": ("from trace_bench.methods.sft import read; list(read(P))", "a.jsonl"),
    "sweep": ("from trace_bench.sweep import read_sweep; read_sweep(P)", "sweep.yaml"),
    "agent=, config.yaml": (
        "from trace_bench.core.summary import read_settings; read_settings(P)",
        "config.yaml",
    ),
    "model.path": (
        "from trace_bench.settings.identity import weights_hash; weights_hash(str(P.parent))",
        "model.safetensors",
    ),
    "--config-dir": (
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
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, now + 2**30))
try:
    {read}
except UserError as error:
    print(error)
"""


def test_what_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    imported()

    def stopped() -> None:
        signal.alarm(60)

    for number, (named, (read, name)) in enumerate(READERS.items()):
        path = tmp_path / str(number) / "a/b/c/d/e" / name
        path.parent.mkdir(parents=True)
        os.mkfifo(path) if number % 2 else path.symlink_to("/dev/zero")
        (tmp_path / f"reads_{number}.py").write_text(PROGRAM.format(read=read))
        code, said = forked(f"reads_{number}", str(path), prepare=stopped)
        assert code == 0, f"{named}: {said[-800:]}"
        words = ("no plain file", "has no", "nor a .gguf file")
        assert path.name in said and any(word in said for word in words), f"{named}: {said}"


def test_a_line_without_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"{}\n\n[" + b"1," * 600)
    lines = bounded_lines(path, 1000, "Change FILE.")
    assert next(lines) == (1, b"{}\n")
    with pytest.raises(UserError, match="line 3 is longer than 1000 bytes"):
        next(lines)
