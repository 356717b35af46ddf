"""Runs that began with other runs' agents in tables: by all that was spent, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import record

from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.store import write_text
from trace_bench.core.summary import Began
from trace_bench.results import captions, tables
from trace_bench.results.__main__ import main
from trace_bench.results.captions import by_total, name
from trace_bench.results.cells import cells
from trace_bench.results.compare import sides_of, text
from trace_bench.results.groups import check_same_settings
from trace_bench.results.places import Selection
from trace_bench.results.run import Run, as_line, read_records

GEPA = {
    "method": "gepa", "env": "e", "seed": 0, "budget": 320, "fingerprint": "f" * 12,
    "rollouts": {"prompt": 200, "validation": 104}, "demonstrations": 0, "marks": ["a remark"],
}  # fmt: skip
SFT = {
    **GEPA, "method": "sft", "rollouts": {}, "demonstrations": 1024, "fingerprint": "5" * 12,
    "marks": [],
}  # fmt: skip


def began(own: Run, *runs: dict[str, Any]) -> Run:
    known = [r["rollouts"] for r in runs]
    spent = None if None in known else sum(sum(r.values()) for r in known)
    taught = sum(r["demonstrations"] for r in runs)
    mark = "-".join(str(r["fingerprint"]) for r in runs)
    start = {"sha256": mark, "runs": list(runs), "rollouts": spent, "demonstrations": taught}
    beginning = convert(start, Began)
    return replace(own, beginning=beginning, fingerprint=f"{own.fingerprint}-{mark}")


def test_prompt_then_weights_stands_beside_runs_of_the_same_total() -> None:
    plain = [record(m, [1, 0, 1], budget=640) for m in ("base", "grpo")]
    after = began(record("grpo", [1, 1, 1], budget=336), GEPA)
    found = by_total([*plain, after])
    check_same_settings(found)
    assert [(r.label, r.budget, r.total) for r in found] == [
        ("base", 640, 600), ("grpo", 640, 600), ("gepa > grpo", 640, 600),
    ]  # fmt: skip
    caption = captions.describe(found)
    assert "Runs began with the agent of gepa (304 rollouts, run ffffffffffff; a remark)" in caption
    table = tables.comparison(cells(found), 640, caption)
    row = next(r for r in table.rows if r[0] == "gepa > grpo")
    assert row[2] == "600 (304 before)" and row[5].startswith("+0.333")


def test_runs_from_one_cold_start_keep_their_names() -> None:
    records = [began(record(m, [1, 0, 1]), SFT) for m in ("base", "grpo", "trace")]
    found = by_total(records)
    assert [(r.label, r.budget) for r in found] == [(m, 640) for m in ("base", "grpo", "trace")]
    text = captions.describe(found)
    assert "All runs began with the agent of sft (0 rollouts and 1024 demonstrations" in text


def test_agents_that_were_made_alike_are_named_in_one_breath() -> None:
    other = {**SFT, "fingerprint": "6" * 12}
    records = [began(record("grpo", [1, 0, 1]), *runs) for runs in ([SFT], [other], [GEPA, SFT])]
    text = captions.describe(by_total(records))
    fives, sixes = SFT["fingerprint"], other["fingerprint"]
    same = f"the agents of sft (0 rollouts and 1024 demonstrations each, runs {fives}, {sixes})"
    chain = f"gepa (304 rollouts, run {GEPA['fingerprint']}; a remark), sft (0 rollouts and"
    assert f"Runs began with {same}; or with the agent of {chain} 1024 demonstrations, run" in text


def test_without_a_run_of_the_base_agent_other_beginnings_have_no_common_one() -> None:
    found = by_total([record("grpo", [1, 0]), began(record("grpo", [1, 1]), SFT)])
    table = tables.comparison(cells(found), 640, "")
    assert [row[5] for row in table.rows] == ["", ""]
    assert "base agents are not one agent; pairs_640 compares the rows." in table.caption


def test_an_unknown_cost_is_in_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = began(record("grpo", [1, 0]), {**GEPA, "rollouts": None})
    with pytest.raises(UserError, match="began with an agent of unknown cost"):
        by_total([record("base", [1, 1]), unknown])
    write_text(tmp_path / "records.jsonl", as_line(unknown))
    command = ["tables", str(tmp_path / "records.jsonl"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "unknown cost" in capsys.readouterr().err


def test_a_record_keeps_what_it_began_with(tmp_path: Path) -> None:
    both = [record("base", [1, 1]), began(record("grpo", [1, 0], budget=336), SFT, GEPA)]
    write_text(tmp_path / "r.jsonl", "".join(map(as_line, both)))
    assert '"beginning"' not in as_line(both[0])
    again = read_records(tmp_path / "r.jsonl")
    assert again[1].beginning == both[1].beginning and name(again[1]) == "sft > gepa > grpo"
    assert (again[0].before, again[1].before, again[1].total) == (0, 304, 600)
    damages: list[dict[str, Any]] = [{"rollouts": -1}, {"runs": [{}]}, {"demonstrations": "many"}]
    for damage in damages:
        line = json.loads(as_line(both[1]))
        line["beginning"] |= damage
        write_text(tmp_path / "r.jsonl", json.dumps(line) + "\n")
        with pytest.raises(UserError, match="is not a record"):
            read_records(tmp_path / "r.jsonl")


def test_two_runs_say_what_they_began_with() -> None:
    sides = sides_of(Selection((record("grpo", [1, 0]), began(record("grpo", [1, 1]), SFT))))
    said = text(*sides)
    assert "begins with: the bare model | the agent of sft (0 rollouts and 1024 demo" in said
