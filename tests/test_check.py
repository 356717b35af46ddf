"""The command that a newcomer runs first on an environment of their own."""

from __future__ import annotations

import pytest

from trace_bench.check import main


def test_the_embedded_suite_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env=toolsandbox", "split=dev", "limit=6"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("toolsandbox/embedded dev, sandbox=inline: 6 tasks")
    assert "mean similarity: reference 1.000" in printed


def test_a_sandbox_is_checked_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox=process", "limit=2"]) == 0
    assert "train, sandbox=process: 2 tasks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["env=phone"], "unknown env 'phone'; allowed: bfcl, custom, recorded, tau2, toolsandbox"),
        (["env.suite=official2"], "unknown suite of toolsandbox 'official2'; allowed: embedded"),
        (["split=exam"], "unknown split 'exam'; allowed: train, dev, test"),
        (["limit=many"], "limit=many is no number of tasks"),
        (["limit=0"], "limit=0 is no number of tasks"),
        (["env.factory=nowhere:suite"], "the module nowhere cannot be imported"),
        (["verbose"], "cannot be read"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert error in printed.err and printed.err.count("\n") == 1 and printed.out == ""
