"""Whatever arrives, each reader gives a value or its own error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_bench.core.decode import Limits, Unreadable, convert, fault_of, read
from trace_bench.core.errors import UserError
from trace_bench.core.store import Lines, canonical, read_lines
from trace_bench.core.types import Score
from trace_bench.llm.roles import Unusable, read_block, read_json
from trace_bench.policies.formats import FORMATS, read_reply
from trace_bench.policies.talk import read_message
from trace_bench.sandbox.protocol import decode, learn_tools, step_from_json, task_from_json

quick = settings(max_examples=40, deadline=None, derandomize=True)

NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**4000), 2**63])
NAMES = "messages role content tools new_tools done stop score similarity success milestones"
NAMES += " name arguments tool_calls function id env step"
KEYS = st.sampled_from(NAMES.split()) | st.text(max_size=3)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)
LEAVES |= st.sampled_from(["user", "error", "done", "{", "<tool_call>", "\ud800"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
SCORE = st.fixed_dictionaries(
    {"similarity": NUMBERS, "success": st.booleans()}, optional={"milestones": VALUES}
)
STEP = st.fixed_dictionaries(
    {"messages": VALUES | st.lists(st.fixed_dictionaries({"role": st.just("user")}))},
    optional={"done": VALUES, "stop": VALUES, "score": SCORE | VALUES, "new_tools": VALUES},
)
MARKS = ["<tool_call>", "</tool_call>", "```", "```json\n", "\n", "{", "}", "[", "]", '"', "\\"]
MARKS += ['{"name": "f", "arguments": {}}', ": ", ",", "1e999", "NaN", "x", "é", "\ud800", "\x00"]
TEXTS = st.lists(st.sampled_from(MARKS) | VALUES.map(json.dumps), max_size=12).map("".join)
TEXTS |= st.text(max_size=20)
BYTES = TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40)
DEEP = st.integers(1, 20_000).map(lambda n: b'{"a":' * n)


@pytest.mark.slow
@quick
@given(BYTES | DEEP)
def test_a_workers_line(line: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert fault_of(decode(line), Limits(2**24, 80)) is None


@quick
@given(STEP | VALUES)
def test_a_workers_values(value: object) -> None:
    with contextlib.suppress(Unreadable):
        canonical(step_from_json(value, {}))
    for reader in (lambda v: convert(v, Score), lambda v: task_from_json(v, ("own",))):
        with contextlib.suppress(Unreadable):
            reader(value)
    if isinstance(value, dict):
        with contextlib.suppress(Unreadable):
            learn_tools({"step": value}, {})


@quick
@given(TEXTS)
def test_an_agents_text(text: str) -> None:
    for how in FORMATS:
        reply = read_reply(text, 0, how)
        message = reply.message
        assert message["role"] == "assistant" and isinstance(message["content"], str)
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert reply.malformed is None or "tool_calls" not in message


@quick
@given(st.fixed_dictionaries({}, optional={"content": VALUES, "tool_calls": VALUES}))
def test_a_servers_message(data: dict[str, object]) -> None:
    with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
        assert isinstance(read_message(data, 0).message["content"], str)


@quick
@given(TEXTS)
def test_a_models_answer(text: str) -> None:
    with contextlib.suppress(Unusable):
        assert isinstance(read_json(text, {"type": "object"}), dict)
    with contextlib.suppress(Unusable):
        assert read_block(text).endswith("\n")


@quick
@given(BYTES | DEEP)
def test_a_json_text(text: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert fault_of(read(text, Limits(1000, 5, 50)), Limits(1000, 5, 50)) is None


@quick
@given(st.lists(BYTES | DEEP, max_size=4))
def test_the_lines_of_a_file(lines: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        path.write_bytes(b"\n".join(lines))
        with contextlib.suppress(UserError):
            assert all(isinstance(line, dict) for line in read_lines(path))
        with contextlib.suppress(UserError):
            assert all(isinstance(line, dict) for line in Lines(path, dict))
