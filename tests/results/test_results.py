"""Records of real run folders, comparisons with known answers, tables and figures."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import SETTINGS, record

from trace_bench.__main__ import main as run
from trace_bench.core.errors import UserError
from trace_bench.core.store import file_hash, read_lines, read_object, write_json
from trace_bench.results import captions, figures, search, tables
from trace_bench.results.__main__ import main
from trace_bench.results.compare import Cell, cells, check_comparable, difference
from trace_bench.results.figures import single_budget
from trace_bench.results.folder import _options, read_run
from trace_bench.results.groups import groups_of
from trace_bench.results.places import Selection, find
from trace_bench.results.records import as_line, read_records
from trace_bench.results.run import Run
from trace_bench.results.statistics import holm
from trace_bench.results.table import Table, style
from trace_bench.results.two import Side, compare_two, sides_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a scripted agent, finished, and one that was not."""
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        settings = ["method=base", "policy=reference", f"seed={seed}", "evaluation.limit=6"]
        assert run([*settings, f"run_dir={place / f'run{seed}'}"]) == 0
    shutil.copytree(place / "run0", place / "cut")
    (place / "cut" / "summary.json").unlink()
    return place


def test_folders_become_records_and_the_unfinished_is_named(folders: Path) -> None:
    found = find([folders])
    assert [(r.method, r.seed, r.mean) for r in found.runs] == [
        ("base", 0, 1.0),
        ("base", 1, 1.0),
    ]
    assert found.skipped == (f"{folders / 'cut'}: not finished (no summary.json)",)
    first = found.runs[0]
    assert len(first.success) == 6 and first.spent == 0 and first.floors["idle"] < 1.0
    assert first.settings["policy.name"] == "reference" and "seed" not in first.settings
    assert "evaluation.yardsticks" not in first.settings and first.versions["torch"]
    assert first.machine["processor"] and "machine" not in json.dumps(first.settings)


def test_records_survive_their_file(folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    assert main(["collect", str(folders), "--out", str(out)]) == 0
    assert tuple(read_records(out)) == find([folders]).runs
    assert "parameters" not in out.read_text()  # a scripted agent has none
    out.write_text(out.read_text() + '{"format": 0}\n')
    with pytest.raises(UserError, match=r"line 3 has format 0"):
        read_records(out)
    out.write_text('{"format": 1, "method": "x"}\n')
    with pytest.raises(UserError, match=r"line 1 is not a record"):
        read_records(out)


def test_edited_files_are_found(folders: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(folders / "run0", place)
    path = place / "evaluation.jsonl"
    path.write_text(path.read_text().replace('"success":false', '"success":true', 1))
    with pytest.raises(UserError, match=r"evaluation.jsonl is not the file"):
        read_run(place)


def test_a_bound_of_which_every_episode_was_lost_has_no_value(
    folders: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    shutil.copytree(folders / "run0", place)
    path, summary = place / "evaluation.jsonl", read_object(place / "summary.json")
    gone = {"score": None, "error": "environment: gone", "stop": "error"}
    lines = [line | gone if line["agent"] == "idle" else line for line in read_lines(path)]
    texts = [json.dumps(line, separators=(",", ":")) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    summary["hashes"] |= {path.name: file_hash(path)}
    write_json(place / "summary.json", summary)
    assert read_run(folders / "run0").floors.keys() - read_run(place).floors.keys() == {"idle"}
    assert main(["tables", str(place), "--out", str(tmp_path / "tables")]) == 0


TAU2 = {
    **SETTINGS,
    "env.name": "tau2",
    "env.suite": "retail",
    "env.tasks": "v1.0",
    "llm.user.model": "tester",
    "llm.user.temperature": 0.0,
    "llm.user.seed": 42,
    "llm.user.deadline": 300.0,
}
ABOUT = {"data": "tasks v1.0", "user": "llm", "solo": False, "judge": "none: 40 are left out"}


def test_runs_of_other_tasks_or_with_another_user_are_not_compared() -> None:
    one = replace(record("base", [1, 0]), settings=TAU2, about=ABOUT)
    two = replace(record("grpo", [1, 1]), settings=TAU2, about=ABOUT)
    check_comparable([one, two])
    for differs, words in (
        ({"about": {**ABOUT, "data": "tasks v0.2"}}, "the suite's data is tasks v0.2"),
        ({"about": {}}, "the suite's data is not recorded"),
        ({"settings": {**TAU2, "env.tasks": "v0.2"}}, "env.tasks is v0.2"),
        ({"settings": {**TAU2, "llm.user.model": "other"}}, "llm.user.model is other"),
        ({"settings": {**TAU2, "llm.user.seed": 7}}, "llm.user.seed is 42 .* or 7"),
        ({"settings": {**TAU2, "llm.user.temperature": 1.0}}, "llm.user.temperature is 0.0"),
    ):
        with pytest.raises(UserError, match=words):
            check_comparable([one, replace(two, **differs)])  # type: ignore[arg-type]


def test_a_caption_names_the_tasks_the_user_and_what_is_left_out() -> None:
    text = captions.describe([replace(record("base", [1, 0]), settings=TAU2, about=ABOUT)])
    assert (
        "About the suite: data: tasks v1.0; user: llm (model tester, temperature 0.0, seed 42); "
        "solo: False; judge: none: 40 are left out." in text
    )
    assert "About the suite" not in captions.describe([record("base", [1, 0])])


def damaged(folders: Path, place: Path, name: str, content: bytes | None) -> Path:
    folder = place / "bad"
    shutil.copytree(folders / "run0", folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"a: [1"),
        ("config.yaml", b""),
        ("config.yaml", b"\xff\xfe\x00"),
        ("config.yaml", None),
        ("summary.json", b"[]"),
        ("summary.json", b'{"complete": true}'),
        ("summary.json", b"\xff\xfe"),
        ("summary.json", b"{"),
        ("evaluation.jsonl", b""),
        ("metrics.jsonl", b'{"phase": "training"}\n'),
    ],
)
def test_a_damaged_folder_is_skipped_named_and_counted(
    folders: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = damaged(folders, tmp_path, name, content)
    (tmp_path / "empty").mkdir()
    found = find([tmp_path, folders / "run1"])
    assert [r.seed for r in found.runs] == [1]
    assert len(found.skipped) == 2 and all(str(tmp_path) in text for text in found.skipped)
    assert str(folder) in found.skipped[0] and "no run (no config.yaml)" in found.skipped[1]
    assert "could not be used: 2" in captions.describe(found.runs, found.skipped)


def test_a_run_that_is_named_twice_is_one_seed(folders: Path, tmp_path: Path) -> None:
    assert main(["collect", str(folders), "--out", str(tmp_path / "r.jsonl")]) == 0
    found = find([folders, tmp_path / "r.jsonl", folders / "run0"])
    assert [r.seed for r in found.runs] == [0, 1]
    assert sum("is there already, counted once" in text for text in found.skipped) == 3


def test_settings_that_were_edited_are_found(folders: Path, tmp_path: Path) -> None:
    config = (folders / "run0" / "config.yaml").read_text()
    changed = config.replace("protocol: held_out", "protocol: paper").encode()
    assert changed != config.encode()
    damaged(folders, tmp_path, "config.yaml", changed)
    (said,) = find([tmp_path]).skipped
    assert "config.yaml is not the one that the run was made with" in said


def test_a_ledger_that_does_not_match_is_refused(folders: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(folders / "run0", place)
    summary = json.loads((place / "summary.json").read_text())
    summary["rollouts"]["training"] = 64
    (place / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"the ledger holds \{\}, the summary says .*training"):
        read_run(place)


def test_runs_that_differ_in_more_are_refused_with_the_keys() -> None:
    one = record("grpo", [1.0, 0.0])
    other = replace(one, settings={**SETTINGS, "protocol": "paper"}, fingerprint="p")
    with pytest.raises(
        UserError, match=r"protocol is held_out \(run grpo0640\) or paper \(run p\)"
    ):
        check_comparable([one, other])
    check_comparable([one, replace(other, budget=320)], free=("protocol",))
    with pytest.raises(UserError, match=r"held-out tasks is"):
        check_comparable([one, replace(one, method="trace", tasks="u")])
    with pytest.raises(UserError, match=r"both method=grpo budget=640 seed=0"):
        check_comparable([one, replace(one, fingerprint="x")])


def test_a_cell_averages_seeds_and_leaves_out_what_was_lost() -> None:
    cell = Cell("m", 640, (record("m", [1.0, 0.0, None]), record("m", [1.0, 1.0, 0.0], seed=1)))
    assert cell.value == pytest.approx(0.5), "the mean over tasks, as in differences"
    assert cell.per_task.tolist() == [1.0, 0.5, 0.0]
    interval = cell.interval()
    assert interval.low <= cell.value <= interval.high


def test_the_interval_has_the_width_that_theory_gives() -> None:
    """One seed, tasks drawn evenly: the width is that of the binomial."""
    rng = np.random.default_rng(0)
    success = (rng.random(400) < 0.4).astype(float).tolist()
    interval = Cell("m", 640, (record("m", success),)).interval()
    p = sum(success) / 400
    half = 1.96 * (p * (1 - p) / 400) ** 0.5
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.01)


def test_a_paired_difference_is_found_and_a_null_is_not() -> None:
    rng = np.random.default_rng(1)
    control = (rng.random(300) < 0.4).astype(float)
    treated = np.where(rng.random(300) < 0.2, 1.0, control)
    found = difference(
        Cell("a", 640, (record("a", treated.tolist()),)),
        Cell("b", 640, (record("b", control.tolist()),)),
    )
    assert found.interval.value == pytest.approx(float((treated - control).mean()))
    assert found.interval.low > 0 and found.p < 1e-6
    same = Cell("a", 640, (record("a", control.tolist()),))
    assert difference(same, same).p == 1.0


def test_holm_against_a_worked_example() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0} and holm({}) == {}


def grid() -> list[Run]:
    rng = np.random.default_rng(3)
    return [
        record(method, (rng.random(60) < rate).astype(float).tolist(), seed, budget)
        for method, rate in (("base", 0.4), ("grpo", 0.6), ("trace", 0.7))
        for budget in (320, 640)
        for seed in (0, 1)
    ]


def test_tables_hold_every_method_and_say_what_they_are_about() -> None:
    records = grid()
    caption = captions.describe(records, ["x: broken"])
    for words in (
        "toolsandbox/embedded", "split test", "protocol held_out", "60 tasks", "2 seeds", "1 trial",
        "Floor (idle) 0.250", "infrastructure lost 24 (environment 24)", "24 left out",
        "Rule retry", "could not be used: 1",
    ):  # fmt: skip
        assert words in caption
    scaling = tables.rollout_scaling(cells(records[:-2]), caption)
    assert [row[0] for row in scaling.rows] == ["base", "grpo", "trace"]
    assert scaling.rows[2][2] == "not run" and scaling.header == ("method", "320", "640")
    compared = tables.comparison(cells(records), 640, caption)
    assert [row[1:3] for row in compared.rows] == [("2", "600")] * 3
    assert compared.rows[0][5] == "" and compared.rows[1][5].startswith("+")
    assert "Holm-corrected over 3 comparisons" in compared.caption
    certain = [record("base", [0.0] * 60), record("trace", [1.0, 0.9] * 30)]
    assert tables.comparison(cells(certain), 640, "").rows[1][6] in ("<5e-05", "<0.0001")
    assert single_budget(cells(records)) is None
    assert single_budget(cells([*records[:-2], record("base", [0.5] * 60, 0, 1280)])) is None
    one = [r for r in records if r.budget == 640]
    assert single_budget(cells([*one, record("base", [0.5] * 60, 0, 1280)])) is None
    assert single_budget(cells(one)) == 640 and single_budget(cells(certain[:1])) is None
    uneven = captions.describe([*records, replace(records[0], seed=7)])
    assert "2 to 3 seeds" in uneven
    dirty = {"commit": "abcdef1234", "changed": True}
    assert "Code of the 13 runs: abcdef1; in 1 of them files were changed since." in (
        captions.describe([*records, replace(records[0], git=dirty)])
    )
    every = tables.pairs(cells(records), 640, caption)
    assert every is not None and every.rows[0][1:] == ("", "")
    assert every.header == ("method", "base", "grpo")
    # Two seeds say little about other seeds; for the seeds of one run each it is clear.
    assert every.rows[2][1].startswith("+") and every.rows[2][1].endswith("]")
    starred = tables.pairs(cells(certain), 640, "")
    assert starred is not None and starred.rows[1][1].endswith("]*")
    assert not tables.pairs(cells(certain[:1]), 640, "").rows
    assert "all 3 pairs" in every.caption
    text = compared.latex()
    assert r"\toprule" in text and r"95 \%" not in text and r"80 \%" in text
    assert compared.csv().count("\n") == 4 and compared.markdown().count("\n|") == 5


def test_without_runs_of_the_base_agent_each_run_has_its_own() -> None:
    """Never a table of no comparisons, whatever one method was run with."""
    rng = np.random.default_rng(5)
    base = tuple((rng.random(60) < 0.3).astype(float).tolist())
    runs = [replace(record("grpo", [1.0] * 40 + [0.0] * 20, s), base=base) for s in (0, 1)]
    (row,) = (found := tables.comparison(cells(runs), 640, "")).rows
    assert row[5].startswith(f"{40 / 60 - sum(base) / 60:+.3f} [") and row[6]
    assert "1 comparison." in found.caption and "each run's own evaluation" in found.caption
    alone = tables.comparison(cells([record("base", [1.0, 0.0])]), 640, "")
    assert "compared with no other" in alone.caption


def test_every_table_says_what_its_design_can_show() -> None:
    records = grid()
    assert "that 60 tasks, 2 seeds and 1 trial can show" in captions.describe(records)
    assert "between the seeds of these runs" in captions.describe(records)
    assert "assumption `flips`" in captions.describe([records[0]])


def test_two_runs_of_one_method_are_compared(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = str(folders / "run0"), str(folders / "run1")
    assert main(["compare", one, two, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "seed: 0 | 1" in said and "| A less B | +0.000 [" in said and "base of A" in said
    assert (tmp_path / "compare.md").read_text().strip() == said.strip()
    for wrong, why in (
        ([one], "found 1: base budget=640 .1 seed, toolsandbox/embedded, run"),
        ([one, one], "is named twice"),
        ([one, str(folders / "cut")], "found 1 .*not finished"),
        ([one, two, "--port", "7575"], "--port is an option of view"),
    ):
        with contextlib.suppress(SystemExit):
            assert main(["compare", *wrong]) == 2
        assert re.search(why, capsys.readouterr().err)


def sides(a: Run, b: Run) -> tuple[Side, Side]:
    return sides_of([Selection((a,), ()), Selection((b,), ())])


def test_the_comparison_of_two_runs_is_paired_and_names_the_settings() -> None:
    base = tuple([1.0, 0.0] * 50)
    a = replace(
        record("grpo", [1.0] * 80 + [0.0] * 20),
        base=base,
        settings={**SETTINGS, "trainer.learning_rate": 0.002},
        method_settings={"groups": 4},
    )
    b = replace(
        record("grpo", [1.0] * 60 + [0.0] * 40),
        base=base,
        settings={**SETTINGS, "trainer.learning_rate": 0.003},
        method_settings={"groups": 8},
        fingerprint="other",
    )
    said = compare_two(*sides(a, b))
    assert "trainer.learning_rate: 0.002 | 0.003" in said and "method.groups: 4 | 8" in said
    assert "evaluation.split" not in said and "budget:" not in said
    rows = {line.split(" | ")[0].strip("| "): line for line in said.splitlines() if "|" in line}
    assert "+0.300 [" in rows["A: grpo"] and "+0.100 [" in rows["B: grpo"]
    # 20 tasks of 100 went one way: the sign test, and sqrt(0.16 / 99) as error.
    assert "+0.200 [+0.120, +0.280]" in rows["A less B"] and "<0.0001" in rows["A less B"]
    assert "+0.000 [+0.000, +0.000]" in rows["base of A less base of B"]
    assert "can show" in said and "One seed each" in said
    assert said.index("A less B") < said.index("differ in (A | B)")
    more = replace(b, method="trace", method_settings={"groups": 8, "x": 1, "y": None})
    said = compare_two(*sides(a, more))
    assert "method.groups: 4 | 8" in said and "only B has: 2 of method" in said
    assert "only A" not in said and "method.x" not in said
    with pytest.raises(UserError, match=r"other held-out tasks \(evaluation.split is test and dev"):
        elsewhere = {**SETTINGS, "evaluation.split": "dev"}
        sides(a, replace(b, settings=elsewhere, tasks="u"))


def test_what_a_name_chooses_stands_beside_it() -> None:
    route = {"name": "gate", "others": 0.35}
    options = _options({"name": "trace", "keep_runs": 8, "route": route})
    assert options == {"keep_runs": 8, "route": "gate", "route.others": 0.35}
    gate = replace(record("trace", [1.0]), method_settings=options)
    other = {**options, "route": "zero_shot"}
    more = [replace(gate, seed=1), replace(gate, method_settings=other, fingerprint="other")]
    (group,) = groups_of([gate, *more])
    assert [r.label for r in group.runs] == ["trace", "trace", "trace, route zero_shot"]


def test_runs_of_environments_with_other_code_are_not_paired() -> None:
    own = {**SETTINGS, "env.name": "custom", "env.suite": None, "env.origin.sha256": "fc95"}
    a = replace(record("grpo", [1.0] * 4), settings=own, about={"data": "v1"})
    changed = {**own, "env.origin.sha256": "66df"}
    b = replace(record("grpo", [0.0] * 4, seed=1), settings=changed)
    with pytest.raises(UserError, match=r"sha256 is fc95 and 66df.*Run both again"):
        sides(a, b)
    said = compare_two(*sides(a, replace(b, settings=own, about={"data": "v2"})))
    assert "Other data (the suite's data is v1 and v2)" in said
    assert "Other data" not in compare_two(*sides(a, replace(b, settings=own, about=a.about)))


def tried(method: str, rate: float, success: list[float | None], seed: int = 0) -> Run:
    settings = {**SETTINGS, "evaluation.split": "dev", "trainer.learning_rate": rate}
    return replace(
        record(method, success, seed), settings=settings, fingerprint=f"{method}{rate}{seed}"
    )


def test_a_search_shows_every_choice_best_first() -> None:
    runs = [tried("grpo", 0.1, [1, 0, 0, 0], seed) for seed in (0, 1)]
    runs += [tried("grpo", 0.2, [1, 1, 1, 0], seed) for seed in (0, 1)]
    runs += [tried("trace", 0.1, [1, 1, 0, 0])]
    search.check_search(runs)
    rows = search.search(runs, "").rows
    assert [row[:5] for row in rows] == [
        ("grpo", "640", "learning_rate 0.2", "2", "0.750"),
        ("grpo", "640", "learning_rate 0.1", "2", "0.250"),
        ("trace", "640", "one choice only", "1", "0.500"),
    ]
    assert rows[0][5] == "best" and rows[1][5].startswith("0.500 [")


def test_a_search_for_each_value_of_a_setting(tmp_path: Path) -> None:
    """Two algorithms, of which one has a setting of its own: the best of each for itself."""
    made = []
    for name, rate, success in (("dapo", 0.1, 1), ("dapo", 0.2, 0), ("rloo", 0.1, 0)):
        run = tried("rl", rate, [success, 0])
        more = {"trainer.algorithm.name": name, "trainer.epochs": len(name) + (name == "rloo")}
        made.append(replace(run, settings={**run.settings, **more}, fingerprint=f"{name}{rate}"))
    source = tmp_path / "runs.jsonl"
    source.write_text("".join(map(as_line, made)))
    command = ["search", str(source), "--out", str(tmp_path / "out")]
    assert main([*command, "--coverage=0", "--across", "trainer.algorithm.name"]) == 0
    rows = [line.split(" | ") for line in (tmp_path / "out/search.md").read_text().splitlines()]
    assert [(row[0], row[2]) for row in rows if row[0].startswith("| rl")] == [
        ("| rl, dapo", "learning_rate 0.1"), ("| rl, dapo", "learning_rate 0.2"),
        ("| rl, rloo", "one choice only"),
    ]  # fmt: skip


def test_a_search_on_held_out_tasks_is_refused() -> None:
    with pytest.raises(UserError, match=r"on the split test.*evaluation\.split=dev"):
        search.check_search([record("grpo", [1, 0])])
    named = replace(run := tried("grpo", 0.1, [1, 0]), settings={
        **run.settings, "env.dev_split": "tuning", "evaluation.split": "tuning"})  # fmt: skip
    search.check_search([named])  # a suite may call its development split so
    other = tried("trace", 0.1, [1, 0])
    other = replace(other, settings={**other.settings, "trainer.rank": 8})
    with pytest.raises(UserError, match=r"trainer\.rank is 16.* or 8"):
        given = tried("grpo", 0.1, [1, 0])
        search.check_search(
            [replace(given, settings={**given.settings, "trainer.rank": 16}), other]
        )


def test_figures_and_tables_are_written_and_repeatable(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    source = tmp_path / "records.jsonl"
    source.write_text("".join(as_line(r) for r in grid()))
    written = []
    for name in ("one", "two"):
        assert main(["tables", str(source), "--out", str(tmp_path / name)]) == 0
        written.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert {"rollout_scaling.png", "rollout_scaling.svg", "comparison_640.md", "cost.csv"} <= set(
        written[0]
    )
    assert written[0]["rollout_scaling.png"].startswith(b"\x89PNG")


def test_a_short_training_has_tables_and_no_curve(tmp_path: Path) -> None:
    """One iteration makes no line. An adapter with one does not keep others from their curves."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    short = replace(record("grpo", [1, 0, 1]), training=((8, "x", 0.5, 0.1, 0.2),), drops={})
    later = ((8, "y", None, None, None), (16, "y", 0.4, 0, 0), (24, "y", 0.6, 0, 0))
    longer = replace(short, method="trace", training=(*short.training, *later), fingerprint="t")
    both = [short, longer]
    for records, drawn in (([short], False), (both, True)):
        source, out = tmp_path / "records.jsonl", tmp_path / f"{len(records)}"
        source.write_text("".join(map(as_line, records)))
        assert main(["tables", str(source), "--out", str(out)]) == 0
        assert (out / "cost.md").exists()
        assert (out / "learning_curves.svg").exists() == drawn
    assert "1 curve" in texts_of(out / "learning_curves.svg")


def test_every_composition_is_drawn_between_one_adapter_and_the_oracle(tmp_path: Path) -> None:
    """Runs without a router have no place in it; runs of other routes are columns of their own."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    scores = {"single_score": {"success": 0.4}, "oracle_score": {"success": 0.9}}
    figures = {**scores, "agreement": 0.5, "agreement_decisive": 0.5}
    routed = [
        replace(record("trace", [1, 0, 1], seed), method_settings={"route": route},
                routing=figures, drops={}, fingerprint=f"{route}{seed}")
        for route in ("retrieval", "own") for seed in (0, 1)
    ]  # fmt: skip
    lost = {**figures, "single_score": {"success": None}, "oracle_score": {"success": None}}
    routed[-1] = replace(routed[-1], routing=lost)
    for name, records in (
        ("without", [replace(record("grpo", [1, 0, 1]), drops={})]),
        ("with", routed),
    ):
        source, out = tmp_path / f"{name}.jsonl", tmp_path / name
        source.write_text("".join(map(as_line, records)))
        assert main(["tables", str(source), "--out", str(out)]) == 0
        assert (out / "composition.svg").exists() == (name == "with")
    said = texts_of(tmp_path / "with" / "composition.svg")
    assert "trace, route own" in said and "TRACE, retrieval" in said and "640 rollouts" in said


def test_methods_without_a_look_of_their_own_differ_in_a_figure() -> None:
    names = ["grpo", *(f"mine, size {n}" for n in range(8))]
    looks = style().looks(names)
    assert looks["grpo"].label == "GRPO"
    assert len({look.colour for look in looks.values()}) == len(names)
    assert len({look.marker for look in looks.values()}) == len(names)
    assert style().looks(names[::-1]) == looks


def test_bounds_of_one_value_are_named_together() -> None:
    figure, ((axes,),) = figures.panels(1, 1, (3, 3))
    figures.bounds(axes, {"idle": 0.0, "random": 0.0, "reference": 1.0})
    texts = [text.get_text() for text in axes.texts]
    figure.clear()
    assert texts == ["idle agent and random agent 0.00", "reference solutions 1.00"]


def test_bad_places_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["tables", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "no finished run" in capsys.readouterr().err


def texts_of(path: Path) -> str:
    """What an SVG that keeps its letters as comments says."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_tex_reads_no_text_as_a_command() -> None:
    """Every printable character stands for itself: what is left without the escapes is plain."""
    text = "".join(map(chr, range(32, 127))) + r"\input{/etc/passwd}"
    (row,) = re.findall(r"^x (.*) \\\\$", Table("t", "", ("x",), (("x " + text,),)).latex(), re.M)
    plain = re.sub(r"\\text(backslash|asciitilde|asciicircum)\{\}|\\[&%_#${}]", "", row)
    assert not set(plain) & set("\\&%_#${}~^") and row.count(r"\textbackslash{}") == 2
