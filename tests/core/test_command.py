"""Every command tells its version and its help, and ends with one line for wrong input."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from trace_bench.core.command import SAID

TIER = "model"  # some commands import torch
COMMANDS = {
    "__main__": "budget=many",
    "check": "limit=none",
    "models": "get nothing",
    "new": "env 1st",
    "record": "nothing",
    "report.__main__": "/nowhere",
    "results.__main__": "tables /nowhere --out /nowhere",
    "sandbox.build": "nothing",
    "serve.__main__": "/nowhere",
    "show": "/nowhere",
    "sweep": "/nowhere",
    "tiny.__main__": "build --size small",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_tells_its_version_and_ends_in_one_line(name: str, capsys) -> None:
    main = importlib.import_module(f"trace_bench.{name}").main
    for asked, told in (("--version", SAID), ("--help", "trace_bench")):
        try:
            assert main([asked]) == 0
        except SystemExit as end:  # argparse ends the program itself
            assert end.code == 0
        assert told in capsys.readouterr().out
    assert main(COMMANDS[name].split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and len(said.err.splitlines()) == 1 and not said.out


PROGRAM = """
import sys
from trace_bench.core.command import command
from trace_bench.core.errors import UserError

@command()
def main(arguments):
    print("an answer", flush="now" in arguments)
    print("a remark", file=sys.stderr)
    if "wrong" in arguments:
        raise UserError("wrong")
    return int(arguments[0])

sys.exit(main())
"""
STREAMS = [">&-", "2>&-", ">/dev/full", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>&-"]


@pytest.mark.slow
@pytest.mark.parametrize("streams", STREAMS)
def test_the_exit_code_follows_the_program_whatever_its_streams_take(streams: str) -> None:
    """What is left of them has no traceback, an error stays apart from the answer, and what is lost
    of the answer is said."""
    for words, code in (("0", 0), ("1 now", 1), ("0 wrong", 2)):
        command = f'"$0" -c "$1" {words} {streams}'
        shell = ["sh", "-c", command, sys.executable, PROGRAM]
        done = subprocess.run(shell, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert done.stdout in ("", "an answer\n") and "Traceback" not in done.stderr
        full = "could not be written: No space left" in done.stderr
        assert full == (streams == ">/dev/full")


@pytest.mark.parametrize(("words", "code"), [("0", 0), ("1", 1), ("1 now", 0), ("0 wrong", 2)])
def test_a_reader_that_has_gone_is_no_fault(words: str, code: int) -> None:
    """What is printed at once ends the program there; what is kept to the end changes no code."""
    there, gone = os.pipe()
    os.close(there)
    shell = [sys.executable, "-c", PROGRAM, *words.split()]
    done = subprocess.run(shell, stdout=gone, stderr=subprocess.PIPE, text=True)
    os.close(gone)
    assert done.returncode == code, done.stderr
    lines = ["a remark"] * (words != "1 now") + ["error: wrong"] * (code == 2)
    assert done.stderr.splitlines() == lines
