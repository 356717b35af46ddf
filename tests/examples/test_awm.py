"""The example of a suite from files, on a small folder in the AgentWorldModel format."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from awm_folder import ASK, write
from pages import EXAMPLES
from shared import needs

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import UserError
from trace_bench.play.contract import check

pytestmark = needs("fastapi", "the format's programs need fastapi and sqlalchemy")

SEND = call_message(
    "send_message_with_phone_number", {"phone_number": "+15550001111", "content": "hello"}
)


@pytest.fixture
def awm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("awm")


def test_it_keeps_the_contract(awm: Any, tmp_path: Path) -> None:
    suite = awm.Suite(str(write(tmp_path)), scenarios=1)
    report = check(suite, suite.tasks("train"))
    assert report.ok, str(report)


def test_tasks_are_played_and_verified(awm: Any, tmp_path: Path) -> None:
    suite = awm.Suite(str(write(tmp_path)), scenarios=1)
    (task,) = suite.tasks("train")  # one is solved by doing nothing, one cannot be verified
    one, two = suite.make(), suite.make()
    first, _ = one.reset(task), two.reset(task)
    assert first.messages[-1] == {"role": "user", "content": ASK}
    names = [tool["function"]["name"] for tool in first.tools]
    assert names == ["send_message_with_phone_number", "get_message"]
    assert first.tools[1]["function"]["description"] == "One message"
    assert first.tools[1]["function"]["parameters"]["properties"]["message_id"]["type"] == "integer"
    shown = one.step(call_message("get_message", {"message_id": 1})).messages[0]["content"]
    assert json.loads(shown) == {"id": 1, "content": "old"}
    assert json.loads(one.step(SEND).messages[0]["content"]) == {"id": 2}
    assert not two.step(text_message("Done.")).score.success, "each has a database of its own"
    end = one.step(text_message("Sent."))
    assert end.done and end.score.success
    one.close(), two.close()


def test_folders_that_cannot_be_used_are_refused(awm: Any, tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(UserError, match="has 3 whole scenarios"):
        awm.Suite(str(folder), scenarios=2)
    (folder / "gen_db.jsonl").unlink()
    with pytest.raises(UserError, match=r"gen_db\.jsonl cannot be read"):
        awm.Suite(str(folder))


def test_a_value_stays_within_its_place_in_the_path(awm: Any) -> None:
    endpoint = {"path": "/rows/{id}", "request_params": {"id": {"param_type": "path"}}}
    assert awm.request(endpoint, {"id": "1/../../x?y=1"})[0] == "/rows/1%2F..%2F..%2Fx%3Fy%3D1"
