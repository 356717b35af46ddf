"""The report's file: what is in it, what is left out and reported."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from reading import HOSTILE, poisoned, unpacked

from trace_bench.report import page as page_of_report
from trace_bench.report.__main__ import main
from trace_bench.report.page import build
from trace_bench.report.runs import differences, find
from trace_bench.results.compare import sides_of, text
from trace_bench.results.places import select

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


def test_two_runs_are_compared_task_by_task(
    report_file: Path, grpo_run: Path, trace_run: Path
) -> None:
    [pair] = unpacked(report_file.read_text(), "index")["pairs"]
    left, right = (outcomes(run, "final") for run in (grpo_run, trace_run))
    gap = sum(right[t] - left[t] for t in left) / len(left)
    assert pair["found"]["value"] == pytest.approx(gap)
    said = text(*sides_of(select([str(trace_run), str(grpo_run)])))
    assert f"{gap:+.3f} [{pair['found']['low']:+.3f}, {pair['found']['high']:+.3f}]" in said
    assert ["method", "grpo", "trace"] in pair["differ"]


def test_runs_of_other_tasks_or_code_are_not_paired(grpo_run: Path, base_run: Path) -> None:
    (one, other), _ = find([base_run, grpo_run])
    [pair], _ = differences([one, replace(other, tasks="u")])
    assert "found" not in pair and "different tasks" in pair["why"]
    other = replace(other, settings={**other.settings, "env.origin.sha256": "66df"})
    [pair], _ = differences([one, other])
    assert "found" not in pair and "sha256 is none and 66df" in pair["why"]
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
    (run,), _ = find([copies / "base"])
    page, _ = build([run.named("<b>{{data}}\\g<0>")], (), 10**8)
    assert "<title>trace_bench: &lt;b&gt;{{data}}\\g&lt;0&gt;</title>" in page
    assert unpacked(page, "index")["runs"][0]["name"] == "<b>{{data}}\\g<0>"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_nothing_of_a_chart_is_html() -> None:
    whole = (Path(page_of_report.__file__).parent / "charts.js").read_text()
    code = "".join(line for line in whole.splitlines(True) if not line.startswith("import "))
    series = json.dumps([{"name": "<b>a & b", "x": [1, None], "y": ["<i>"], "mode": "a>b"}])
    code += f"console.log(JSON.stringify(shown({series})));"
    command = ["node", "--input-type=module"]
    done = subprocess.run(command, input=code, text=True, capture_output=True, check=True)
    name = "&lt;b&gt;a &amp; b"
    wanted = [{"name": name, "x": [1, None], "y": ["&lt;i&gt;"], "mode": "a>b"}]
    assert json.loads(done.stdout) == wanted


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"turns":', '"torns":'),
        ('"role":"assistant"', '"rule":"assistant"'),
        ('"role":"user"', '"rule":"user"'),
        ('"function":', '"fun":'),
    ],
)
def test_damaged_conversations_are_named_and_the_rest_is_shown(
    before: str, after: str, copies: Path, capsys: Said
) -> None:
    path = copies / "base" / TALKS
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
    (copies / "base" / "capabilities.json").write_text('{"labels": [{"passed": true}]}')
    summary = json.loads((copies / "base" / "summary.json").read_text())
    summary["hashes"].pop("capabilities.json", None)
    (copies / "base" / "summary.json").write_text(json.dumps(summary))
    index = unpacked(report(copies), "index")
    assert len(index["runs"]) == 2 and "capabilities: KeyError" in index["remarks"][0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "nowhere"),
        (["."], "no finished run in ."),
        ([".", "--limit-mb", "nan"], "--limit-mb nan is not allowed"),
        ([".", "--limit-mb", "inf"], "--limit-mb inf is not allowed"),
    ],
)
def test_words_without_sense_are_one_line(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--out", "r.html"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and why in said and said.count("\n") == 1
    assert not (tmp_path / "r.html").exists()
