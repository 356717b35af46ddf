"""Two domains of τ²-bench as one world: its tasks, its episodes, its figures by domain."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from shared import needs

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import perform
from trace_bench.core.types import Task
from trace_bench.results.__main__ import main as results
from trace_bench.runner.build import make_suite, run_context
from trace_bench.runner.pipeline import run
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of

pytestmark = [needs("inspect_evals", "inspect-evals is not installed"), pytest.mark.worlds]

BOTH = ["env=tau2", "env.domain=[airline,retail]", "evaluation.split=base"]


def both() -> Any:
    settings = compose(BOTH)
    parts = parts_of(settings)
    return make_suite(settings, parts, run_context(settings, parts))


def test_the_tasks_are_those_of_both_domains() -> None:
    suite = both()
    tasks = suite.tasks("base")
    assert len(tasks) == 50 + 114 and len({t.id for t in tasks}) == 164
    assert [t.data["domain"] for t in tasks] == ["airline"] * 50 + ["retail"] * 114
    assert suite.task(tasks[60].id) == tasks[60]
    assert set(suite.splits()) >= {"train", "test", "base", "fit", "dev"}
    assert suite.about()["data"].startswith("airline: ") and "; retail: " in suite.about()["data"]
    with pytest.raises(
        UserError, match=r"no task 'tau2/telecom/base/0000' in tau2/airline\+retail"
    ):
        suite.task("tau2/telecom/base/0000")


def test_an_environment_plays_either() -> None:
    suite = both()
    env = suite.make()
    for place in (0, 55, 1):
        task: Task = suite.tasks("base")[place]
        steps = perform(env, task, suite.reference(task))
        assert steps[-1].score is not None and steps[-1].score.success
        offered = {tool["function"]["name"] for tool in steps[0].tools}
        airline = task.data["domain"] == "airline"
        assert ("get_reservation_details" in offered) is airline
        assert ("get_order_details" in offered) is not airline
    env.close()


def test_figures_are_given_by_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    chosen = ["method=base", "policy=reference", "evaluation.limit=52", f"run_dir={folder}"]
    assert run(compose([*BOTH, *chosen])) == 0
    said = capsys.readouterr().out
    assert "\nairline: base 1.000 (50 tasks)\nretail: base 1.000 (2 tasks)" in said
    worlds = json.loads((folder / "summary.json").read_text())["worlds"]
    assert worlds["retail"]["score"]["n"] == 2 and worlds["airline"]["score"]["success"] == 1.0
    assert worlds["retail"]["tasks"] == ["tau2/retail/base/0000", "tau2/retail/base/0001"]
    records, out = tmp_path / "runs.jsonl", tmp_path / "tables"
    assert results(["collect", str(folder), "--out", str(records)]) == 0
    for place in (folder, records):
        assert results(["tables", str(place), "--out", str(out)]) == 0
        with (out / "worlds.csv").open() as file:
            header, row = csv.reader(file)
        assert header[2::3] == ["airline (50 tasks)", "retail (2 tasks)"]
        assert row[0] == "base" and row[2].startswith("1.000 [0.9") and row[3] == ""
