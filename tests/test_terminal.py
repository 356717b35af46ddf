"""What stands on a real terminal (a pseudo-terminal of 80 columns)."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

COLUMNS = 80
CONTROL = ("\x1b", "\r")


def on_a_terminal(*arguments: str) -> str:
    """The output of a command whose streams are a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "trace_bench", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        read = b""
        try:
            while block := os.read(ours, 65536):
                read += block
        except OSError:  # Linux's way to say that the other side has closed
            pass
        os.close(ours)
    assert process.returncode == 0, read.decode()
    return read.decode()


def test_the_first_line_says_what_runs_and_the_table_fits(tmp_path: Path) -> None:
    command = ["method=base", "policy=reference", "evaluation.limit=4", f"run_dir={tmp_path / 'r'}"]
    lines = on_a_terminal(*command).splitlines()
    assert lines[0].startswith("trace_bench: method=base policy=reference")
    start = next(i for i, line in enumerate(lines) if line.startswith("agent   "))
    table = [line for line in lines[start:] if not line.startswith(CONTROL)]
    end = next(i for i, line in enumerate(table) if line.startswith("similarities:"))
    assert end >= 4 and max(map(len, table[:end])) < COLUMNS
    assert any(line.startswith("reference ceiling") and " 1.000 [" in line for line in table)
