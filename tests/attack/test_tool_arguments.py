"""Tools as typed functions: whatever an agent calls them with, it reads an error that names what
was given and what is allowed, and the function never sees it."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trace_bench as tb

SEEN: list[dict[str, Any]] = []
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@tb.tool
def pay(
    to: str,
    amount: float,
    times: int = 1,
    how: Literal["cash", "card"] = "cash",
    tags: list[str] | None = None,
    *,
    now: bool = False,
) -> str:
    """Pay somebody.

    to: A name.
    """
    SEEN.append({"to": to, "amount": amount, "times": times, "how": how, "tags": tags, "now": now})
    return "paid"


class Till:
    @tb.tool
    def open(self, drawer: int) -> None:
        """Open a drawer."""
        raise {
            1: ValueError("No\x1b[2J drawer"),
            2: PermissionError("Locked"),
            3: ConnectionError("Wifi is off"),
            4: KeyError("a fault of the tool"),
        }[drawer]

    @tb.tool
    def count(self) -> dict[str, int]:
        return {"coins": 3}


BOX = tb.Toolbox(pay, Till())


def told(name: Any, arguments: Any) -> str:
    function = {"name": name, "arguments": arguments}
    (answer,) = BOX.answer([{"id": "c", "type": "function", "function": function}])
    assert answer["role"] == "tool" and answer["tool_call_id"] == "c"
    content: str = answer["content"]
    return content


def test_annotations_and_the_docstring_are_the_schema() -> None:
    schema = BOX.schemas[0]["function"]
    assert (schema["name"], schema["description"]) == ("pay", "Pay somebody.")
    assert schema["parameters"]["required"] == ["to", "amount"]
    assert schema["parameters"]["properties"] == {
        "to": {"type": "string", "description": "A name."},
        "amount": {"type": "number"},
        "times": {"type": "integer"},
        "how": {"type": "string", "enum": ["cash", "card"]},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "now": {"type": "boolean"},
    }
    assert [s["function"]["name"] for s in BOX.schemas] == ["pay", "open", "count"]
    assert BOX.schemas[2] == tb.make_tool("count", "")
    given = {"to": "Ann", "amount": 2, "how": "card", "tags": ["a"], "now": True}
    assert told("pay", json.dumps(given)) == "paid" == pay("Ann", 2)
    assert SEEN[-2:] == [
        {**given, "times": 1},
        {"to": "Ann", "amount": 2, "times": 1, "how": "cash", "tags": None, "now": False},
    ]
    assert told("count", "{}") == '{"coins": 3}'


BAD_CALLS = [
    ("play", "{}", ["'play'", "allowed: pay, open, count"]),
    (7, "{}", ["names no function"]),
    ("pay", "[1]", ["not a JSON object"]),
    ("pay", "{", ["not valid JSON"]),
    ("pay", "[" * 200_000, ["not valid JSON"]),
    ("pay", {"to": "Ann"}, ["argument amount is missing", "allowed: to, amount, times"]),
    ("pay", {"to": "Ann", "amount": 1, "self": 1}, ["unknown argument 'self'"]),
    ("count", {"x" * 90_000: 1}, ["unknown argument 'xxx", "allowed: none"]),
    ("pay", {"to": 5, "amount": 1}, ["to=5", '{"type": "string"}']),
    ("pay", {"to": "Ann", "amount": "1"}, ["amount='1'", '{"type": "number"}']),
    ("pay", {"to": "Ann", "amount": True}, ["amount=True"]),
    ("pay", '{"to": "Ann", "amount": 1e999}', ["amount=inf"]),
    ("pay", '{"to": "Ann", "amount": ' + "9" * 5000 + "}", ["not valid JSON"]),
    ("pay", {"to": "Ann", "amount": 1, "times": 1.0}, ["times=1.0", '{"type": "integer"}']),
    ("pay", {"to": "Ann", "amount": 1, "how": "gold"}, ["how='gold'", '"cash", "card"']),
    ("pay", {"to": "Ann", "amount": 1, "tags": ["a", 1]}, ["tags=['a', 1]"]),
    ("pay", {"to": "Ann", "amount": 1, "now": 1}, ["now=1", '{"type": "boolean"}']),
    ("pay", {"to": "Ann", "amount": [[[["x" * 9_000]]]] * 900}, ["amount=[[[["]),
]


@pytest.mark.parametrize(("name", "arguments", "named"), BAD_CALLS)
def test_a_bad_call_is_told_what_is_allowed(name: Any, arguments: Any, named: list[str]) -> None:
    before = len(SEEN)
    answer = told(name, arguments if isinstance(arguments, str) else json.dumps(arguments))
    assert answer.startswith("ValueError: ") and len(answer) < 300
    assert all(what in answer for what in named), answer
    assert len(SEEN) == before


@given(ANYTHING, ANYTHING)
def test_no_arguments_end_in_an_exception(name: Any, arguments: Any) -> None:
    for one in (name, "pay", "count"):
        for given_arguments in (arguments, {"to": arguments, "amount": arguments}):
            json.dumps(told(one, given_arguments)).encode()


def test_what_a_tool_says_is_read_and_its_faults_are_not_the_agents() -> None:
    assert told("open", '{"drawer": 1}') == "ValueError: No\ufffd[2J drawer"
    assert told("open", '{"drawer": 2}') == "PermissionError: Locked"
    assert told("open", '{"drawer": 3}') == "ConnectionError: Wifi is off"
    with pytest.raises(KeyError, match="a fault of the tool"):
        told("open", '{"drawer": 4}')


def test_a_subclass_may_replace_a_tool_and_two_of_one_name_are_refused() -> None:
    class Safe(Till):
        @tb.tool
        def open(self) -> str:
            return "opened"

    assert [s["function"]["name"] for s in tb.Toolbox(Safe()).schemas] == ["open", "count"]
    with pytest.raises(TypeError, match="two tools are called open"):
        tb.Toolbox(Safe(), Till())


@pytest.mark.parametrize("hint", ["dict", "list", "object", "Nowhere", "Literal[1, 'a']", "bytes"])
def test_an_annotation_without_a_schema_is_refused_at_once(hint: str) -> None:
    text = f"from typing import Literal\ndef f(a: int, b: {hint!r}): pass"
    names: dict[str, Any] = {}
    exec(text, names)
    with pytest.raises(TypeError, match=r"the tool f: `b` is .*; allowed: str, int, float, bool"):
        tb.tool(names["f"])
    for other in (lambda *a: None, lambda a, /: None):
        with pytest.raises(TypeError, match="a parameter without a name"):
            tb.tool(other)
    with pytest.raises(TypeError, match="is no function"):
        tb.tool(Till)  # type: ignore[arg-type]
