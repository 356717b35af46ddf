"""`python -m trace_bench.record`: folders of recordings, disjoint by scenario."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from recordings import PHONE, follow, recorded, suite

from trace_bench.core.store import read_json, read_lines
from trace_bench.envs.recorded.data import held_out, refused, scenario_of
from trace_bench.record import main

Said = pytest.CaptureFixture[str]
COMMAND = ("suite", "env=toolsandbox", "split=train", "turns=2", "evaluation.split=dev")
SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "phone"
    assert main([*COMMAND, f"out={out}"]) == 0
    return out


def lines(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {split: read_lines(folder / f"{split}.jsonl") for split in SPLITS}


def test_dialogues_of_several_turns_are_recorded(whole: Path) -> None:
    found = [record for records in lines(whole).values() for record in records]
    assert len(found) == 15  # those of the 64 training tasks in which the user speaks twice
    meta = read_json(whole / "meta.json")
    assert sum(meta["dialogues"].values()) == 15 and meta["left out"]["too short"] == 49
    made = suite(whole)
    own = [split for split in made.splits() if not split.startswith("real_")]
    assert sum(len(made.tasks(split)) for split in own) == 15
    real = made.tasks("real_dev")[3]  # the suite that they come from, with its own score
    assert real == PHONE.tasks("dev")[3] == made.task(real.id)
    env = made.make()
    env.reset(real)
    score = follow(env, made.reference(real)).score
    assert score is not None and score.success and not score.checks
    assert all(len(record["checklists"][0]) >= 2 for record in found)


def test_scenarios_are_in_one_split_and_never_held_out(whole: Path) -> None:
    homes: dict[str, set[str]] = {}
    for split, kept in lines(whole).items():
        for record in kept:
            homes.setdefault(scenario_of(record["messages"]), set()).add(split)
    assert homes and all(len(splits) == 1 for splits in homes.values())
    assert not homes.keys() & held_out(PHONE, ["dev"])
    first, second, *_ = recorded(6)
    scenarios = {scenario_of(first["messages"])}
    assert refused(first, 2, scenarios) == "held out" and refused(second, 2, scenarios) is None
    assert refused(second, 9, ()) == "too short" and refused(None, 2, ()) == "without success"
    wrong = json.loads(json.dumps(second))
    wrong["checklists"][0][0][0]["extra_info"] = {"check": {"tell": "Never."}}
    assert refused(wrong, 2, scenarios) == "does not satisfy its checklist"


def test_the_same_command_again_leaves_the_folder_as_it_is(whole: Path, capsys: Said) -> None:
    times = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    assert main([*COMMAND, f"out={whole}"]) == 0
    assert json.loads(capsys.readouterr().out) == read_json(whole / "meta.json")
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir()} == times


@pytest.mark.parametrize("lose", ["lines", "file", "counts"])
def test_half_a_folder_is_no_whole(lose: str, whole: Path, tmp_path: Path, capsys: Said) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "half"))
    if lose == "lines":
        text = (out / "train.jsonl").read_text().splitlines(keepends=True)
        (out / "train.jsonl").write_text("".join(text[:3]))
    elif lose == "file":
        (out / "train.jsonl").unlink()
    else:
        made_by = {"made_by": read_json(out / "meta.json")["made_by"]}
        (out / "meta.json").write_text(json.dumps(made_by))
    assert main([*COMMAND, f"out={out}"]) == 2
    said = capsys.readouterr().err
    assert f"{out} has {{" in said and "Remove the folder" in said


def test_wrong_input_is_named(whole: Path, tmp_path: Path, capsys: Said) -> None:
    other = [*COMMAND, f"out={whole}", "env.augmentation=all_tools"]
    for arguments, said in (
        (["suit", "out=x"], "unknown command 'suit'; allowed: suite"),
        (["suite", "env=toolsandbox"], "`out` is missing"),
        ([*COMMAND[:2], "split=dev", f"out={tmp_path}/a"], "split=dev is held out"),
        ([*COMMAND[:2], "split=trian", f"out={tmp_path}/a"], "unknown split 'trian'"),
        (other, "holds recordings of another command"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    assert main([*COMMAND, f"out={tmp_path}/b"]) == 2
    assert "exists already" in capsys.readouterr().err
