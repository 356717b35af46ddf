"""Names in a stranger's run folder that would become paths elsewhere: in the export, and of the
adapters with which a run begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import record
from test_line_readers import PLAYED

from trace_bench.core.beginning import WEIGHTS, base_agent, read_beginning
from trace_bench.core.store import canonical, write_json
from trace_bench.core.text import file_name
from trace_bench.core.types import Stored
from trace_bench.results import inspect

HOSTILE = {
    "upwards": "../../../outside",
    "upwards in the middle": "train/../../../../outside",
    "the folder above": "..",
    "absolute": "{place}/outside",
    "a null byte": "train\x00/../../outside",
    "hidden": ".ssh/authorized_keys",
    "longer than a file system takes": "x" * 5000,
    "a line break and a bell": "a\n\x07/../b",
    "nothing": "",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_no_name_in_a_file_leads_out_of_the_export(name: str, tmp_path: Path) -> None:
    name = name.format(place=tmp_path)
    folder, out = tmp_path / "run", tmp_path / "deep" / "er" / "out"
    write_json(folder / "summary.json", {})
    line = canonical(Stored(name, 0, replace(PLAYED, task=name or "x")))
    (folder / "trajectories.jsonl").write_text(line + "\n")
    run = record("../m", [1])
    facts = {"accounting": "strict", "model.name": "tiny"}
    inspect.write(replace(run, settings={**run.settings, **facts}), folder, out)
    (log,) = {p for p in tmp_path.rglob("*") if p.is_file()} - {*folder.iterdir()}
    assert log.parent == out and not log.name.startswith(".")


@pytest.mark.parametrize("version", [None, "../../outside"])
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_no_adapter_is_copied_out_of_a_run(name: str, version: str | None, tmp_path: Path) -> None:
    name = name.format(place=tmp_path) + (f"@{version}" if version else "")
    given, run = tmp_path / "given", tmp_path / "deep" / "er" / "run"
    for file in WEIGHTS:
        write_json(given / "weights" / file, {})
    write_json(given / "agent.json", {
        "model": "m", "adapters": [{"name": name, "path": str(given / "weights")}],
    })  # fmt: skip
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    agent = base_agent("m", read_beginning(str(given)), run)
    made = {p for p in tmp_path.rglob("*") if p.is_file()} - before
    assert len(made) == 3 and all(p.is_relative_to(run) for p in made)
    assert {len(p.relative_to(run / "adapters").parts) for p in made if p.name in WEIGHTS} == {3}
    assert max(len(part) for p in made for part in p.relative_to(run).parts) <= 120
    again = read_beginning(str(run / "beginning.json"))  # the run is resumed with the same names
    assert [a.name for a in again.agent.adapters] == [a.name for a in agent.adapters]


def test_no_two_names_are_one_file() -> None:
    names = ["a b", "a-b", "a/b", "a\\b", ".a", "a", "x" * 300, "x" * 301, "", "é", "\ud800"]
    assert len({file_name(n).casefold() for n in names}) == len(names)
    assert file_name("adapter:reads_settings@0003") == "adapter:reads_settings@0003"
    assert all(0 < len(file_name(n)) <= 100 and "/" not in file_name(n) for n in names)
    assert all(file_name(file_name(n)) == file_name(n) for n in names)
