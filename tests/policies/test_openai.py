"""policy=openai against a scripted HTTP server: what any server may do, and what it must not."""

from __future__ import annotations

from typing import Any

import pytest
from at_servers import all_of, answering, one, policy
from playing import with_tokens

from trace_bench.core.chat import make_tool
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AgentSpec
from trace_bench.rehearse.scripted import Answer, chat

HELLO = ({"role": "system", "content": "S."}, {"role": "user", "content": "Hello."})
TOOL = make_tool("look", "Looks.")


def call(arguments: str) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_a_conversation_grows_and_calls_get_ids_of_their_own() -> None:
    first = chat({"role": "assistant", "content": None, "tool_calls": [call("{}")]}, "m")
    last = chat(" Done. ", "m", finish="length")
    with answering(first, last) as server, policy(server.url) as acting:
        reply = one(acting, TurnRequest(7, HELLO, (TOOL,), temperature=0.5, max_tokens=33, seed=4))
        assert reply.turn is not None and reply.turn.malformed is None
        assert reply.turn.reply["tool_calls"][0]["id"] == "call_0_0"
        result = {"role": "tool", "tool_call_id": "call_0_0", "name": "look", "content": "a cat"}
        reply = one(acting, TurnRequest(7, (result,), seed=4))
        assert reply.turn is not None and reply.turn.reply["content"] == "Done."
        assert reply.turn.messages == (result,) and reply.turn.token_ids == ()
        assert reply.turn.truncated
    one_, two = server.bodies()
    assert (one_["model"], one_["temperature"], one_["max_tokens"]) == ("m", 0.5, 33)
    assert one_["tools"] == two["tools"] == [TOOL]
    assert [m["role"] for m in two["messages"]] == ["system", "user", "assistant", "tool"]
    assert one_["seed"] != two["seed"]
    assert "return_token_ids" not in one_, "a field that only vLLM knows"
    assert acting.usage()["requests"] == 3 and acting.usage()["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": "", "tool_calls": [call("{broken")]}, "not JSON"),
        ({"content": "", "tool_calls": [call("[1]")]}, "not an object"),
        ({"content": "<tool_call>\n{broken\n</tool_call>"}, "not JSON"),
        ({"content": "<tool_call>{"}, "unclosed"),
    ],
)
def test_a_call_that_cannot_be_read_is_reported_to_the_agent(message: Any, why: str) -> None:
    said = chat({"role": "assistant", **message}, "m")
    with answering(said) as server, policy(server.url) as acting:
        reply = one(acting, TurnRequest(0, HELLO, (TOOL,)))
        assert reply.turn is not None and why in str(reply.turn.malformed)
        assert "tool_calls" not in reply.turn.reply and reply.turn.reply["content"]
        note = {"role": "tool", "tool_call_id": "", "name": "", "content": "ValueError: malformed"}
        one(acting, TurnRequest(0, (note,)))
    # Servers refuse results of calls that nobody made.
    assert server.bodies()[1]["messages"][-1]["role"] == "user"


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"code": "context_length_exceeded", "message": "too long"}},
        {"error": {"message": "This model's maximum context length is 1024 tokens. However, ..."}},
    ],
)
def test_a_full_context_is_no_failure(error: Any) -> None:
    with answering(Answer(error, 400)) as server, policy(server.url) as acting:
        reply = one(acting, TurnRequest(0, HELLO))
    assert reply.turn is None and reply.context_full


def test_an_episode_stays_on_its_server_and_servers_share_the_load() -> None:
    with answering(chat("a", "m")) as left, answering(chat("b", "m")) as right:
        with policy(left.url, right.url) as acting:
            requests = [TurnRequest(i, ({"role": "user", "content": f"<{i}>"},)) for i in range(6)]
            for _ in range(3):
                all_of(acting, requests)
        asked = left.bodies(), right.bodies()
        where = [{str(body["messages"][0]["content"]) for body in bodies} for bodies in asked]
        assert not where[0] & where[1] and len(where[0]) == len(where[1]) == 3
        assert len(asked[0]) == len(asked[1]) == 9


def test_a_released_episode_is_not_answered_any_more() -> None:
    with answering(chat("late", "m")) as server, policy(server.url) as acting:
        acting.submit([TurnRequest(0, HELLO), TurnRequest(1, HELLO)])
        acting.release(0)
        (reply,) = acting.collect()
    assert reply.episode == 1


def test_a_prompt_that_the_server_renders_otherwise_begins_a_stretch() -> None:
    told = [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 9, 3, 4, 5, 6], [7])]
    told.append(([1, 9, 3, 4, 5, 6, 7, 8], [9]))
    answers = [with_tokens(prompt, sampled, [-0.5]) for prompt, sampled in told]
    with answering(*answers, owner="vllm") as server, policy(server.url) as acting:
        turns = [one(acting, TurnRequest(0, HELLO)).turn for _ in range(4)]
    assert [t and (t.kept, t.prompt_ids, t.token_ids, t.logprobs) for t in turns] == [
        (None, (1, 2), (3,), (-0.5,)),
        (None, (4,), (5,), (-0.5,)),
        (1, (9, 3, 4, 5, 6), (7,), (-0.5,)),
        (None, (8,), (9,), (-0.5,)),
    ]
    assert acting.usage()["rewritten"] == 1


def test_a_server_that_is_not_there_is_named() -> None:
    named = pytest.raises(UserError, match=r"127\.0\.0\.1:1/v1 does not answer.*policy\.base_url")
    with policy("http://127.0.0.1:1/v1") as acting, named:
        acting.load(AgentSpec("m"))


def test_probabilities_of_labels() -> None:
    top = [{"token": t, "logprob": p} for t, p in (("A", -0.1), (" A", -3.0), ("Z", -2.5))]
    answer = chat("A", "m", choice={"logprobs": {"content": [{"top_logprobs": top}]}})
    with answering(answer, chat("A", "m")) as server, policy(server.url) as acting:
        assert acting.label_logprobs(HELLO, ["A", "B"]) == {"A": -0.1}
        assert acting.label_logprobs(HELLO, ["A", "B"]) is None, "no probabilities given"
    assert server.bodies()[0]["max_tokens"] == 1
