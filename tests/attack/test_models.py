"""Degenerate texts of a model: read in time that grows with their length."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from trace_bench.envs import invented
from trace_bench.envs.tau2.user import calls_in
from trace_bench.llm.roles import Unusable, read_block, read_json
from trace_bench.methods.trace.checks import Leaks
from trace_bench.policies.formats import FORMATS, read_reply

CALL = "<tool_call>"


def chat(text: str) -> None:
    for how in FORMATS:
        read_reply(text, 0, how)


def answer(text: str) -> None:
    with contextlib.suppress(Unusable):
        read_json(text, {"type": "object"})


def block(text: str) -> None:
    with contextlib.suppress(Unusable):
        read_block(text)


def leaks(text: str) -> None:
    Leaks.of([[text]], [])


def user(text: str) -> None:
    invented(text, [])


TEXTS: dict[str, tuple[Callable[[str], Any], Callable[[int], str], int]] = {
    # name: (reader, text of a size, size)
    "calls that never close": (chat, lambda n: CALL * n, 10_000),
    "calls that close at once": (chat, lambda n: "</tool_call>" * n + CALL * n, 5_000),
    "a call of braces": (chat, lambda n: CALL + "{" * n + "</tool_call>", 50_000),
    "thoughts that never close": (chat, lambda n: "<think>" * n, 20_000),
    "thoughts that close at once": (chat, lambda n: "<think></think>" * n, 20_000),
    "thoughts between calls": (chat, lambda n: "</think><think><tool_call>" * n, 10_000),
    "a call's parameters": (
        chat,
        lambda n: f"{CALL}<function=a>" + "<parameter=b>\n" * n + "</tool_call>",
        10_000,
    ),
    "a user's calls that never close": (calls_in, lambda n: (CALL + "{}") * n, 10_000),
    "a user's call of braces": (calls_in, lambda n: CALL + "{" + "} " * n, 30_000),
    "a fence and empty lines": (answer, lambda n: "```json" + "\n" * n, 16_000),
    "fences that never close": (block, lambda n: "```a\n" + "``\n" * n, 16_000),
    "backquotes": (block, lambda n: "`" * n, 50_000),
    "a fence in one word": (answer, lambda n: "```" + "a" * n, 50_000),
    "fences without lines": (answer, lambda n: "``` " * n, 10_000),
    "one long word": (user, lambda n: "a.b-" * n, 5_000),
    "an address without end": (user, lambda n: "a@" * n, 10_000),
    "one long word in a program": (leaks, lambda n: "ab+" * n, 5_000),
    "many addresses in one word": (leaks, lambda n: "a@" * n, 400),
}


def seconds(reader: Callable[[str], Any], text: str) -> float:
    """The processor's, the best of three."""
    took = []
    for _ in range(3):
        began = time.thread_time()
        reader(text)
        took.append(time.thread_time() - began)
    return min(took)


@pytest.mark.parametrize("name", TEXTS)
def test_time_grows_with_the_length(name: str) -> None:
    """A text that is eight times as long may take eight times as long, not 64 times."""
    reader, text, size = TEXTS[name]
    short, long = (seconds(reader, text(n)) for n in (size // 8, size))
    assert long < 0.05 or long < 24 * short, f"{short:.4f} s, then {long:.4f} s"
