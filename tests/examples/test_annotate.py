"""The example of checklists by a model, with a server that answers as one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from pages import EXAMPLES
from recordings import recorded, write

from trace_bench.checklists.items import read_checklists
from trace_bench.core.store import read_lines
from trace_bench.llm.roles import Unusable
from trace_bench.rehearse.scripted import Answer, chat, serve

Said = pytest.CaptureFixture[str]


@pytest.fixture
def annotate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("annotate")


def test_an_annotators_answer_is_a_checklist_or_says_why_not(annotate: Any) -> None:
    turn = recorded(1)[0]["checklists"][0][0]
    found = annotate.read_annotation("Here: " + json.dumps({"turns": [turn]}), 1)
    assert [(i.id, i.weight, i.dependence) for i in found.turns[0]] == [
        (i["id"], i["weight"], tuple(i["dependence"])) for i in turn
    ]
    first, *others = turn
    for items, message in (
        ([{**first, "weight": 0.9}, *others], "weights sum to"),
        ([{**first, "weight": None}, *others], "None is not of type 'number'"),
        ([], "should be non-empty"),
        ([{**first, "id": ["C0"]}, *others], r"\['C0'\] is not of type 'string'"),
    ):
        with pytest.raises(Unusable, match=message):
            annotate.read_annotation(json.dumps({"turns": [items]}), 1)
    with pytest.raises(Unusable, match="is too short"):
        annotate.read_annotation(json.dumps({"turns": [turn]}), 2)


def test_a_model_writes_checklists_once(annotate: Any, tmp_path: Path, capsys: Said) -> None:
    records = recorded(3)
    source = write(tmp_path / "plain", records)

    def annotator(path: str, body: dict[str, Any]) -> Answer:
        question = body["messages"][1]["content"]
        turns = 1 + max(json.loads(line)["turn"] for line in question.splitlines()[1:-3])
        item = {
            "id": "C0", "evidence": [], "focus_on": "tool.content", "question": "Is it done?",
            "pass_condition": "It is.", "failure_examples": [], "required_for_next_turn": False,
        }  # fmt: skip
        weight = 0.5 if len(server.bodies()) == 1 else 1.0  # wrong at first
        return chat(json.dumps({"turns": [[{**item, "weight": weight}]] * turns}))

    with serve(annotator) as server:
        command = [
            str(source), f"out={tmp_path}/made", "variants=2",
            "llm.annotator.by=endpoint", f"llm.shared.base_url={server.url}", "llm.shared.model=a",
        ]  # fmt: skip
        assert annotate.main(command) == 0
        asked = len(server.bodies())
        assert asked == 7 and "weights sum to 0.5" in str(server.bodies()[1]["messages"][-1])
        assert annotate.main(command) == 0 and len(server.bodies()) == asked
    assert annotate.main([*command[:1], f"out={source}"]) == 2
    assert annotate.main(command[:2]) == 2
    said = capsys.readouterr()
    assert "is the folder that is annotated" in said.err and "Set llm.annotator.by" in said.err
    found = read_lines(tmp_path / "made" / "train.jsonl")
    assert [r["uuid"] for r in found] == [r["uuid"] for r in records]
    assert all(len(read_checklists(r["checklists"], r["uuid"])) == 2 for r in found)
    counted = json.loads(said.out.split("\n}\n")[0] + "\n}")
    items = sum(len(turn) for r in found for variant in r["checklists"] for turn in variant)
    assert counted["annotated"] == 3 and counted["items"] == items > 0
    assert counted["usage"]["annotator"]["requests"] == asked
