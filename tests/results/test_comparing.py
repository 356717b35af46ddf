"""Two agents side by side."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import SETTINGS, filed, record

from trace_bench.core.errors import UserError
from trace_bench.results.__main__ import main
from trace_bench.results.cells import Cell
from trace_bench.results.compare import sides_of, text
from trace_bench.results.places import Selection
from trace_bench.results.run import Drops, Run

BASE, GRPO = record("base", [1, 0, 0]), record("grpo", [1, 1, 0])
TRACE = replace(record("trace", [1, 1, 1]), method_settings={"max_capabilities": 4})


def sides(*runs: Run) -> tuple[Cell, Cell]:
    return sides_of(Selection(runs))


def seeds(run: Run, count: int = 2) -> list[Run]:
    return [replace(run, seed=s, fingerprint=f"{run.method}{s}") for s in range(count)]


def test_runs_of_one_method_are_compared(
    base_run: Path, grpo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, cut = str(base_run), str(grpo_run), tmp_path / "cut"
    cut.mkdir()
    (cut / "config.yaml").write_text("seed: 0\n")
    assert main(["compare", one, two, str(cut), "env=toolsandbox"]) == 0
    said = capsys.readouterr()
    assert "method: base | grpo" in said.out and "| A minus B | " in said.out
    assert "base of A" in said.out and f"skipped: {cut}: not finished" in said.err
    for wrong, why in (
        ([one], "found 1.*: base budget=160 .1 seed, toolsandbox/embedded, run"),
        ([one, one], "found 1 .*is there already, counted once"),
        ([one, str(cut)], "found 1 .*not finished"),
        ([one, two, "--comparisons", "2"], "unrecognized arguments: --comparisons"),
    ):
        with contextlib.suppress(SystemExit):
            assert main(["compare", *wrong]) == 2
        assert re.search(why, capsys.readouterr().err)


def test_the_comparison_is_paired_and_names_the_settings() -> None:
    rates = {"trainer.learning_rate": 0.1}, {"trainer.learning_rate": 0.2, "trainer.rank": 8}
    runs = [
        replace(record("grpo", [1.0] * won + [0.0] * (60 - won)), settings={**SETTINGS, **more})
        for won, more in zip((30, 0), rates, strict=True)
    ]
    a, b = runs[0], replace(runs[1], seed=1, fingerprint="b")
    said = text(*sides(a, b))
    assert "| A minus B | +0.500 [" in said and "trainer.learning_rate: 0.1 | 0.2" in said
    assert "only B has: trainer.rank" in said and "only A" not in said
    assert "can show" in said and "One seed each" in said
    assert said.index("A minus B") < said.index("differ in (A | B)")
    elsewhere = replace(b, settings={**SETTINGS, "evaluation.split": "dev"}, tasks="u")
    with pytest.raises(UserError, match=r"other held-out tasks \(evaluation.split is test and dev"):
        sides(a, elsewhere)
    with pytest.raises(UserError, match="other held-out tasks, so they cannot be paired"):
        sides(a, replace(b, tasks="u"))
    limited = replace(b, settings={**b.settings, "evaluation.limit": 60})
    assert sides(a, limited), "as many as there are"
    with pytest.raises(UserError, match=r"other held-out tasks \(evaluation.limit is None and 60"):
        sides(a, replace(limited, tasks="u"))


def test_runs_of_environments_with_other_code_are_not_paired() -> None:
    own = {**SETTINGS, "env.name": "custom", "env.suite": None, "env.origin.sha256": "fc95"}
    a = replace(record("grpo", [1.0] * 4), settings=own, about={"data": "v1"})
    b = replace(record("grpo", [0.0] * 4, seed=1), settings={**own, "env.origin.sha256": "66df"})
    with pytest.raises(UserError, match=r"sha256 is fc95 and 66df.*Run both again"):
        sides(a, b)
    said = text(*sides(a, replace(b, settings=own, about={"data": "v2"})))
    assert "Other data (the suite's data is v1 and v2)" in said
    assert "Other data" not in text(*sides(a, replace(b, settings=own, about=a.about)))


def test_two_agents_are_compared_over_their_seeds() -> None:
    grpo, trace = seeds(GRPO), seeds(TRACE)
    a, b = sides(*grpo, *trace)
    assert a.runs == tuple(grpo) and b.runs == tuple(trace)
    said = text(a, b)
    assert "One seed each" not in said and "method.max_capabilities" in said
    a, b = sides(*grpo)  # two seeds of one agent
    assert (a.runs, b.runs) == ((grpo[0],), (grpo[1],))
    with pytest.raises(UserError, match=r"found 3: base .*; grpo .*2 seeds.*method=, budget="):
        sides(BASE, *grpo, TRACE)
    one, two = (replace(r, about={"data": r.seed}) for r in grpo)  # no seeds of one agent
    with pytest.raises(UserError, match="found 3"):
        sides(one, two, TRACE)


def test_comparisons_refuse_lossy_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lossy = replace(record("sft", [1.0, None, None]), drops=Drops(episodes=3, excluded=2))
    file = filed((GRPO, lossy), tmp_path / "records.jsonl")
    assert main(["compare", file]) == 2
    assert "less than 90% of their held-out episodes: run sft0640 (33%)" in capsys.readouterr().err
