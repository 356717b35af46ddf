"""The index of a folder of runs: used only for what has not changed since."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_bench.__main__ import main as run
from trace_bench.results import index, runs
from trace_bench.results.__main__ import main
from trace_bench.results.places import Found, find

NAME = ".trace_bench_index.retry.jsonl"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    for seed in (0, 1, 2):
        settings = ["method=base", "policy=reference", f"seed={seed}", "evaluation.limit=4"]
        assert run([*settings, f"run_dir={place / f'run{seed}'}"]) == 0
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A folder with two runs that were not changed just now, in the index."""
    folder = tmp_path / "runs"
    for name in ("run0", "run1"):
        copy_of(made / name, folder / name)
    assert find([folder], indexed=True).notes == ()
    assert len(entries(folder)) == 2
    return folder


def copy_of(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    settle(target)


def settle(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path, (1_700_000_000, 1_700_000_000))


def entries(folder: Path) -> list[str]:
    return [json.loads(line)["folder"] for line in (folder / NAME).read_text().splitlines()[1:]]


def read_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Found, list[str]]:
    """What is found, and the names of the runs whose files were read for it."""
    names: list[str] = []
    inner = runs.read_run

    def watched(run: Path, rule: str) -> object:
        names.append(run.name)
        return inner(run, rule)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "read_run", watched)
        return find([folder], indexed=True), names


def test_unchanged_runs_are_not_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (place / NAME).stat().st_mtime_ns
    found, names = read_now(place, monkeypatch)
    assert names == [] and found.records == find([place]).records and found.notes == ()
    assert found.folders == find([place]).folders
    assert (place / NAME).stat().st_mtime_ns == before  # nothing to write


def test_tables_by_the_index_are_the_same(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    written = []
    for name, more in (("by", []), ("without", ["--no-index"])):
        assert main(["tables", str(place), "--out", str(tmp_path / name), *more]) == 0
        written.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert written[0] == written[1]


def replaced(place: Path, made: Path) -> None:
    shutil.rmtree(place / "run0")
    copy_of(made / "run2", place / "run0")


def removed(place: Path, made: Path) -> None:
    shutil.rmtree(place / "run0")


def added(place: Path, made: Path) -> None:
    copy_of(made / "run2", place / "run2")


def finished_anew(place: Path, made: Path) -> None:
    """Other content of the same size, with the old time."""
    path = place / "run0" / "summary.json"
    summary = json.loads(path.read_text())
    summary["adapters"] = ["x"]
    path.write_text(json.dumps(summary))
    settle(place / "run0")


@pytest.mark.parametrize(
    ("change", "reads", "seeds"),
    [
        (replaced, ["run0"], [2, 1]),
        (removed, [], [1]),
        (added, ["run2"], [0, 1, 2]),
        (finished_anew, ["run0"], [0, 1]),
    ],
)
def test_a_change_is_noticed(
    place: Path,
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, Path], None],
    reads: list[str],
    seeds: list[int],
) -> None:
    change(place, made)
    found, names = read_now(place, monkeypatch)
    assert names == reads and [r.seed for r in found.records] == seeds
    assert found.records == find([place]).records
    assert sorted(entries(place)) == sorted(p.name for p in place.iterdir() if p.is_dir())
    assert read_now(place, monkeypatch)[1] == []


@pytest.mark.parametrize("name", runs.FILES)
def test_an_edit_that_keeps_size_and_time_is_noticed(place: Path, name: str) -> None:
    """Each of the files that a record is made from: the run is refused as an edited one is."""
    path = place / "run1" / name
    if not path.exists():
        path.write_text("{}")
    else:
        data = bytearray(path.read_bytes())
        data[0] ^= 1  # in the middle of a summary stands what nothing checks
        path.write_bytes(data or b"x")
    settle(place / "run1")
    found, wanted = find([place], indexed=True), find([place])
    assert found.records == wanted.records and len(found.records) == 1
    assert found.skipped == wanted.skipped and "run1" in found.skipped[0]
    assert entries(place) == ["run0"]


def test_what_was_changed_just_now_is_not_indexed_yet(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(place / "run0" / "summary.json")
    for _ in range(2):
        assert read_now(place, monkeypatch)[1] == ["run0"]
    assert entries(place) == ["run1"]


def flipped(path: Path) -> None:
    text = path.read_text()
    assert '"success":[1,' in text
    path.write_text(text.replace('"success":[1,', '"success":[0,', 1))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_another_version(path: Path) -> None:
    head, _, body = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(head), "made_by": "older"}) + "\n" + body)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (flipped, "the index is damaged"),
        (of_another_version, "the index is of another version"),
        (lambda p: p.write_bytes(b"\xff\x00{"), "not UTF-8"),
        (lambda p: p.write_text("[" * 10_000), "the index|it is"),
        (lambda p: p.write_text(""), "made anew"),
        (lambda p: (p.unlink(), p.mkdir()), "cannot be used"),
        (piped, "no plain file"),
    ],
)
def test_a_damaged_index_is_made_anew_and_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], object], said: str
) -> None:
    harm(place / NAME)
    found, names = read_now(place, monkeypatch)
    assert names == ["run0", "run1"] and found.records == find([place]).records
    assert re.search(said, found.notes[0])


def test_an_index_of_another_folder_is_not_used(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after a copy with all its times; a folder that was only renamed keeps its index."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(place), str(copy)], check=True)
    found, names = read_now(copy, monkeypatch)
    assert names == ["run0", "run1"] and "of another folder" in found.notes[0]
    place.rename(tmp_path / "renamed")
    assert read_now(tmp_path / "renamed", monkeypatch) == (find([tmp_path / "renamed"]), [])


def test_an_entry_that_is_no_record_is_read_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with a right checksum."""
    head, first, second = (place / NAME).read_text().splitlines()
    entry = json.loads(first)
    entry["record"]["success"] = [7, 7, 7, 7]
    body = f"{json.dumps(entry)}\n{second}\n"
    right = {**json.loads(head), "sha256": hashlib.sha256(body.encode()).hexdigest()}
    (place / NAME).write_text(f"{json.dumps(right)}\n{body}")
    found, names = read_now(place, monkeypatch)
    assert names == ["run0"] and "the entry of run0 is no record" in found.notes[0]
    assert found.records == find([place]).records


def test_a_folder_that_cannot_be_written_is_read(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "runs"
    copy_of(made / "run0", place / "run0")
    (place / NAME).mkdir()  # holds for the super-user, too
    found = find([place], indexed=True)
    assert len(found.records) == 1
    assert any("cannot be written" in note for note in found.notes)


def test_a_run_folder_itself_gets_no_index(place: Path) -> None:
    before = {p.name for p in (place / "run0").iterdir()}
    assert len(find([place / "run0"], indexed=True).records) == 1
    assert {p.name for p in (place / "run0").iterdir()} == before


def test_processes_that_write_it_at_once_leave_a_whole_one(place: Path) -> None:
    (place / NAME).unlink()
    code = (
        "import sys; from pathlib import Path; from trace_bench.results.places import find\n"
        "for _ in range(5):\n"
        "    found = find([Path(sys.argv[1])], indexed=True)\n"
        "    assert len(found.records) == 2 and not found.notes, found\n"
        "    Path(sys.argv[1], sys.argv[2]).unlink(missing_ok=True)\n"
    )
    command = [sys.executable, "-c", code, str(place), NAME]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [p.wait(timeout=120) for p in both] == [0, 0]
    assert find([place], indexed=True).notes == () and len(entries(place)) == 2
    assert not list(place.glob("*.tmp")) and not list(place.glob(".*.tmp"))


def test_the_index_knows_all_the_code_that_makes_records() -> None:
    """One module that it does not know could change, and old records would stay."""
    known = {module.__name__ for module in index.SOURCES}
    used = {name for name in known if name.startswith("trace_bench.results.")}
    for name in sorted(used):
        tree = ast.parse(Path(str(sys.modules[name].__file__)).read_text())
        used |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    own = {name for name in used if name.startswith("trace_bench.")}
    assert own - known == {"trace_bench.core.errors"}


def test_a_record_is_made_from_no_other_file(made: Path, tmp_path: Path) -> None:
    """One that the index does not look at would go stale unnoticed."""
    (tmp_path / "run").mkdir()
    for name in runs.FILES:
        if (made / "run0" / name).exists():
            shutil.copy(made / "run0" / name, tmp_path / "run")
    assert runs.read_run(tmp_path / "run") == runs.read_run(made / "run0")
