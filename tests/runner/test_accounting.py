"""accounting=paper: analysis and calibration are played and written down, and cost nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_bench.__main__ import main
from trace_bench.core.types import CHARGED, Purpose, StopReason, Trajectory, charged
from trace_bench.runner.ledger import Ledger, entry


def test_the_ledger_charges_what_the_accounting_names(tmp_path: Path) -> None:
    played = Trajectory("t", 1, "base", (), (), (), StopReason.DONE, None)
    for accounting, spent in (("strict", 5), ("paper", 3)):
        ledger = Ledger(tmp_path / accounting, 9, CHARGED[accounting])
        for index, purpose in enumerate(Purpose):
            ledger.record(entry(purpose.value, index, purpose, played))
        assert ledger.spent == spent == charged(ledger.by_purpose(), accounting)
        ledger.close()


@pytest.mark.slow
def test_a_run_of_trace_has_its_whole_budget_for_training(tmp_path: Path, capsys) -> None:
    arguments = ["experiment=smoke", "accounting=paper", "checkpoints=[]", "evaluation.limit=4"]
    assert main([*arguments, "evaluation.yardsticks=false", f"run_dir={tmp_path}/run"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rollouts = summary["rollouts"]
    assert rollouts["analysis"] >= 32 and rollouts["calibration"] >= 32
    assert summary["budget"] - 32 < rollouts["training"] <= summary["budget"]
    printed = capsys.readouterr().out
    assert f"{rollouts['training']} of 256 rollouts (accounting=paper: analysis and" in printed
