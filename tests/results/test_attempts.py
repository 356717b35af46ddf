"""Which attempt of an episode counts, and what several trials say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_bench.__main__ import main as run
from trace_bench.core.store import file_hash, read_lines
from trace_bench.core.types import Figures, Outcome, StopReason
from trace_bench.results.__main__ import main
from trace_bench.results.folder import read_run
from trace_bench.results.run import Drops, counted, drops
from trace_bench.results.statistics import pass_hat


def line(task: str, success: bool | None, attempt: int = 0) -> Outcome:
    """`success` None: a lost episode."""
    if success is None:
        stop, error = StopReason.ERROR, "sandbox: gone"
        return Outcome("final", "final", None, task, 0, None, stop, error, 1, attempt)
    score = Figures(success, float(success))
    stop = StopReason.TURN_LIMIT if task == "d" else StopReason.DONE
    return Outcome("final", "final", None, task, 0, score, stop, None, 1, attempt)


LINES = [line("a", True), line("b", None), line("c", None), line("d", False),
         line("b", True, 1), line("c", None, 1)]  # fmt: skip


def test_the_last_attempt_counts_and_every_episode_is_accounted_for() -> None:
    scores = {"a": 1, "b": 1, "c": None, "d": 0}
    assert {o.task: None if o.lost else o.success for o in counted(LINES)} == scores
    assert drops([*LINES, line("c", None, 2)], {}) == Drops(
        episodes=4, attempts=7, retried=2, excluded=1,
        lost={"sandbox": 2}, limits={"turn_limit": 1},
    )  # fmt: skip


@pytest.mark.usefixtures("no_figures")
def test_a_lost_episode_counts_by_its_second_attempt(tmp_path: Path) -> None:
    place = tmp_path / "run"
    settings = ["method=base", "policy=reference", "evaluation.limit=4"]
    settings += ["evaluation.trials=2", "evaluation.split=dev"]
    assert run([*settings, f"run_dir={place}"]) == 0
    lines = read_lines(place / "evaluation.jsonl")
    first = next(i for i, o in enumerate(lines) if o["agent"] == "final")
    again = {**lines[first], "attempt": 1}
    lines[first] |= {"score": None, "error": "sandbox: gone", "stop": "error"}
    text = "".join(json.dumps(o, separators=(",", ":")) + "\n" for o in [*lines, again])
    (place / "evaluation.jsonl").write_text(text)
    summary = json.loads((place / "summary.json").read_text())
    summary["hashes"]["evaluation.jsonl"] = file_hash(place / "evaluation.jsonl")
    (place / "summary.json").write_text(json.dumps(summary))
    assert read_run(place).mean == 1.0
    assert main(["tables", str(place), "--out", str(tmp_path / "tables")]) == 0
    about = (tmp_path / "tables" / "about_tables.md").read_text()
    assert "lost 1 (sandbox 1); 1 were retried, 0 left out" in about
    reliability = (tmp_path / "tables" / "reliability.md").read_text()
    assert "| method | budget | k=1 | k=2 |" in reliability
    assert "| base | 640 | 1.000 | 1.000 |" in reliability


def test_pass_hat_has_known_answers() -> None:
    assert pass_hat([(2, 4)], 1) == 0.5
    assert pass_hat([(2, 4)], 2) == pytest.approx(1 / 6)  # C(2, 2) / C(4, 2)
    assert pass_hat([(4, 4), (0, 4)], 4) == 0.5
    assert pass_hat([(1, 1), (3, 3)], 2) == 1.0  # tasks with too few trials do not count
    assert pass_hat([(1, 1)], 2) is None
