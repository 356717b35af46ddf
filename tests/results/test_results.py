"""Records of real run folders, comparisons with known answers, tables and figures."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import SETTINGS, filed, record

from trace_bench.core.errors import UserError
from trace_bench.core.store import file_hash, read_lines, read_object, write_json
from trace_bench.core.summary import AgentScore, Commit, Routing
from trace_bench.results import captions, figures, tables
from trace_bench.results.__main__ import main
from trace_bench.results.cells import Cell, cells, difference
from trace_bench.results.figures import single_budget
from trace_bench.results.folder import _options, read_run
from trace_bench.results.groups import check_same_settings, groups_of
from trace_bench.results.places import find
from trace_bench.results.run import Run, read_records
from trace_bench.results.statistics import holm
from trace_bench.results.table import style


@pytest.fixture(scope="module")
def folders(base_run: Path, grpo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, finished, and one that is not."""
    place = tmp_path_factory.mktemp("runs")
    shutil.copytree(base_run, place / "run0")
    shutil.copytree(grpo_run, place / "run1")
    shutil.copytree(base_run, place / "cut")
    (place / "cut" / "summary.json").unlink()
    return place


def test_folders_become_records_and_the_unfinished_is_named(folders: Path, tmp_path: Path) -> None:
    selection = find([folders])
    assert selection.skipped == (f"{folders / 'cut'}: not finished (no summary.json)",)
    base, grpo = selection.runs
    assert (base.method, base.spent, len(base.success)) == ("base", 0, 8)
    assert (grpo.method, grpo.spent, base.floors["idle"] < 1.0) == ("grpo", 160, True)
    assert grpo.adapters and grpo.parameters
    assert "seed" not in base.settings and "evaluation.yardsticks" not in base.settings
    assert base.versions["torch"] and base.machine["processor"]
    assert "machine" not in json.dumps(base.settings)
    out = tmp_path / "records.jsonl"
    assert main(["collect", str(folders), "--out", str(out)]) == 0
    assert tuple(read_records(out)) == selection.runs
    again = find([folders, out, folders / "run0"])
    assert again.runs == selection.runs
    assert sum("is there already, counted once" in text for text in again.skipped) == 3
    for line, why in (
        ('{"format": 0}', "line 3 has format 0"),
        ('{"format": 1, "method": "x"}', "line 3 is not a record"),
    ):
        wrong = tmp_path / "wrong.jsonl"
        wrong.write_text(f"{out.read_text()}{line}\n")
        with pytest.raises(UserError, match=why):
            read_records(wrong)


def test_a_bound_of_which_every_episode_is_lost_has_no_value(folders: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(folders / "run0", place)
    path, summary = place / "evaluation.jsonl", read_object(place / "summary.json")
    gone = {"score": None, "error": "environment: gone", "stop": "error"}
    lines = [line | gone if line["agent"] == "idle" else line for line in read_lines(path)]
    texts = [json.dumps(line, separators=(",", ":")) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    with pytest.raises(UserError, match=r"evaluation.jsonl is not the file"):
        read_run(place)
    summary["hashes"] |= {path.name: file_hash(path)}
    write_json(place / "summary.json", summary)
    assert read_run(folders / "run0").floors.keys() - read_run(place).floors.keys() == {"idle"}


def another_protocol(path: Path) -> None:
    path.write_text(path.read_text().replace("protocol: held_out", "protocol: paper"))


def more_rollouts(path: Path) -> None:
    summary = read_object(path)
    summary["rollouts"]["training"] = 64
    write_json(path, summary)


DAMAGES: list[tuple[str, bytes | Callable[[Path], None], str]] = [
    ("config.yaml", b"a: [1", ""),
    ("config.yaml", b"\xff\xfe\x00", ""),
    ("config.yaml", Path.unlink, ""),
    ("config.yaml", another_protocol, "is not the one that"),
    ("summary.json", b'{"complete": true}', ""),
    ("summary.json", more_rollouts, "the ledger holds {}, the summary"),
    ("evaluation.jsonl", b"", ""),
    ("metrics.jsonl", b'{"phase": "training"}\n', ""),
]


@pytest.mark.parametrize(("name", "damage", "why"), DAMAGES)
def test_a_damaged_folder_is_skipped_named_and_counted(
    folders: Path, tmp_path: Path, name: str, damage: Any, why: str
) -> None:
    path = tmp_path / "bad" / name
    shutil.copytree(folders / "run0", path.parent)
    path.write_bytes(damage) if isinstance(damage, bytes) else damage(path)
    (tmp_path / "empty").mkdir()
    selection = find([tmp_path, folders / "run1"])
    assert [r.method for r in selection.runs] == ["grpo"]
    assert len(selection.skipped) == 2 and str(path.parent) in selection.skipped[0]
    assert why in selection.skipped[0]
    assert "no run (no config.yaml)" in selection.skipped[1]
    assert "could not be used: 2" in captions.describe(selection.runs, selection.skipped)


def test_what_a_name_chooses_stands_beside_it() -> None:
    route = {"name": "gate", "others": 0.35}
    options = _options({"name": "trace", "keep_runs": 8, "route": route})
    assert options == {"keep_runs": 8, "route": "gate", "route.others": 0.35}
    gate = replace(record("trace", [1.0]), method_settings=options)
    other = {**options, "route": "zero_shot"}
    more = [replace(gate, seed=1), replace(gate, method_settings=other, fingerprint="other")]
    (group,) = groups_of([gate, *more])
    assert [r.label for r in group.runs] == ["trace", "trace", "trace, route zero_shot"]


TAU2 = {
    **SETTINGS, "env.name": "tau2", "env.suite": "retail", "llm.user.model": "tester",
    "llm.user.temperature": 0.0, "llm.user.seed": 42,
}  # fmt: skip
ABOUT = {"data": "tasks 0.2", "user": "llm"}


def test_runs_that_differ_in_more_are_refused_with_the_keys() -> None:
    one = replace(record("base", [1, 0]), settings=TAU2, about=ABOUT)
    two = replace(record("grpo", [1, 1]), settings=TAU2, about=ABOUT)
    check_same_settings([one, two])
    for differs, words in (
        ({"about": {**ABOUT, "data": "tasks 0.3"}}, "data is tasks 0.2 .* or tasks 0.3"),
        ({"about": {}}, "the suite's data is not recorded"),
        ({"settings": {**TAU2, "llm.user.seed": 7}}, r"llm.user.seed is 42 \(run base0640\) or 7"),
        ({"settings": {**TAU2, "protocol": "paper"}}, r"protocol is held_out .* or paper"),
        ({"tasks": "u"}, "held-out tasks is"),
    ):
        other = replace(two, **differs)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=words):
            check_same_settings([one, other])
        if "settings" in differs:
            check_same_settings([one, other], free=("protocol", "llm.user.seed"))
    about = "About the suite: data: tasks 0.2; user: llm (model tester, temperature 0.0, seed 42)."
    assert about in captions.describe([one])


def test_a_cell_averages_seeds_and_leaves_out_what_was_lost() -> None:
    """Its mean is that over tasks, as in differences, though a seed lost some."""
    cell = Cell("m", 640, (record("m", [1.0, 0.0, None]), record("m", [1.0, 1.0, 0.0], seed=1)))
    assert cell.value == pytest.approx(0.5) and cell.per_task.tolist() == [1.0, 0.5, 0.0]
    interval = cell.interval()
    assert interval.low <= cell.value <= interval.high
    seeds = [replace(record("m", s, n), base=(0.0, 0.0)) for n, s in enumerate([(1, None), (0, 0)])]
    (cell,) = cells(seeds).values()
    assert cell.value == 0.25 == difference(cell, cell.base).interval.value


def test_a_paired_difference_is_found_and_a_null_is_not() -> None:
    rng = np.random.default_rng(1)
    control = (rng.random(300) < 0.4).astype(float)
    treated = np.where(rng.random(300) < 0.2, 1.0, control)
    same = Cell("b", 640, (record("b", control.tolist()),))
    less = difference(Cell("a", 640, (record("a", treated.tolist()),)), same)
    assert less.interval.value == pytest.approx(float((treated - control).mean()))
    assert less.interval.low > 0 and less.p < 1e-6
    assert difference(same, same).p == 1.0


def test_holm_against_a_worked_example() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert corrected == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0} and holm({}) == {}


def grid() -> list[Run]:
    rng = np.random.default_rng(3)
    return [
        record(method, (rng.random(60) < rate).astype(float).tolist(), seed, budget)
        for method, rate in (("base", 0.4), ("grpo", 0.6), ("trace", 0.7))
        for budget in (320, 640)
        for seed in (0, 1)
    ]


def test_captions_say_what_tables_are_about() -> None:
    records = grid()
    caption = captions.describe(records, ["x: broken"])
    for words in (
        "toolsandbox/embedded", "split test", "protocol held_out", "60 tasks", "2 seeds", "1 trial",
        "Floor (idle) 0.250", "infrastructure lost 24 (environment 24)", "Rule retry",
        "could not be used: 1", "that 60 tasks, 2 seeds and 1 trial can show",
        "between the seeds of these runs",
    ):  # fmt: skip
        assert words in caption
    assert "assumption `flips`" in captions.describe([records[0]])
    more = replace(records[0], seed=7, git=Commit("abcdef1234", True))
    uneven = captions.describe([*records, more])
    assert "2 to 3 seeds" in uneven
    assert "Code of the 13 runs: abcdef1; in 1 of them files were changed since." in uneven


def test_tables_hold_every_method() -> None:
    records = grid()
    scaling = tables.rollout_scaling(cells(records[:-2]), "")
    assert [row[0] for row in scaling.rows] == ["base", "grpo", "trace"]
    assert scaling.rows[2][2] == "not run" and scaling.header == ("method", "320", "640")
    compared = tables.comparison(cells(records), 640, "At 95 %.")
    assert [row[1:3] for row in compared.rows] == [("2", "600")] * 3
    assert compared.rows[0][5] == "" and compared.rows[1][5].startswith("+")
    assert "Holm-corrected over 3 comparisons" in compared.caption
    certain = [record("base", [0.0] * 60), record("trace", [1.0, 0.9] * 30)]
    assert tables.comparison(cells(certain), 640, "").rows[1][6] == "<0.0001"
    every = tables.pairs(cells(records), 640, "")
    assert every.rows[0][1:] == ("", "") and every.header == ("method", "base", "grpo")
    # Two seeds say little about other seeds; for the seeds of one run each it is clear.
    assert every.rows[2][1].startswith("+") and every.rows[2][1].endswith("]")
    assert "all 3 pairs" in every.caption
    assert tables.pairs(cells(certain), 640, "").rows[1][1].endswith("]*")
    assert not tables.pairs(cells(certain[:1]), 640, "").rows
    text = compared.latex()
    assert r"\toprule" in text and r"At 95 \%." in text
    assert compared.csv().count("\n") == 4 and compared.markdown().count("\n|") == 5
    one = [r for r in records if r.budget == 640]
    later = record("base", [0.5] * 60, 0, 1280)
    several = (records, [*records[:-2], later], [*one, later], certain[:1])
    assert [single_budget(cells(some)) for some in several] == [None] * 4
    assert single_budget(cells(one)) == 640


def test_without_runs_of_the_base_agent_each_run_has_its_own() -> None:
    """Never a table of no comparisons, whatever one method was run with."""
    rng = np.random.default_rng(5)
    base = tuple((rng.random(60) < 0.3).astype(float).tolist())
    runs = [replace(record("grpo", [1.0] * 40 + [0.0] * 20, s), base=base) for s in (0, 1)]
    table = tables.comparison(cells(runs), 640, "")
    (row,) = table.rows
    assert row[5].startswith(f"{40 / 60 - sum(base) / 60:+.3f} [") and row[6]
    assert "1 comparison." in table.caption and "each run's own evaluation" in table.caption
    alone = tables.comparison(cells([record("base", [1.0, 0.0])]), 640, "")
    assert "compared with no other" in alone.caption


def test_every_figure_is_drawn_and_repeatable(tmp_path: Path) -> None:
    """Of TRACE with two routes and GRPO: success over the budgets, and the ranking of one."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    score, lost = AgentScore(0.4, n=3), AgentScore(None)
    route = Routing(agreement=0.5, agreement_decisive=0.5, oracle_score=score, single_score=score)
    runs = [
        replace(run, method_settings={"route": name}, routing=route, fingerprint=name + str(n))
        if run.method == "trace" else run
        for n, run in enumerate(grid())
        for name in (("soft", "own") if run.method == "trace" else ("",))
    ]  # fmt: skip
    runs[-1] = replace(runs[-1], routing=replace(route, oracle_score=lost, single_score=lost))
    source, written = filed(runs, tmp_path / "records.jsonl"), []
    for name in ("one", "two"):
        assert main(["tables", source, "--out", str(tmp_path / name)]) == 0
        written.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert {"comparison_640.md", "cost.csv", "routing.tex"} <= {*written[0]}
    drawn = {name.partition(".")[0] for name in written[0] if name.endswith((".png", ".svg"))}
    assert drawn == {"rollout_scaling"}
    assert written[0]["rollout_scaling.png"].startswith(b"\x89PNG")
    said = texts_of(tmp_path / "one" / "rollout_scaling.svg")
    assert "trace, route own" in said and "TRACE, soft" in said and "rollout budget" in said
    source = filed([r for r in grid() if r.budget == 640], tmp_path / "records.jsonl")
    assert main(["tables", source, "--out", str(tmp_path / "three")]) == 0
    assert {p.stem for p in (tmp_path / "three").glob("*.svg")} == {"ranking"}


def texts_of(path: Path) -> str:
    """What an SVG that keeps its letters as comments says."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_methods_without_a_look_of_their_own_differ_in_a_figure() -> None:
    names = ["grpo", *(f"mine, size {n}" for n in range(8))]
    looks = style().looks(names)
    assert looks["grpo"].label == "GRPO"
    assert len({look.colour for look in looks.values()}) == len(names)
    assert len({look.marker for look in looks.values()}) == len(names)
    assert style().looks(names[::-1]) == looks
    named = {(look.colour, look.marker): look.label for look in style().methods.values()}
    assert all(named[x.colour, x.marker] == x.label for x in style().methods.values())


@pytest.mark.parametrize(("high", "top", "said"), [(0.6, 1.08, ""), (0.2, 0.26, ", above")])
def test_bounds_are_named_once_and_low_values_fill_the_figure(
    high: float, top: float, said: str
) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    figure, ((axes,),) = figures.panels(1, 1, (3, 3))
    axes.plot([0, 1], [0.0, high])
    figures.bounds(axes, {"idle": 0.0, "random": 0.0, "reference": 1.0})
    texts, limit = [text.get_text() for text in axes.texts], axes.get_ylim()[1]
    figure.clear()
    assert texts == ["idle agent and random agent 0.00", f"reference solutions 1.00{said}"]
    assert limit == pytest.approx(top)
