"""An experiment of the paper rehearsed with the real verl."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_bench.rehearse.__main__ import main

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")


def test_the_papers_road_with_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = main(["experiment=paper_toolsandbox_heldout", "method.max_capabilities=1"])
    said = capfd.readouterr().out
    assert code == 0 and "FAILED" not in said, said
    assert "trainer=verl: " in said and "adapters loaded into the agent's server" in said
    assert "resumed; each is in the ledger once" in said
