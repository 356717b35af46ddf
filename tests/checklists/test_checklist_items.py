"""CM2's JSON read and written, and errors that name record, variant, turn and item."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from trace_bench.checklists.items import checklists_of, read_checklists, to_json
from trace_bench.core.errors import UserError


def item(name: str, weight: float, **changes: Any) -> dict[str, Any]:
    """An item with every field of the public format."""
    return {
        "id": name,
        "evidence": [
            {"turn": 0, "step": 1, "from": "assistant.tool_calls", "snippet": "get_weather(Bonn)"},
            {"turn": 0, "step": 1, "from": "user.content", "snippet": "in Bonn"},
        ],
        "focus_on": "assistant.tool_calls",
        "question": "Does the agent look up the weather in Bonn?",
        "pass_condition": "A call of get_weather has the city Bonn.",
        "failure_examples": ["another city"],
        "required_for_next_turn": True,
        "dependence": [],
        "weight": weight,
        "extra_info": {"price": 0.13},
        **changes,
    }


RECORD = [
    [
        [item("C0", 0.4), item("C1", 0.6, dependence=["C0"], focus_on="tool.content")],
        [item("C0", 1.0, required_for_next_turn=False)],
    ],
    [[item("C0", 1.0)], [item("C0", 1.0)]],
]


def test_the_public_format_is_read_and_written_without_a_loss() -> None:
    checklists = read_checklists(json.loads(json.dumps(RECORD)), "r7")
    assert to_json(checklists) == RECORD and checklists_of(RECORD) == checklists
    assert len(checklists) == 2 and [len(turn) for turn in checklists[0].turns] == [2, 1]
    second = checklists[0].turns[0][1]
    assert second.dependence == ("C0",) and second.required_for_next_turn
    assert second.evidence[0]["step"] == 1


NEEDED, NEVER = "required_for_next_turn", [{"turn": 0, "step": -1}]
BAD: dict[str, tuple[Any, Any, str]] = {
    "weights": ("weight", 0.9, r"record r7, variant 0, turn 0: the weights sum to 1\.5"),
    "a weight of nobody": ("weight", None, r"record r7: `\[0\]\[0\]\[0\]\.weight` is None"),
    "a weight that is no number": ("weight", float("nan"), "checklists cannot be used"),
    "focus": ("focus_on", "user.content", r"focus_on` is 'user\.content'; allowed: assis"),
    "an id twice": ("id", "C1", r"turn 0: two items have the id 'C1'"),
    "an id with a colon": ("id", "0:C", "turn 0: an item has the id '0:C'"),
    "dependence": ("dependence", ["C9"], r"item C0 depends on 'C9'; allowed: C0, C1"),
    "a circle": ("dependence", ["C1"], r"item C0: its dependences form a circle"),
    "question": ("question", 3, r"question` is 3; allowed: a text"),
    "required": (NEEDED, "yes", f"{NEEDED}` is 'yes'; allowed: true or false"),
    "evidence": ("evidence", NEVER, r"evidence\[0\]\.step` is -1; allowed: a whole number from 0"),
    "failures": ("failure_examples", "none", "failure_examples` is 'none'; allowed: a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_record_turn_and_item(name: str) -> None:
    key, value, message = BAD[name]
    data = copy.deepcopy(RECORD)
    data[0][0][0][key] = value
    with pytest.raises(UserError, match=message):
        read_checklists(data, "r7")


def test_the_outer_lists_are_checked() -> None:
    for data, message in (
        ({}, "record r7: `it` is {}; allowed: a list"),
        ([], "record r7: there is no checklist"),
        ([[]], "variant 0: there is no turn"),
        ([[[]]], "variant 0, turn 0: there is no item"),
        ([RECORD[0], RECORD[1][:1]], "its variants have 2 and 1 turns"),
    ):
        with pytest.raises(UserError, match=message):
            read_checklists(data, "r7")
