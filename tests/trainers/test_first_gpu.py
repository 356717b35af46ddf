"""`tests/gpu/first.py`: what of it a CPU can show is shown, and what it cannot says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu import first

Said = pytest.CaptureFixture[str]


def lines(capsys: Said) -> dict[str, str]:
    return {line.split()[1]: line for line in capsys.readouterr().out.splitlines()[1:]}


@pytest.mark.slow
def test_a_cpu_shows_what_it_can(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.delenv(first.VARIABLE, raising=False)
    monkeypatch.setattr(first, "find_spec", lambda name: None)
    monkeypatch.setattr(first, "GPU", False)
    monkeypatch.setattr(first, "DEVICE", "cpu")
    assert first.main([]) == 0
    said = lines(capsys)
    assert said.keys() == first.CHECKS.keys()
    assert said["mismatch"].startswith("shown") and " on cpu: mean " in said["mismatch"]
    assert said["memory"].startswith("shown") and "forecast" in said["memory"]
    for name in ("adapters", "graphs", "sleep", "weights"):
        assert said[name].startswith("skipped")
    assert "needs a GPU" in said["sleep"] and "verl is not installed" in said["weights"]


@pytest.mark.slow
def test_what_is_not_so_fails_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    def broken(model: str, folder: Path) -> str:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(first, "WITHIN", 0.0)
    monkeypatch.setitem(first.CHECKS, "adapters", broken)
    assert first.main(["--only", "memory", "adapters", "sleep"]) == 1
    said = lines(capsys)
    assert said["memory"].startswith("FAILED") and "AssertionError" in said["memory"]
    assert said["adapters"].startswith("FAILED") and "no such kernel" in said["adapters"]
    assert said["sleep"].startswith(("skipped", "shown"))
