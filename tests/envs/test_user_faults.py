"""Faults of a simulated user: found, mended, or typed as the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sandboxes import in_process as find

from trace_bench.core.errors import EpisodeError
from trace_bench.core.types import Boundary
from trace_bench.envs import invented
from trace_bench.rehearse.scripted import Answer, chat, serve
from trace_bench.runner.pipeline import run
from trace_bench.settings.compose import compose

pytestmark = pytest.mark.worlds

STOP = "###STOP###"


def airline(*answers: str) -> tuple[Any, list[Sequence[Any]]]:
    asked: list[Sequence[Any]] = []
    left = list(answers)

    def ask(role: str, messages: Any, schema: Any = None) -> str:
        asked.append(json.loads(json.dumps(list(messages))))
        return left.pop(0) if len(left) > 1 else left[0]

    return find("tau2", "airline", ask=ask), asked


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (STOP, "ended the conversation before"),
        ("  ", "You said nothing"),
        ("My reservation is QX93ZZ.", "Nobody has told you QX93ZZ"),
        ("I am made_up_4711.", "made_up_4711"),
        ("Write to nobody@nowhere.org", "nobody@nowhere.org"),
    ],
)
def test_a_fault_is_reported_and_mended(bad: str, why: str) -> None:
    suite, asked = airline(bad, "I want to cancel a flight.", STOP)
    env = suite.make()
    first = env.reset(suite.tasks("test")[0])
    assert first.messages[1]["content"] == "I want to cancel a flight."
    assert why in asked[1][-1]["content"] and asked[1][-2]["content"] == bad
    assert len(asked[0]) == 2, "the first question"
    end = env.step({"role": "assistant", "content": "Done."})
    assert end.done and end.score.details["user_faults"] == 1
    assert all(why not in str(m) for m in asked[-1]), "the note does not stay"


def test_a_user_who_keeps_at_it_fails_the_episode_as_the_user() -> None:
    suite, asked = airline(STOP)
    with pytest.raises(EpisodeError, match="simulated user is at fault") as caught:
        suite.make().reset(suite.tasks("test")[0])
    assert caught.value.boundary == Boundary.USER.value and len(asked) == 3


@pytest.mark.parametrize(
    ("text", "strange"),
    [
        ("It is on 2024-05-20 at 10:30 for $5,244, seat 12A.", []),
        ("My number is 555 123 2002, and my id is mia_li_3668.", []),
        ("Call 5551232002 about #W1234567.", []),
        ("Order #W7654321 and 555-999-0000.", ["#W7654321", "555-999-0000"]),
        ("FLIGHT HAT001 or HAT002?", ["HAT002"]),
    ],
)
def test_only_identifiers_that_nobody_said_count(text: str, strange: list[str]) -> None:
    known = ["phone 555-123-2002, order W1234567,", "id mia_li_3668", "HAT001 is full"]
    assert invented(text, known) == strange


def test_faults_of_the_user_are_counted_apart_and_retried(tmp_path: Path) -> None:
    """A real run of τ² with a user behind HTTP: in every third conversation it answers nonsense."""
    seen: dict[str, int] = {}

    def script(path: str, body: dict[str, Any]) -> Answer:
        scenario = body["messages"][0]["content"]
        if len(body["messages"]) == 2:
            seen[scenario] = seen.get(scenario, 0) + 1
        if len(seen) % 3 == 0 and seen[scenario] == 1:
            return chat(STOP)  # the first attempt at every third task ends at once
        return chat("I want to change my flight." if len(body["messages"]) == 2 else STOP)

    with serve(script) as server:
        folder = f"run_dir={tmp_path / 'r'}"
        more = ["llm.user.by=endpoint", f"llm.shared.base_url={server.url}", "llm.shared.model=u"]
        world = ["env=tau2", "method=base", "policy=idle", "evaluation.limit=6"]
        assert run(compose([*world, *more, folder])) == 0
    lines = [json.loads(s) for s in (tmp_path / "r" / "evaluation.jsonl").read_text().splitlines()]
    faults = [e for e in lines if str(e["error"]).startswith("user: ")]
    assert faults and all(e["score"] is None and e["attempt"] == 0 for e in faults)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["usage"]["user"]["requests"] > 12
    assert summary["suite_data"]["user_prompt"] == "2" and summary["suite_data"]["user"] == "llm"
