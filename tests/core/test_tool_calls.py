"""Helpers for environments of one's own: tools and calls, written and read."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import trace_bench
from trace_bench import answer_call, make_call, make_tool, read_call

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_a_tool_is_a_valid_schema() -> None:
    tool = make_tool("pay", "Pay somebody.", to="string", amount="number?", how={"enum": ["cash"]})
    parameters = tool["function"]["parameters"]
    assert tool["type"] == "function" and tool["function"]["name"] == "pay"
    assert parameters["required"] == ["to", "how"]
    assert parameters["properties"]["amount"] == {"type": "number"}
    assert parameters["properties"]["how"] == {"enum": ["cash"]}
    assert make_tool("name", "Its arguments may have any name.", name="string", self="string")


@given(st.text(min_size=1), st.dictionaries(st.text(min_size=1), st.integers() | st.text()))
def test_what_is_written_is_read(name: str, arguments: dict[str, Any]) -> None:
    (call,) = make_call(name, **arguments)["tool_calls"]
    assert read_call(call) == (name, arguments)
    answer = answer_call(call, "done")
    assert answer == {"role": "tool", "tool_call_id": "call_0", "name": name, "content": "done"}


@given(ANYTHING, ANYTHING, ANYTHING)
def test_no_call_ends_in_anything_but_a_value_error(call: Any, name: Any, text: Any) -> None:
    wrapped = {"id": text, "function": {"name": name, "arguments": text}}
    for given_call in (call, {"function": call}, wrapped):
        try:
            read, arguments = read_call(given_call)
            assert isinstance(read, str) and isinstance(arguments, dict)
        except ValueError as error:
            assert "\n" not in str(error)
        answer = answer_call(given_call, "x")
        assert isinstance(answer["tool_call_id"], str) and isinstance(answer["name"], str)


def test_all_that_is_offered_can_be_had() -> None:
    for name in dir(trace_bench):
        assert getattr(trace_bench, name) is not None or name.startswith("__")
    assert {"Env", "Score", "make_tool", "run", "compare"} <= set(dir(trace_bench))
    json.dumps(make_tool("a", "b"))
