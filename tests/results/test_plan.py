"""How many seeds a difference needs: a plan against simulated runs of known variances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import filed, record

from trace_bench.core.errors import UserError
from trace_bench.results.__main__ import main
from trace_bench.results.cells import cells, difference
from trace_bench.results.plan import Varied, text, varied
from trace_bench.results.run import Run
from trace_bench.results.tables import cost

TASKS = 200


def runs(rng: np.random.Generator, seeds: int, ahead: float, apart: float = 0.1) -> list[Run]:
    """Two methods on tasks of .2 to .8; one is `ahead`, by a deviation of `apart` between tasks;
    seeds deviate by .03."""
    chance = rng.uniform(0.2, 0.8, TASKS)
    lead = ahead + apart * rng.choice([-1, 1], TASKS)
    made = []
    for method, mine in (("grpo", chance), ("trace", chance + lead)):
        for seed in range(seeds):
            success = rng.random(TASKS) < mine + rng.normal(0, 0.03)
            made.append(replace(record(method, success.astype(int).tolist()), seed=seed,
                                fingerprint=f"{method}{seed}"))  # fmt: skip
    return made


def test_the_variances_of_simulated_runs_are_found() -> None:
    rng = np.random.default_rng(0)
    found = [varied(runs(rng, 6, 0.0)) for _ in range(40)]
    flips = 2 * float(np.mean([p * (1 - p) for p in np.linspace(0.2, 0.8, 99)]))
    assert np.mean([f.flips for f in found]) == pytest.approx(flips, abs=0.03)
    assert np.mean([f.deviation**2 for f in found]) == pytest.approx(0.03**2, rel=0.3)
    assert np.mean([f.apart for f in found]) == pytest.approx(0.1**2, rel=0.4)


def test_as_many_seeds_as_planned_find_the_difference_four_times_in_five() -> None:
    rng = np.random.default_rng(1)
    known = Varied(0.01, 0.44, 0.03, TASKS, 1, 0.0, "")
    seeds = known.seeds(0.08, TASKS, 0.05)
    assert seeds is not None and 3 < seeds < 20
    hits = 0
    for _ in range(300):
        grpo, trace = cells(runs(rng, seeds, 0.08)).values()
        hits += difference(trace, grpo).p < 0.05
    assert 0.75 < hits / 300 < 0.97


def test_more_comparisons_and_smaller_differences_need_more_seeds() -> None:
    known = Varied(0.01, 0.14, 0.04, 387, 1, 0.0, "")
    sizes = [known.seeds(d, 387, 0.05) or 10**6 for d in (0.1, 0.06, 0.04)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3
    assert (known.seeds(0.06, 387, 0.05 / 66) or 0) > sizes[1]
    assert known.seeds(0.001, 387, 0.05) is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runs(np.random.default_rng(2), 4, 0.0)
    file = filed(made, tmp_path / "runs.jsonl")
    assert main(["plan", "0.05", file, "--comparisons", "3"]) == 0
    said = capsys.readouterr().out
    assert "| 200 |" in said and "3 comparisons" in said
    assert main(["plan", "five", file]) == 2
    assert main(["plan", "0.05", file, "--comparisons", "0"]) == 2
    with pytest.raises(UserError, match="two methods with at least two seeds"):
        varied(made[:4])


def test_across_joins_runs_of_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runs(np.random.default_rng(2), 4, 0.0)
    epochs = {"grpo": 2, "trace": 7}
    own = [replace(r, settings={**r.settings, "trainer.epochs": epochs[r.method]}) for r in made]
    file = filed(own, tmp_path / "runs.jsonl")
    assert main(["plan", "0.05", file]) == 2
    said = capsys.readouterr().err
    assert said.count("left out") == 1 and "4 runs of 1 other group; `results plan --across" in said
    assert main(["plan", "0.05", file, "--across", "trainer.epochs"]) == 0
    assert "From 8 runs of 2 methods" in capsys.readouterr().out
    assert main(["plan", "0.05", file, "--across", "trainer.epoch"]) == 2


def test_runs_whose_time_is_unknown_take_none_from_the_others() -> None:
    made = [replace(r, wall_s={"total": 120.0}) for r in runs(np.random.default_rng(2), 2, 0.0)]
    some = [replace(r, wall_s={} if r.seed else r.wall_s) for r in made]
    assert varied(made).minutes == varied(some).minutes == 2.0
    unknown = [replace(r, wall_s={}) for r in made]
    assert "|  |" in text(0.5, varied(unknown), 1) and "nan" not in text(0.5, varied(unknown), 1)
    timed = [replace(r, wall_s={"method": 9.0, "method/training rollouts": 4.0}) for r in made]
    some = [replace(r, wall_s={} if r.seed else r.wall_s) for r in timed]
    rows = [cost(cells(which), "").rows for which in (timed, some, unknown)]
    assert rows[0] == rows[1] and all(row[-2:] == ("4.0", "5.0") for row in rows[0])
    assert all(row[-2:] == ("", "") for row in rows[2])
    free = {"training": 600, "analysis": 200}  # which the paper's accounting does not charge
    paper = [
        replace(r, rollouts=free, settings={**r.settings, "accounting": "paper"}) for r in made
    ]
    rows.append(cost(cells(paper), "").rows)
    assert {row[-4] for some in rows for row in some} == {"40"}, "unspent"


def test_few_tasks_and_no_runs_at_all() -> None:
    made = runs(np.random.default_rng(0), 2, 0.0)
    one = [replace(r, success=r.success[:1], base=r.base[:1]) for r in made]
    assert "| 1 |" in text(0.5, varied(one), 1)
    with pytest.raises(UserError, match="a plan needs finished runs of two methods"):
        varied([])
