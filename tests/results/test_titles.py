"""A method whose algorithm is not its own bears the algorithm's name wherever a run is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import shared

import trace_bench
from trace_bench.report.runs import find
from trace_bench.results.__main__ import main as results


def test_another_algorithm_is_named_in_every_table(
    grpo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, title = tmp_path / "run", "grpo, gspo"
    small = ("budget=32", "trainer.group_size=4", "trainer.groups=2", "checkpoints=[]")
    words = ("method=grpo", "trainer.algorithm=gspo", *shared.RUN.split(), *small)
    closing = shared.command("trace_bench", *words, f"run_dir={place}")
    assert f"\n{title} on toolsandbox/embedded" in closing and f"\n{title}  " in closing

    result = trace_bench.load(place)
    assert [row.name for row in result.summary.table][:2] == ["base", title]
    assert str(trace_bench.compare(result, result)).startswith(f"{title}, 32 rollouts, seed 0")
    assert [run.label for run in find([place])[0]] == [f"{title}, budget 32, seed 0"]
    assert results(["tables", str(place), "--out", str(tmp_path / "tables")]) == 0
    assert f"| {title} |" in (tmp_path / "tables" / "rollout_scaling.md").read_text()
    capsys.readouterr()
    assert results(["compare", str(grpo_run), str(place)]) == 0
    said = capsys.readouterr().out
    assert "A: grpo |" in said and f"B: {title} |" in said
