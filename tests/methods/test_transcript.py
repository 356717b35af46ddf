"""Conversations shortened for a reader with little room."""

from __future__ import annotations

import pytest

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.types import Score, StopReason, Trajectory, Turn
from trace_bench.methods.looking.evidence import as_text, compact

REQUEST = "Send my sister the address of the restaurant, and " + "then tell me all of it. " * 10


def long_one(calls: int = 12) -> Trajectory:
    """Many calls with long results, one of them an error, and an answer at the end."""
    turns = []
    told = ({"role": "user", "content": REQUEST},)
    for n in range(calls):
        action = call_message(f"look_up_{n:02d}", {"name": "word " * 20})
        turns.append(Turn(told, action))
        failed = "ValueError: no such place" if n == 4 else f"result {n} " + "x" * 300
        told = ({"role": "tool", "tool_call_id": "c", "name": "f", "content": failed},)
    turns.append(Turn(told, text_message("I am DONE now.")))
    return Trajectory("t", 0, "a", (), tuple(turns), (), StopReason.DONE, Score(0.0, False))


def test_what_fits_stays_whole() -> None:
    whole = as_text(long_one())
    assert compact(long_one(), len(whole)) == whole


@pytest.mark.parametrize("most", [3000, 1500, 800, 460, 300, 120])
def test_the_beginning_and_the_end_stay(most: int) -> None:
    text = compact(long_one(), most)
    assert len(text) <= most and text == compact(long_one(), most)
    assert text.startswith("user: Send my sister") and text.endswith("agent: I am DONE now.")


@pytest.mark.parametrize("most", [3000, 2000])
def test_calls_and_errors_stay_when_results_go(most: int) -> None:
    text = compact(long_one(), most)
    assert [n for n in range(12) if f"call: look_up_{n:02d}" in text] == list(range(12))
    assert "ValueError" in text


def test_no_room_at_all() -> None:
    assert compact(long_one(), 5) == as_text(long_one())[-5:]
