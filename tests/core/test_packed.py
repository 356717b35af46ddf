"""Tokens packed into their line are those of the episode, bit by bit, or the line is refused."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_bench.core.decode import Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import MOST_PACKED, packed
from trace_bench.core.store import Lines, canonical, read_lines
from trace_bench.core.types import StopReason, Stored, Trajectory, Turn

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-1e308, 0)
LOGPROBS = st.lists(NUMBERS, max_size=4).map(tuple)
REPLY = st.just({"content": "x", "role": "assistant"})
TURNS = st.builds(Turn, st.just(()), REPLY, IDS, IDS, LOGPROBS)


def stored(*turns: Turn) -> Stored:
    return Stored("a", 0, Trajectory("t", 1, "base", (), turns, (), StopReason.DONE, None))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(TURNS, max_size=4))
def test_tokens_are_read_as_they_were(turns: list[Turn]) -> None:
    line = stored(*turns)
    read = decode(canonical(packed(line)).encode(), Stored)
    assert read == line and repr(read) == repr(line)  # also the sign of a zero


TURN = Turn((), {"role": "assistant", "content": "x"}, (1,), (2,), (-0.5,))


def test_a_line_is_small_and_says_what_is_not_finite(tmp_path: Path) -> None:
    line = stored(replace(TURN, prompt_ids=(7,) * 1000, token_ids=(9,) * 99, logprobs=(-0.1,) * 99))
    lines = Lines(tmp_path / "a.jsonl", Stored)
    lines.append(packed(line))
    assert (tmp_path / "a.jsonl").stat().st_size < 600 and read_lines(lines.path, Stored) == [line]
    with pytest.raises(UserError, match="would be -inf; allowed: finite numbers"):
        lines.append(packed(stored(replace(TURN, logprobs=(float("-inf"),)))))
    many = stored(replace(TURN, prompt_ids=(1,) * MOST_PACKED))
    assert packed(many) is many


def text(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


BAD = {
    "no base64": ("?", "base64"),
    "no stream": (base64.b64encode(b"abc").decode(), "Error -3"),
    "a stream cut off": (text(bytes(100))[:8], "cut off"),
    "bytes that are none": (text(b"\xc1"), "malformed"),
    "a bomb": (text(bytes(MOST_PACKED + 1)), f"more than {MOST_PACKED} bytes"),
    "two lists": (text(msgspec.msgpack.encode([[], []])), "length 3"),
    "other turns": (text(msgspec.msgpack.encode([[[1]] * 2] * 3)), "is longer"),
    "an id below zero": (text(msgspec.msgpack.encode([[[-5]], [[]], [[]]])), ">= 0"),
    "an id that is a text": (text(msgspec.msgpack.encode([[["a"]], [[]], [[]]])), "Expected `int`"),
    "no number": (text(msgspec.msgpack.encode([[[]], [[]], [[float("nan")]]])), "not finite"),
    "a length without end": (text(b"\x93\xdd\xff\xff\xff\xff"), "truncated"),
}


@pytest.mark.parametrize(("tokens", "why"), BAD.values(), ids=BAD)
def test_tokens_that_are_none_are_refused(tokens: str, why: str) -> None:
    line = canonical(replace(stored(TURN), tokens=tokens)).encode()
    with pytest.raises(Unreadable, match="`tokens` cannot be read") as caught:
        decode(line, Stored)
    assert why in str(caught.value)
