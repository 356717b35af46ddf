import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.routing.retrieval import RetrievalRouter, first_message
from trace_bench.policies.routing.router import make_router

EXAMPLES = [
    ["text Anna that I am late", "send@1"],
    ["send a message to Bo about lunch", "send@1"],
    ["message Carl the address", "send@1"],
    ["what is the weather in Rome", "ask@1"],
    ["how is the weather tomorrow in Oslo", "ask@1"],
    ["turn off wifi", None],
    ["turn on cellular", None],
]
ADAPTERS = (AdapterRef("send@1", "/s"), AdapterRef("ask@1", "/a"))


def retrieval(**changes):
    return {"kind": "retrieval", "examples": EXAMPLES, "top_k": 3, "threshold": 0.5, **changes}


def agent(router, adapters=ADAPTERS):
    return AgentSpec("m", adapters=adapters, router=router)


def user(text):
    return [{"role": "system", "content": "weather weather"}, {"role": "user", "content": text}]


def test_retrieval_chooses_by_the_first_user_message():
    router = make_router(agent(retrieval()))
    assert router.route(user("send a message to Dora"), ()) == "send@1"
    assert router.route(user("weather in Bergen, what is it?"), ()) == "ask@1"
    assert router.route(user("turn on wifi"), ()) is None
    assert router.route(user("zzz qqq"), ()) is None


def test_threshold_and_votes():
    text = "send weather message in Rome"
    assert RetrievalRouter(retrieval(threshold=0.0, top_k=7)).choose(text) is not None
    assert RetrievalRouter(retrieval(threshold=1.0, top_k=7)).choose(text) is None
    copies = [["alpha beta", "send@1"], ["alpha gamma", "ask@1"], ["alpha delta", "ask@1"]]
    near = RetrievalRouter(retrieval(examples=copies, top_k=1))
    far = RetrievalRouter(retrieval(examples=copies, top_k=3, threshold=0.2))
    assert near.choose("alpha beta") == "send@1"
    assert far.choose("alpha") == "ask@1"  # two votes of equal weight against one
    close = RetrievalRouter(retrieval(examples=copies, top_k=3, threshold=0.9))
    assert close.choose("alpha gamma") == "ask@1"  # the other two are too far away to vote
    assert close.choose("alpha") is None


def test_the_tools_at_hand_count_with_their_weight():
    names = ["search", "send", "remind"]
    examples = [["tell Bo hello", "send@1", [0, 1]], ["tell Bo hello there", "ask@1", [0]]]
    description = retrieval(examples=examples, tools=names, tools_weight=0.7, top_k=1)
    router = make_router(agent(description))
    tools = [{"function": {"name": name}} for name in names]
    assert router.route(user("tell Bo hello"), tools[:2]) == "send@1"
    assert router.route(user("tell Bo hello"), tools[:1]) == "ask@1"  # the tool to send is missing
    assert router.route(user("tell Bo hello"), [{"function": {"name": "unheard of"}}]) is None
    texts = make_router(agent(retrieval(examples=examples, tools=names, top_k=1)))
    assert texts.route(user("tell Bo hello"), tools[:1]) == "send@1"


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
        ({"kind": "magic"}, r"unknown router 'magic'; allowed: fixed, retrieval"),
        ({"kind": "fixed", "adapter": "x@9"}, r"unknown adapter 'x@9'.*send@1, ask@1"),
        (retrieval(examples=[["a", "x@9"]]), r"unknown adapter 'x@9'"),
        (retrieval(examples=[]), r"0 examples"),
        (retrieval(top_k=0), r"top_k 0"),
        (retrieval(threshold=2), r"threshold 2"),
        (retrieval(tools_weight=-1), r"tools_weight -1"),
    ],
)
def test_bad_descriptions(router, message):
    with pytest.raises(UserError, match=message):
        make_router(agent(router))


def test_first_message_without_a_user():
    assert first_message([{"role": "system", "content": "s"}]) == "s"
    assert first_message([]) == ""
