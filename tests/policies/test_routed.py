"""Routers as they are described: which adapter acts, and what is refused."""

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.routing.router import make_router
from trace_bench.policies.routing.zero_shot import first_message

ADAPTERS = (AdapterRef("send@1", "/s"), AdapterRef("ask@1", "/a"))


def agent(router, adapters=ADAPTERS):
    return AgentSpec("m", adapters=adapters, router=router)


def user(text):
    return [{"role": "system", "content": "weather weather"}, {"role": "user", "content": text}]


def test_without_a_router_the_only_adapter_plays():
    assert make_router(agent(None, ())).route(user("x"), ()) is None
    assert make_router(agent(None, ADAPTERS[:1])).route(user("x"), ()) == "send@1"
    with pytest.raises(UserError, match=r"2 adapters \(send@1, ask@1\) and no router"):
        make_router(agent(None))


def test_fixed():
    assert make_router(agent({"kind": "fixed", "adapter": "ask@1"})).route([], ()) == "ask@1"
    assert make_router(agent({"kind": "fixed", "adapter": None})).route([], ()) is None


@pytest.mark.parametrize(
    ("router", "message"),
    [
        ({"kind": "magic"}, r"unknown router 'magic'; allowed: fixed, zero_shot"),
        ({"kind": "fixed", "adapter": "x@9"}, r"unknown adapter 'x@9'.*send@1, ask@1"),
    ],
)
def test_bad_descriptions(router, message):
    with pytest.raises(UserError, match=message):
        make_router(agent(router))


def test_first_message_without_a_user():
    assert first_message([{"role": "system", "content": "s"}]) == "s"
    assert first_message([]) == ""
