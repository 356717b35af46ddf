"""Which runs stand together: filters, groups, rows of one method with other settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recordings import recorded as dialogues
from recordings import write
from synthetic import SETTINGS, again, filed, record

from trace_bench.__main__ import main as run
from trace_bench.core.errors import UserError
from trace_bench.results.__main__ import main
from trace_bench.results.captions import describe
from trace_bench.results.cells import cells
from trace_bench.results.groups import across, check_same_settings, groups_of, overview
from trace_bench.results.places import choose, find, split
from trace_bench.results.run import Drops, Run, as_line, read_records
from trace_bench.results.tables import by_needs, by_world


def other(before: Run, mark: str = "x", **settings: Any) -> Run:
    """The run with other settings."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    changed = {**before.settings, **dotted}
    return replace(before, settings=changed, fingerprint=before.fingerprint + mark)


def variant(before: Run, mark: str, **own: Any) -> Run:
    return replace(before, method_settings=own, fingerprint=before.fingerprint + mark)


BASE, GRPO = record("base", [1, 0, 0]), record("grpo", [1, 1, 0])
TRACE = variant(record("trace", [1, 1, 1]), "", max_capabilities=4)


def chosen(records: Sequence[Run], *filters: str) -> tuple[Run, ...]:
    return choose(records, split(filters)[1])


def test_filters_choose_by_method_and_any_setting(capsys: pytest.CaptureFixture[str]) -> None:
    dev = other(record("grpo", [1, 0, 0], seed=1, budget=320), evaluation__split="dev")
    paper = replace(TRACE, marks=("paper's count",), fingerprint="p")
    runs = (BASE, GRPO, TRACE, dev, paper)
    assert chosen(runs, "method=grpo,base") == (BASE, GRPO, dev)
    assert chosen(runs, "method=grpo", "method=base") == (BASE, GRPO, dev)
    assert chosen(runs, "method=trace") == (TRACE, paper)
    assert chosen(runs, "budget=320") == chosen(runs, "evaluation.split=dev") == (dev,)
    assert chosen(runs, "method=grpo", "seed=0") == (GRPO,)
    assert chosen(runs, "suite=toolsandbox/embedded") == chosen(runs, "env=toolsandbox") == runs
    assert chosen(runs, "env.train_tasks=null") == runs
    assert chosen(runs, "method.max_capabilities=4") == (TRACE, paper)
    capsys.readouterr()
    assert chosen(runs, "method=grpo", "budget=640") == (GRPO,)
    said = "left out: 4 of 5 runs, by the filters method=grpo budget=640\n"
    assert capsys.readouterr().err == said


def test_settings_are_named_as_they_are_typed_for_a_run() -> None:
    """`env.options.` and lists too, which records write otherwise."""
    some = [["GoTo"], ["GoTo", "OpenDoor"], ["OpenDoor"]]
    one, two, three = runs = [other(GRPO, "".join(w), env__levels=w) for w in some]
    assert chosen(runs, "env.levels=[GoTo]") == (one,)
    assert chosen(runs, "env.options.levels=[GoTo,OpenDoor],[OpenDoor]") == (two, three)
    with pytest.raises(UserError, match=r"no run has env.levels=\[Go\]; there are: \[GoTo"):
        chosen(runs, "env.options.levels=[Go]")


NOTHING_FOUND = [
    (["method=tarce"], "no run has method=tarce; there are: base, grpo, trace"),
    (["budget=64"], "no run has budget=64; there are: 640"),
    (["metod=grpo"], "no run has 'metod' to filter by; allowed: method, budget, seed, .*env"),
    (["method="], "names no value; write method=VALUE"),
    (["method=base", "method.max_capabilities=4"], "none of the 3 runs has method=base and"),
]


@pytest.mark.parametrize(("given", "why"), NOTHING_FOUND)
def test_a_filter_that_finds_nothing_says_what_there_is(given: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        chosen((BASE, GRPO, TRACE), *given)


def test_a_place_may_have_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rate=1").mkdir()
    places, filters = split(["rate=1", "runs/a=b", "seed=1"])
    assert places == [Path("rate=1"), Path("runs/a=b")] and filters == {"seed": ("1",)}


def test_a_suite_of_ones_own_has_the_name_it_gives_itself(tmp_path: Path) -> None:
    given = ["method=base", "policy=idle", "env=custom", "env.factory=toy:ToySuite"]
    given += ["protocol=paper", "evaluation.split=train", "env.dev_split=train"]
    assert run([*given, f"run_dir={tmp_path / 'run'}"]) == 0
    [own] = find([tmp_path]).runs
    assert own.suite == own.suite_name == "toy/tests"
    for key in ("suite=toy/tests", "env=custom"):
        assert chosen([own], key) == (own,)
    with pytest.raises(UserError, match="no run has suite=desk; there are: toy/tests"):
        chosen([own], "suite=desk")
    [group] = groups_of([own])
    assert group.name.startswith("toy-tests-train-") and describe([own]).startswith("toy/tests, ")
    (tmp_path / "file.jsonl").write_text(as_line(own))
    assert read_records(tmp_path / "file.jsonl") == [own]
    assert '"suite":' not in as_line(GRPO) and GRPO.suite_name == "toolsandbox/embedded"


def test_groups_hold_what_can_stand_in_one_table() -> None:
    dev = [other(r, evaluation__split="dev") for r in (BASE, GRPO)]
    fewer = replace(GRPO, tasks="u", fingerprint="f")
    facts = replace(BASE, about={"data": "v2"}, fingerprint="a")
    old = replace(record("sft", [0, 0, 0]), settings={**SETTINGS})
    del old.settings["env.train_tasks"]  # type: ignore[attr-defined]
    groups = groups_of([BASE, *dev, GRPO, fewer, facts, TRACE, old])
    assert groups[0].runs == (BASE, GRPO, TRACE, old) and groups[1].runs == tuple(dev)
    assert sorted(r.fingerprint for g in groups[2:] for r in g.runs) == ["a", "f"]
    assert all(g.name.startswith("toolsandbox-embedded-") for g in groups)
    assert len({g.name for g in groups}) == 4
    again = groups_of([old, TRACE, facts, fewer, GRPO, *dev, BASE])
    assert [{(g.name, r.fingerprint) for r in g.runs} for g in again] == [
        {(g.name, r.fingerprint) for r in g.runs} for g in groups
    ]
    rows = {row[0]: row for row in overview(groups).rows}
    assert rows[groups[0].name][4] == ""
    assert rows[groups[1].name][4] == "evaluation.split: dev instead of test"
    differs = {row[4] for row in rows.values()}
    assert "held-out tasks: u instead of t" in differs
    assert "the suite's data: v2 instead of not recorded" in differs


def test_runs_of_one_method_with_other_settings_are_rows_of_their_own() -> None:
    more = [replace(TRACE, seed=s, fingerprint=f"t{s}") for s in (1, 2)]
    two = variant(TRACE, "two", max_capabilities=2)
    long = variant(TRACE, "long", max_capabilities=4, hints="w" * 100)
    (group,) = groups_of([two, TRACE, *more, GRPO, long])
    names = [r.label for r in group.runs]
    assert names[:5] == ["trace, hints not set, max_capabilities 2", *["trace"] * 3, "grpo"]
    assert names[5].startswith("trace, settings ")
    usual = "trace without further words is that with hints not set, max_capabilities 4."
    assert usual in group.remarks
    assert any(text.startswith(f"{names[5]}: hints www") for text in group.remarks)


def test_a_setting_that_came_with_the_code_names_no_row() -> None:
    old = variant(TRACE, "old", band_low=0.2)
    new = [variant(TRACE, f"{n}", bands=True, in_context=n) for n in (0.5, 1.0)]
    (group,) = groups_of([old, *new])
    assert {r.label for r in group.runs} == {
        f"trace, in_context {value}" for value in ("not set", "0.5", "1.0")
    }
    (group,) = groups_of([old, new[0]])  # here nothing else tells them apart
    assert all("band_low" in r.label for r in group.runs)


def test_settings_across_which_runs_stand_together_are_named() -> None:
    keys = ["env.augmentation"]
    plain, first = (other(GRPO, m, env__augmentation=m) for m in ("none", "all_tools"))
    base = other(BASE, env__augmentation="none")
    assert len(groups_of([base, plain, first])) == 2
    (group,) = groups_of(across([base, plain, first], keys))
    names = [r.label for r in group.runs]
    assert names == ["base", "grpo, env.augmentation none", "grpo, env.augmentation all_tools"]
    more = replace(plain, seed=1, fingerprint="1")
    (group,) = groups_of(across([base, plain, first, more], keys))
    names = [r.label for r in group.runs]
    assert names == ["base", "grpo", "grpo, env.augmentation all_tools", "grpo"]
    (group,) = groups_of(across([plain, first, more, replace(more, seed=2)], keys))
    assert group.runs[0].label == "grpo", "three runs of four"
    rest = replace(first, seed=1, fingerprint="f1")
    (group,) = groups_of(across([plain, first, more, rest, replace(more, seed=2)], keys))
    assert group.runs[0].label == "grpo, env.augmentation none", "three runs of five"
    two = (other(GRPO, w[0], env__levels=w) for w in (["GoTo"], ["GoTo", "OpenDoor"]))
    (group,) = groups_of(across([*two], ["env.levels"]))
    names = [r.label for r in group.runs]
    assert names == ["grpo, env.levels [GoTo]", "grpo, env.levels [GoTo,OpenDoor]"], "as typed"
    why = r"unknown setting 'augmentation'.*env.augmentation.*--across"
    with pytest.raises(UserError, match=why):
        across([base, plain], ["augmentation"])


def test_what_goes_with_the_values_stands_in_the_same_table() -> None:
    """Presets: an algorithm with settings of its own, and a trainer that has no algorithm. Where
    one value has several choices, as in a search, these are tables of their own."""
    keys = ["trainer.name", "trainer.algorithm.name"]
    more = {"trainer.name": "local", "trainer.groups": 4, "trainer.epochs": 2}
    more["trainer.algorithm.name"] = "grpo"
    local = again(replace(GRPO, settings={**GRPO.settings, **more}))
    dapo = other(local, trainer__algorithm__name="dapo", trainer__epochs=1, trainer__groups=8)
    without = {k: v for k, v in GRPO.settings.items() if not k.startswith("trainer.")}
    es = replace(GRPO, settings={**without, "trainer.name": "es", "trainer.sigma": 0.1})
    (group,) = groups_of(across([local, dapo, es], keys))
    assert [r.label for r in group.runs] == ["grpo, grpo", "grpo, dapo", "grpo, es"]
    assert any("trainer.groups 8" in remark for remark in group.remarks)
    assert len(groups_of([local, dapo])) == 2
    with pytest.raises(UserError, match=r"trainer.algorithm.name is dapo .* or grpo"):
        check_same_settings([local, dapo])
    assert chosen([local, dapo, es], "trainer.algorithm.name=grpo") == (local,)
    assert chosen([local, dapo, es], "trainer.algorithm.name=dapo,grpo") == (local, dapo)
    longer = other(dapo, trainer__epochs=2)
    assert len(groups_of(across([local, dapo, longer], keys))) > 1


def test_tasks_stand_apart_by_how_many_capabilities_they_need() -> None:
    runs = [replace(r, needs=(0, 2, 3)) for r in (GRPO, BASE)]
    table = by_needs(cells(runs), "")
    assert table is not None
    assert table.header[2:] == ("none (1 tasks)", "several (2 tasks)")
    success = [(row[0], row[2][:5], row[3][:5]) for row in table.rows]
    assert success == [("base", "1.000", "0.000"), ("grpo", "1.000", "0.500")]
    assert not by_needs(cells([GRPO, BASE]), "").rows
    lost = replace(GRPO, success=(None, 1.0, 1.0), needs=(0, 2, 3))
    (row,) = by_needs(cells([lost]), "").rows
    assert row[2] == "" and row[3].startswith("1.000"), "no score of a task that needs none"


def test_each_world_has_its_success_and_its_difference() -> None:
    """Of two tasks in one world and one in another; nobody has a score in the third."""
    runs = [
        replace(r, worlds=("air", "shop", "air", "sea"), success=(*r.success, None), base=base)
        for r, base in ((BASE, (1.0, 0.0, 0.0, None)), (GRPO, (1.0, 0.0, 0.0, None)))
    ]
    table = by_world(cells(runs), "")
    assert table.header[2:5] == ("air (2 tasks)", "vs base", "p")
    assert table.header[5] == "shop (1 task)" and table.header[8] == "sea (1 task)"
    rows = {row[0]: [cell.partition(" ")[0] for cell in row[2:]] for row in table.rows}
    assert rows["base"] == ["0.500", "", "", "0.000", "", "", "", "", ""]
    air, gap, p, shop, more, q, *sea = rows["grpo"]
    assert (air, gap, shop, more, sea) == ("0.500", "+0.000", "1.000", "+1.000", [""] * 3)
    assert p and q and "over 2 comparisons" in table.caption
    assert not by_world(cells([GRPO, BASE]), "").rows


def test_a_second_run_of_one_seed_is_no_second_seed() -> None:
    twin = replace(GRPO, fingerprint="twin")  # as with other checkpoints
    (group,) = groups_of([GRPO, twin])
    assert group.runs == (GRPO,)
    assert "run twin repeats run grpo0640 (grpo, budget 640, seed 0)" in group.left_out[0]


def test_runs_along_an_axis_repeat_nothing() -> None:
    sizes = [other(GRPO, f"g{size}", trainer__group_size=size) for size in (4, 8)]
    (group,) = groups_of(sizes, ["trainer.group_size"])
    assert len(group.runs) == 2 and not group.left_out
    missing = [recorded(GRPO, str(n), training__misses=n) for n in (0.0, 0.1)]
    check_same_settings(missing, free=["training.misses"])


ELSEWHERE = {
    "training.suite": "recorded/phone", "training.data": "phone, 1", "training.tools": "simulate",
    "training.env.name": "recorded", "training.env.tools": "simulate",
    "training.env.train_split": "train",
}  # fmt: skip
"""Of a run that was trained on recordings and evaluated on the tasks of their suite."""


def recorded(before: Run, mark: str, **training: Any) -> Run:
    source = {**ELSEWHERE, **{k.replace("__", "."): v for k, v in training.items()}}
    return replace(before, source=source, fingerprint=mark)


def test_the_held_out_tasks_decide_what_stands_together_not_the_training_tasks() -> None:
    cm2 = [replace(recorded(GRPO, f"c{s}"), method="cm2", seed=s) for s in (0, 1)]
    replay = {"training__env.tools": "replay", "training__tools": "replay"}
    runs = [BASE, GRPO, *cm2, recorded(GRPO, "r"), recorded(GRPO, "p", **replay)]
    runs.append(replace(recorded(GRPO, "d", training__data="phone, 2"), seed=1))
    runs.append(replace(other(GRPO, env__train_tasks=16), seed=1))
    idle = replace(BASE, rollouts={"evaluation": 9})  # it has looked at no training task
    (group,) = groups_of([idle, replace(recorded(idle, "i"), seed=1), *runs[1:]])
    assert [r.label for r in group.runs] == [
        "base", "base", "grpo, trained on toolsandbox/embedded", "cm2", "cm2", "grpo",
        "grpo, env.tools replay", "grpo, data phone, 2",
        "grpo, trained on toolsandbox/embedded, env.train_tasks 16",
    ]  # fmt: skip
    assert group.remarks[0].endswith("the training tasks are those of recorded/phone.")
    usual = "On recorded/phone without further words: data phone, 1, env.tools simulate, tools simu"
    assert group.remarks[1].startswith(usual)
    assert group.remarks[2].endswith("embedded without further words: env.train_tasks not set.")
    assert chosen(runs, "training.env.tools=replay") == (runs[5],)
    (alone,) = groups_of(cm2)  # all of one source: nothing to say
    assert [r.label for r in alone.runs] == ["cm2", "cm2"] and alone.remarks == ()


def test_tables_of_one_source_refuse_another() -> None:
    fewer = replace(other(record("trace", [1, 0, 0]), env__train_tasks=16), fingerprint="few")
    for wrong in (recorded(TRACE, "r"), fewer):
        with pytest.raises(UserError, match=r"training\.(suite|env\.train_tasks) is "):
            check_same_settings([GRPO, wrong])
    check_same_settings([GRPO, fewer], free=("env.train_tasks",))


def test_runs_of_two_suites_share_a_table_if_their_held_out_tasks_are_equal(tmp_path: Path) -> None:
    """Evaluated on the real tasks behind recordings, and on the same tasks of the real suite."""
    meta = {"made_by": {"suite": "toolsandbox/embedded"}}
    phone = write(tmp_path / "phone", dialogues(3))
    (phone / "meta.json").write_text(json.dumps(meta))
    given = ["method=base", "policy=idle", "evaluation.limit=3", "checkpoints=[]"]
    elsewhere = ["env=recorded", f"env.folder={phone}", "env.dev_split=real_dev"]
    splits = {"real": [], "borrowed": [*elsewhere, "evaluation.split=real_test"]}
    for name, more in splits.items():
        assert run([*given, *more, f"run_dir={tmp_path / 'runs' / name}"]) == 0
    borrowed, real = find([tmp_path / "runs"]).runs
    assert borrowed.suite_name == "toolsandbox/embedded"
    assert borrowed.settings["evaluation.split"] == "test"
    assert borrowed.source["training.suite"] == "recorded/phone" and not real.source
    assert borrowed.source["training.env.folder"] == str(phone)
    (group,) = groups_of([real, replace(borrowed, seed=1)])
    assert [r.label for r in group.runs] == ["base", "base"]
    trained = [
        replace(r, method=m, rollouts={"training": 8}) for r, m in ((real, "grpo"), (borrowed, "x"))
    ]
    (group,) = groups_of(trained)
    assert {r.label.partition(",")[0] for r in group.runs} == {"grpo", "x"}
    scrambled = {**real.settings, "env.augmentation": "scrambled_names"}
    assert len(groups_of([borrowed, replace(real, settings=scrambled)])) == 2
    file = tmp_path / "records.jsonl"
    file.write_text(as_line(borrowed))
    assert read_records(file) == [borrowed] and '"source"' not in as_line(real)


def test_tables_of_runs_of_all_sorts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A set of tables a group, and what was left out with the reason."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    lossy = replace(record("sft", [1.0, None, None]), drops=Drops(episodes=3, excluded=2))
    limited = other(record("base", [1, 0, 1]), "limited", evaluation__limit=4)
    filed((BASE, GRPO, lossy, other(limited, evaluation__limit=6)), tmp_path / "some.jsonl")
    filed((limited,), tmp_path / "more.jsonl")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.yaml").write_text("seed: 0\n")
    out, places = tmp_path / "tables", ("some.jsonl", "more.jsonl", "cut")
    given = [str(tmp_path / name) for name in places]
    assert main(["tables", *given, "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert f"skipped: {tmp_path / 'cut'}: not finished (no summary.json)" in said
    assert "left out: run sft0640: a score for 33% of its held-out episodes, less than 90%" in said
    assert "2 groups of runs that cannot stand in one table" in said
    folders = sorted(p for p in out.iterdir() if p.is_dir())
    assert len(folders) == 2 and (folders[0] / "comparison_640.md").exists()
    listed = (out / "groups.md").read_text()
    assert all(p.name in listed for p in folders)
    assert "evaluation.limit: " in listed and "cut: not finished" in listed
    table = next(p for p in folders if (p / "ranking.svg").exists()) / "rollout_scaling.md"
    assert "| grpo |" in table.read_text() and "| sft |" not in table.read_text()
    one = tmp_path / "one.jsonl"
    to = ["--out", str(one)]
    for words in (["evaluation.limit=4", *given, *to], [*given, *to, "evaluation.limit=4"]):
        assert main(["collect", *words]) == 0
        assert "left out: 4 of 5 runs, by the filters" in capsys.readouterr().err
        assert [r.settings["evaluation.limit"] for r in read_records(one)] == [4]
        one.unlink()
