"""The report's file: what is in it, what is left out and reported."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_data import HOSTILE, poisoned, unpacked
from synthetic import record

from trace_bench.core.store import file_hash
from trace_bench.report import page as page_of_report
from trace_bench.report.__main__ import main
from trace_bench.report.page import build
from trace_bench.report.runs import differences, find, rows_of
from trace_bench.results.cells import cells, difference
from trace_bench.results.compare import sides_of, text
from trace_bench.results.places import select
from trace_bench.results.statistics import holm

Said = pytest.CaptureFixture[str]
TALKS = "evaluation_trajectories.jsonl"


@pytest.fixture
def copies(base_run: Path, grpo_run: Path, tmp_path: Path) -> Path:
    """A folder with copies of two runs."""
    for run, name in ((base_run, "base"), (grpo_run, "grpo")):
        shutil.copytree(run, tmp_path / "runs" / name)
    return tmp_path / "runs"


def report(place: Path, *more: str) -> str:
    """Of the runs in a folder, beside which it is written."""
    out = place.parent / "r.html"
    assert main([str(place), "--out", str(out), *more]) == 0
    return out.read_text()


def outcomes(run: Path, agent: str) -> dict[str, float]:
    lines = map(json.loads, (run / "evaluation.jsonl").read_text().splitlines())
    return {o["task"]: float(o["score"]["success"]) for o in lines if o["agent"] == agent}


def test_every_held_out_task_is_in_the_report(report_file: Path, grpo_run: Path) -> None:
    tasks = unpacked(report_file.read_text(), "run-0")["tasks"]
    for agent in ("base", "final", "idle", "reference"):
        success = tasks["agents"][agent]["success"]
        assert dict(zip(tasks["ids"], success, strict=True)) == outcomes(grpo_run, agent)
    assert any(tasks["tags"]) and all(isinstance(w, str) for tags in tasks["tags"] for w in tags)


def test_every_stored_conversation_is_in_the_report(report_file: Path, grpo_run: Path) -> None:
    page = report_file.read_text()
    data = unpacked(page, "run-0")
    lines = [json.loads(line) for line in (grpo_run / TALKS).read_text().splitlines()]
    assert len(lines) == 16 and any(call.startswith("train") for call in data["talks"])
    for line in lines:
        stored = line["trajectory"]
        [[part, place]] = data["talks"][line["call"]][stored["task"]]
        talk = unpacked(page, f"talk-0-{part}")[place]
        replies = [m for m in talk["messages"] if m["role"] == "assistant"]
        assert [m["content"] for m in replies] == [t["reply"]["content"] for t in stored["turns"]]
        assert talk["score"]["success"] == stored["score"]["success"]
        shown = [data["tools"][i]["name"] for i in talk["tools"]]
        assert shown == [t["function"]["name"] for t in stored["tools"]]


def test_two_runs_are_compared_by_task(report_file: Path, grpo_run: Path, trace_run: Path) -> None:
    [pair] = unpacked(report_file.read_text(), "index")["pairs"]
    left, right = (outcomes(run, "final") for run in (grpo_run, trace_run))
    gap = sum(left[t] - right[t] for t in left) / len(left)
    assert pair["gap"]["value"] == pytest.approx(gap)
    said = text(*sides_of(select([str(grpo_run), str(trace_run)])))
    assert f"{gap:+.3f} [{pair['gap']['low']:+.3f}, {pair['gap']['high']:+.3f}]" in said


def test_runs_stand_in_the_rows_of_the_tables_with_their_statistics() -> None:
    """Seeds in one row, in the tables' order; differences and p as in the table of pairs."""
    rng = np.random.default_rng(3)
    runs = [
        record(method, (rng.random(60) < rate).astype(float).tolist(), seed)
        for seed in (1, 0)
        for method, rate in (("trace", 0.8), ("grpo", 0.6), ("base", 0.3))
    ]
    twin = replace(runs[0], fingerprint="twin")
    rows = rows_of([*runs, twin])
    assert [(row.method, [r.seed for r in row.runs]) for row in rows] == [
        ("base, budget 640", [0, 1]), ("grpo, budget 640", [0, 1]),
        ("trace, budget 640 (trace0640)", [0, 1]), ("trace, budget 640 (twin)", [1]),
    ]  # fmt: skip
    compared, _ = differences(rows[:3])
    alone = [difference(a, b) for a, b in combinations(cells(runs).values(), 2)]
    corrected = holm({str(n): gap.p for n, gap in enumerate(alone)})
    for n, (pair, gap) in enumerate(zip(compared, alone, strict=True)):
        assert pair["gap"] == {**vars(gap.interval), "p_value": corrected[str(n)]}
    assert any(corrected[str(n)] != gap.p for n, gap in enumerate(alone))


def test_runs_of_other_code_are_not_paired(grpo_run: Path, base_run: Path) -> None:
    (one, other), _ = find([base_run, grpo_run])
    (run,) = other.runs
    changed = replace(run, settings={**run.settings, "env.origin.sha256": "66df"})
    other = replace(other, runs=(changed,))
    [pair], _ = differences([one, other])
    assert "gap" not in pair and "sha256 is none and 66df" in pair["why"]
    heads = unpacked(build([one, other], (), 10**8)[0], "index")["runs"]
    assert [head["code"] for head in heads] == [{}, {"env.origin.sha256": "66df"}]
    assert unpacked(build([one], (), 10**8)[0], "run-0")["same"] == {"final": "base"}


def test_nothing_of_the_data_is_html(copies: Path) -> None:
    """Neither a conversation nor a name that looks like a mark of the page."""
    before = report(copies)
    poisoned(copies / "base")
    summary = json.loads((copies / "base" / "summary.json").read_text())
    summary["hashes"].pop(TALKS)
    (copies / "base" / "summary.json").write_text(json.dumps(summary))
    page = report(copies)
    assert HOSTILE not in page and page.count("<script") == before.count("<script")
    assert any(m["content"] == HOSTILE for t in unpacked(page, "talk-0-0") for m in t["messages"])
    (row,), _ = find([copies / "base"])
    page, _ = build([replace(row, method="<b>{{data}}\\g<0>")], (), 10**8)
    assert "<title>trace_bench: &lt;b&gt;{{data}}\\g&lt;0&gt;, seed 0</title>" in page
    assert unpacked(page, "index")["rows"][0]["name"] == "<b>{{data}}\\g<0>"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_nothing_of_a_chart_is_html_and_counts_are_whole() -> None:
    series = json.dumps([{"name": "<b>a & b", "x": [1, None], "y": ["<i>"], "mode": "a>b"}])
    name = "&lt;b&gt;a &amp; b"
    wanted = [{"name": name, "x": [1, None], "y": ["&lt;i&gt;"], "mode": "a>b"}]
    assert in_node("charts", f"shown({series})") == wanted
    assert in_node("dom", "[2709, 1234567, 0, 0.0123456, 12.5].map(figure)") == [
        "2709", "1234567", "0", "0.0123", "12.5",
    ]  # fmt: skip


def in_node(module: str, expression: str) -> Any:
    """What an expression is in a module of the page."""
    whole = (Path(page_of_report.__file__).parent / f"{module}.js").read_text()
    code = "".join(line for line in whole.splitlines(True) if not line.startswith("import "))
    code += f"console.log(JSON.stringify({expression}));"
    command = ["node", "--input-type=module"]
    done = subprocess.run(command, input=code, text=True, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_what_does_not_fit_or_cannot_be_read_is_reported(copies: Path, capsys: Said) -> None:
    """An unfinished run too; the others are shown."""
    shutil.copytree(copies / "base", copies / "cut")
    (copies / "cut" / "summary.json").unlink()
    page = report(copies, "--limit-mb", "0.1")
    said = capsys.readouterr().err
    assert "left out:" in said and "not finished" in said
    assert set(unpacked(page, "run-1")["talks"]) == {"evaluation/base", "evaluation/final"}
    index = unpacked(page, "index")
    assert "conversations of training" in index["remarks"][0]
    assert len(index["runs"]) == 2 and "not finished" in index["skipped"][0]


DAMAGES = [
    ('"turns":', '"torns":'),
    ('"role":"assistant"', '"rule":"assistant"'),
    ('"role":"user"', '"rule":"user"'),
    ('"function":', '"fun":'),
]


@pytest.mark.parametrize(("before", "after"), DAMAGES)
def test_damaged_talks_are_named(before: str, after: str, copies: Path, capsys: Said) -> None:
    path = copies / "base" / TALKS  # what is whole is shown
    first, rest = path.read_text().split("\n", 1)
    assert before in rest
    path.write_text(f"{first}\n{rest.replace(before, after)}")
    page = report(copies)
    index = unpacked(page, "index")
    assert len(index["runs"]) == 2 and len(index["remarks"]) == 1
    assert "line 2 is corrupt (" in index["remarks"][0]
    assert index["remarks"][0] in capsys.readouterr().err.replace("left out: ", "")
    assert len(unpacked(page, "talk-0-0")) == 1
    assert len(unpacked(page, "run-0")["tasks"]["ids"]) == 8


def test_capabilities_of_another_form_leave_out_no_other_run(copies: Path) -> None:
    path = copies / "base" / "capabilities.json"
    path.write_text('{"labels": [{"passed": true}]}')
    summary = json.loads((copies / "base" / "summary.json").read_text())
    summary["hashes"][path.name] = file_hash(path)
    (copies / "base" / "summary.json").write_text(json.dumps(summary))
    index = unpacked(report(copies), "index")
    assert len(index["runs"]) == 2 and "capabilities: KeyError" in index["remarks"][0]
