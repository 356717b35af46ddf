"""Whatever an agent passes, a tool answers with plain JSON or a ToolFault, and a refusal changes
nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from phone_world import NOW, START, wifi_task

from trace_bench.core.types import to_json
from trace_bench.envs.toolsandbox.databases import ToolFault
from trace_bench.envs.toolsandbox.env import Phone, ToolSandboxEnv
from trace_bench.envs.toolsandbox.tools.augment import catalog
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
_LIKELY: dict[str, Any] = {
    "string": st.sampled_from(
        ["anna", "me", "r1", "m1", "+14155550132", "Anna", "mile", "km", "USD", "EUR", "Paris", ""]
    ),
    "boolean": st.booleans(),
    "integer": st.integers(-10, 70),
    "number": st.floats() | st.integers(-180, 180) | st.just(NOW) | st.just(NOW + 3600.5),
}


def _calls(spec: ToolSpec) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    required = {p.name: _LIKELY[p.kind] | _JSON for p in spec.parameters if p.required}
    optional = {p.name: _LIKELY[p.kind] | _JSON for p in spec.parameters if not p.required}
    arguments = st.fixed_dictionaries(required, optional=optional)
    return st.tuples(st.just(spec.name), arguments)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.one_of([_calls(spec) for spec in catalog().values()]), max_size=6))
def test_every_call_is_answered(calls: list[tuple[str, dict[str, Any]]]) -> None:
    world = Phone(START, NOW, 1)
    for name, arguments in calls:
        before = len(world.snapshots)
        try:
            json.dumps(world.call(name, arguments), allow_nan=False)
        except ToolFault as fault:
            assert len(world.snapshots) == before
            assert len(str(fault).split()) <= 9
    json.dumps(world.snapshots, allow_nan=False)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.fixed_dictionaries({"content": _JSON, "tool_calls": _JSON}), max_size=5))
def test_every_reply_is_answered(replies: list[dict[str, Any]]) -> None:
    env = ToolSandboxEnv()
    step = env.reset(wifi_task())
    for reply in replies:
        if step.done:
            break
        step = env.step(reply)
        assert step.done or step.messages
        json.dumps(to_json(step), allow_nan=False)
