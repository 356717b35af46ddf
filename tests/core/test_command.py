"""Every command tells its version and its help, and ends with one line for wrong input."""

from __future__ import annotations

import importlib

import pytest

from trace_bench.core.command import SAID

TIER = "model"  # some commands import torch
COMMANDS = {
    "__main__": "budget=many",
    "check": "limit=none",
    "models.__main__": "get nothing",
    "new": "env 1st",
    "record.__main__": "nothing",
    "report.__main__": "/nowhere",
    "results.__main__": "tables /nowhere --out /nowhere --coverage 2",
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
