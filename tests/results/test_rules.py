"""Reporting rules, the tables made again under another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_bench.__main__ import main as run
from trace_bench.core.errors import UserError
from trace_bench.core.store import file_hash, read_lines
from trace_bench.core.types import Figures, Outcome, StopReason
from trace_bench.results.__main__ import main
from trace_bench.results.folder import read_run
from trace_bench.results.places import find
from trace_bench.results.run import RULES, counted, drops
from trace_bench.results.statistics import pass_hat


def line(task: str, success: bool | None, attempt: int = 0, trial: int = 0) -> Outcome:
    score = None if success is None else Figures(success, float(success))
    stop = StopReason.TURN_LIMIT if task == "d" else StopReason.DONE
    return Outcome(
        agent="final",
        version="final",
        adapter=None,
        task=task,
        trial=trial,
        score=score,
        stop=stop if score else StopReason.ERROR,
        error=None if score else "sandbox: gone",
        tokens=1,
        attempt=attempt,
    )


LINES = [line("a", True), line("b", None), line("c", None), line("d", False),
         line("b", True, 1), line("c", None, 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "scores"),
    [
        ("retry", {"a": 1, "b": 1, "c": None, "d": 0}),
        ("exclude", {"a": 1, "b": None, "c": None, "d": 0}),
        ("zero", {"a": 1, "b": 0, "c": 0, "d": 0}),
    ],
)
def test_a_rule_says_which_attempt_counts(rule: str, scores: dict[str, int | None]) -> None:
    found = counted(LINES, rule)
    assert {o.task: None if o.lost else o.success for o in found} == scores


def test_the_manifest_accounts_for_every_episode() -> None:
    for rule in RULES:
        d = drops([*LINES, line("c", None, 2)], rule, {})
        assert (d.episodes, d.attempts, d.lost) == (4, 7, {"sandbox": 2})
        assert d.retried == (2 if rule == "retry" else 0)
        assert d.limits == {"turn_limit": 1}
        scored = sum(1 for o in counted(LINES, rule) if not o.lost)
        assert scored + d.excluded == d.episodes
    assert drops(LINES, "retry", {}).excluded == 1
    assert drops(LINES, "zero", {}).zeroed == 2 and drops(LINES, "exclude", {}).excluded == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose first held-out episode was lost, and won in a second attempt."""
    place = tmp_path_factory.mktemp("runs") / "run"
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
    return place


@pytest.mark.usefixtures("no_figures")
def test_tables_are_made_again_under_another_rule(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of eight trials was lost: left out, or counted as a failure, as pass^k's two conventions
    do."""
    assert [read_run(folder, rule).mean for rule in RULES] == [1.0, 1.0, 7 / 8]
    for rule, value in (("zero", "0.875"), ("exclude", "1.000")):
        out, wanted = tmp_path / rule, ["--coverage", "0.8"]
        assert main(["tables", str(folder), "--rule", rule, "--out", str(out), *wanted]) == 0
        text = (out / "rollout_scaling.md").read_text()
        assert f", rule {rule}, " in text and f"| base | {value} " in text
        about = (out / "about_tables.md").read_text()
        assert f"Rule {rule} (" in about and "lost 1 (sandbox 1)" in about
    text = (tmp_path / "zero" / "reliability.md").read_text()
    assert "| base | 640 | 0.875 | 0.750 | 0 of 8 |" in text  # one of four: one of two
    text = (tmp_path / "exclude" / "reliability.md").read_text()
    assert "| base | 640 | 1.000 | 1.000 | 1 of 8 |" in text
    assert main(["tables", str(folder), "--rule", "exclude", "--out", str(tmp_path / "x")]) == 2
    assert "score for less than 90% of their held-out episodes" in capsys.readouterr().err


def test_records_cannot_be_made_again_under_another_rule(folder: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    assert main(["collect", str(folder), "--out", str(records)]) == 0
    with pytest.raises(UserError, match="holds records by the rule retry"):
        find([records], "zero")


def test_pass_hat_has_known_answers() -> None:
    assert pass_hat([(2, 4)], 1) == 0.5
    assert pass_hat([(2, 4)], 2) == pytest.approx(1 / 6)  # C(2,2) / C(4,2)
    assert pass_hat([(4, 4), (0, 4)], 4) == 0.5
    assert pass_hat([(1, 1), (3, 3)], 2) == 1.0  # tasks with too few trials do not count
    assert pass_hat([(1, 1)], 2) is None
