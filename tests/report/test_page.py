"""The report's file: what is in it, what is left out and reported."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from reading import HOSTILE, played, poisoned, unpacked

from trace_bench.report import page as page_of_report
from trace_bench.report.__main__ import main
from trace_bench.report.page import build
from trace_bench.report.runs import differences, find
from trace_bench.results.two import chosen, compare_two


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, of a perfect and of a random agent."""
    place = tmp_path_factory.mktemp("report") / "runs"
    played(place / "reference", "method=base", "policy=reference")
    played(place / "random", "method=base", "policy=random")
    return place


def report(places: list[Path], out: Path, *more: str) -> str:
    assert main([*map(str, places), "--out", str(out), *more]) == 0
    return out.read_text()


def outcomes(run: Path, agent: str) -> dict[str, float]:
    lines = map(json.loads, (run / "evaluation.jsonl").read_text().splitlines())
    return {o["task"]: float(o["score"]["success"]) for o in lines if o["agent"] == agent}


def test_every_held_out_task_is_in_the_report(runs: Path, tmp_path: Path) -> None:
    page = report([runs / "random"], tmp_path / "r.html")
    tasks = unpacked(page, "run-0")["tasks"]
    for agent in ("base", "final", "idle", "reference"):
        found = dict(zip(tasks["ids"], tasks["agents"][agent]["success"], strict=True))
        assert found == outcomes(runs / "random", agent)
    assert any(tasks["tags"]) and all(isinstance(w, str) for tags in tasks["tags"] for w in tags)


def test_every_stored_conversation_is_in_the_report(runs: Path, tmp_path: Path) -> None:
    page = report([runs / "random"], tmp_path / "r.html")
    data = unpacked(page, "run-0")
    text = (runs / "random" / "evaluation_trajectories.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) == 24
    assert data["same"] == {"final": "base"}  # nothing was trained: kept once
    for line in lines:
        stored = line["trajectory"]
        [[part, place]] = data["talks"][line["call"]][stored["task"]]
        talk = unpacked(page, f"talk-0-{part}")[place]
        replies = [m for m in talk["messages"] if m["role"] == "assistant"]
        assert [m["content"] for m in replies] == [t["reply"]["content"] for t in stored["turns"]]
        assert talk["score"]["success"] == stored["score"]["success"]
        shown = [data["tools"][i]["name"] for i in talk["tools"]]
        assert shown == [t["function"]["name"] for t in stored["tools"]]


def test_two_runs_are_compared_task_by_task(runs: Path, tmp_path: Path) -> None:
    page = report([runs / "reference", runs / "random"], tmp_path / "r.html")
    [pair] = unpacked(page, "index")["pairs"]
    left, right = (outcomes(runs / name, "final") for name in ("reference", "random"))
    gap = sum(right[t] - left[t] for t in left) / len(left)
    found = pair["found"]
    assert found["value"] == pytest.approx(gap) and found["low"] < gap < found["high"] < 0
    a, b = chosen([str(runs / "random"), str(runs / "reference")])
    said = compare_two(a, b)
    assert f"{gap:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]" in said
    assert ["policy.name", "reference", "random"] in pair["differ"]


def test_runs_on_different_tasks_are_not_compared(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    played(other, "method=base", "policy=reference", "evaluation.split=dev")
    page = report([runs / "reference", other], tmp_path / "r.html")
    [pair] = unpacked(page, "index")["pairs"]
    assert "found" not in pair and "different tasks" in pair["why"]


def test_runs_of_environments_with_other_code_are_not_paired(runs: Path) -> None:
    (one, other), _ = find([runs / "reference", runs / "random"])
    other = replace(other, settings={**other.settings, "env.origin.sha256": "66df"})
    [pair], _ = differences([one, other])
    assert "found" not in pair and "sha256 is none and 66df" in pair["why"]
    heads = unpacked(build([one, other], (), 10**8)[0], "index")["runs"]
    assert [head["code"] for head in heads] == [{}, {"env.origin.sha256": "66df"}]


def test_nothing_of_the_data_is_html(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "reference", copy)
    page_before = report([copy], tmp_path / "before.html")
    poisoned(copy)
    summary = json.loads((copy / "summary.json").read_text())
    summary["hashes"].pop("evaluation_trajectories.jsonl", None)
    (copy / "summary.json").write_text(json.dumps(summary))
    page = report([copy], tmp_path / "after.html")
    assert HOSTILE not in page and page.count("<script") == page_before.count("<script")
    assert any(m["content"] == HOSTILE for t in unpacked(page, "talk-0-0") for m in t["messages"])


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


def test_what_does_not_fit_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = played(tmp_path / "grpo", "method=grpo", "budget=64", "evaluation.yardsticks=false")
    whole = report([run], tmp_path / "whole.html")
    assert any(call.startswith("train") for call in unpacked(whole, "run-0")["talks"])
    capsys.readouterr()
    small = report([run], tmp_path / "small.html", "--limit-mb", "0.1")
    assert "left out:" in capsys.readouterr().err
    assert set(unpacked(small, "run-0")["talks"]) == {"evaluation/base", "evaluation/final"}
    assert "conversations of training" in unpacked(small, "index")["remarks"][0]


def test_damaged_conversations_are_named_and_the_rest_is_shown(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "random", copy)
    path = copy / "evaluation_trajectories.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace('"turns":', '"torns":')
    path.write_text("\n".join(lines) + "\n")
    page = report([copy], tmp_path / "r.html")
    assert "line 4 is corrupt" in capsys.readouterr().err
    assert len(unpacked(page, "talk-0-0")) == 3
    assert len(unpacked(page, "run-0")["tasks"]["ids"]) == 24


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ('"role":"assistant"', '"rule":"assistant"'),
        ('"role":"user"', '"rule":"user"'),
        ('"function":', '"fun":'),
    ],
)
def test_messages_of_another_form_leave_out_no_other_run(
    given: str, found: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    path = copy / "random" / "evaluation_trajectories.jsonl"
    first, rest = path.read_text().split("\n", 1)
    assert given in rest
    path.write_text(f"{first}\n{rest.replace(given, found)}")
    page = report([copy], tmp_path / "r.html")
    index = unpacked(page, "index")
    assert len(index["runs"]) == 2 and len(index["remarks"]) == 1
    assert "line 2 is corrupt (" in index["remarks"][0]
    assert index["remarks"][0] in capsys.readouterr().err.replace("left out: ", "")
    assert len(unpacked(page, "talk-0-0")) == 1 or len(unpacked(page, "talk-1-0")) == 1


def test_capabilities_of_another_form_leave_out_no_other_run(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    (copy / "random" / "capabilities.json").write_text('{"labels": [{"passed": true}]}')
    summary = json.loads((copy / "random" / "summary.json").read_text())
    del summary["hashes"]["capabilities.json"]
    (copy / "random" / "summary.json").write_text(json.dumps(summary))
    page = report([copy], tmp_path / "r.html")
    index = unpacked(page, "index")
    assert len(index["runs"]) == 2 and "capabilities: KeyError" in index["remarks"][0]


@pytest.mark.parametrize("name", ["{{data}}", "{{style}}", "{{unknown}}", "\\g<0>"])
def test_a_name_that_looks_like_a_mark_is_a_name(name: str, runs: Path) -> None:
    (run,), _ = find([runs / "random"])
    page, _ = build([run.named(name)], (), 10**8)
    assert f"<title>trace_bench: {name.replace('<', '&lt;').replace('>', '&gt;')}</title>" in page
    assert unpacked(page, "index")["runs"][0]["name"] == name


@pytest.mark.parametrize("given", ["nowhere", "empty"])
def test_a_place_without_runs_is_one_line(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / given), "--out", str(tmp_path / "r.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and given in said and said.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit-mb", "nan"], "--limit-mb nan is not allowed"),
        (["--limit-mb", "inf"], "--limit-mb inf is not allowed"),
        (["--out", ""], "could not write ."),
    ],
)
def test_an_option_without_sense_is_one_line(
    words: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs / "random"), *words]) == 2
    assert said in capsys.readouterr().err


def test_an_unfinished_run_is_named_and_the_others_are_shown(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    (copy / "random" / "summary.json").unlink()
    page = report([copy], tmp_path / "r.html")
    assert "not finished" in capsys.readouterr().err
    index = unpacked(page, "index")
    assert len(index["runs"]) == 1 and "not finished" in index["skipped"][0]


def test_another_build_of_the_charting_library_can_be_used(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "plotly-basic.min.js"
    own.write_text("/**\n* plotly.js\n* Licensed under the MIT license\n*/\nlet a = 1;\n")
    page = report([runs / "random"], tmp_path / "r.html", "--plotly", str(own))
    found = re.search('id="data-plotly">([^<]*)<', page)
    assert found and gzip.decompress(base64.b64decode(found[1])) == own.read_bytes()
    for wrong, why in ((tmp_path / "none.js", "is not there"), (runs, "--plotly"),
                       (Path(__file__), "is no build of plotly.js")):  # fmt: skip
        given = [str(runs / "random"), "--out", str(tmp_path / "s.html"), "--plotly", str(wrong)]
        assert main(given) == 2
        assert why in capsys.readouterr().err and not (tmp_path / "s.html").exists()
