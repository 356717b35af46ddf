"""In front of another server: the adapter of each conversation, the prompt, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.agent import Served, routed_agent, serving
from servers.vllm import FakeVLLM, fake_adapter

from trace_bench.core.chat import text_message
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Router
from trace_bench.core.types import AgentSpec, Message, Tool
from trace_bench.llm.client import Endpoint
from trace_bench.policies.served import served_name
from trace_bench.rehearse.scripted import Answer, Server, chat, serve
from trace_bench.serve.forward import Forward
from trace_bench.serve.request import ChatRequest, choose


class Behind(FakeVLLM):
    """It answers with the fault, if there is one."""

    def __init__(self) -> None:
        super().__init__(lambda body: self.fault)
        self.fault: Answer | None = None


@contextmanager
def both(
    tmp_path: Path, deadline: float = 5.0
) -> Iterator[tuple[Served, Server, Behind, dict[str, str]]]:
    """Our server in front of that one, and the adapters' names there."""
    refs = [fake_adapter(tmp_path / "adapters", n, v) for v, n in enumerate(("a", "b"), 1)]
    adapters = {ref.name: Path(ref.path) for ref in refs}
    agent = routed_agent(tmp_path, "m", adapters)
    there = {a.name: served_name(a) for a in agent.adapters}
    script = Behind()
    with serve(script) as behind:
        endpoint = Endpoint((behind.url,), KEY, retries=1, pause=0.01, deadline=deadline)
        with serving(Forward(endpoint, "m", agent, 16, tmp_path)) as served:
            yield served, behind, script, there
    assert script.names == ["m"], "adapters stay behind"


KEY = "k3y-for-the-server-behind"


def ask(served: Served, text: str = "send a message", **fields: Any) -> httpx.Response:
    messages = fields.pop("messages", [{"role": "user", "content": text}])
    body = {"model": "agent", "messages": messages, **fields}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30)


def test_each_conversation_goes_to_its_adapter(tmp_path: Path) -> None:
    with both(tmp_path) as (served, behind, _, there):
        first = len(behind.bodies())
        tools = [{"type": "function", "function": {"name": "f"}}]
        answer = ask(served, seed=3, stop="x", tools=tools).json()
        assert answer["model"] == "agent" and answer["choices"][0]["message"]["content"] == "Hm."
        talk = [{"role": "user", "content": "remind me"}, answer["choices"][0]["message"],
                {"role": "user", "content": "thanks"}]  # fmt: skip
        assert ask(served, messages=talk).status_code == 200
        ask(served, "what temperature")
        asked = behind.bodies()[first:]
        a, b = there["a@0001"], there["b@0001"]
        assert [body["model"] for body in asked] == [a, b, "m"]
        guided = {"role": "system", "content": "Guidance: Be brief."}
        assert all(body["messages"][0] == guided for body in asked)
        assert [asked[0][k] for k in ("seed", "max_tokens", "stop")] == [3, 16, ["x"]]
        assert asked[0]["tools"][0]["function"]["name"] == "f" and "tools" not in asked[2]
        assert any("adapter a@0001, 10 + 2 tokens" in line for line in served.lines)


class Shown(Router):
    """Chooses by the roles of the messages that it is shown."""

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any:
        return " ".join(m["role"] for m in messages)


@pytest.mark.parametrize("opening", ["user", "assistant user", "assistant assistant user",
                                     "system assistant user", "user user"])  # fmt: skip
def test_the_opening_ends_with_the_users_first_message(opening: str) -> None:
    """Whatever follows: a conversation keeps its adapter."""
    for after in ("", " assistant", " assistant user", " assistant tool assistant user"):
        messages = tuple({"role": role, "content": "Hm."} for role in (opening + after).split())
        assert choose(Shown(), ChatRequest(model="agent", messages=messages), "") == opening


TEXTS = ["one\u2028two", "<think>Hm.</think>\none\u2028two", "Hm.</think>one\u2028two"]


@pytest.mark.parametrize("text", TEXTS)
def test_an_answer_is_without_thoughts_also_where_it_is_streamed(tmp_path: Path, text: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": [call]}
    with both(tmp_path) as (served, behind, script, there):
        script.fault = chat(message, finish="tool_calls")
        whole = ask(served).json()["choices"][0]
        assert whole["message"] == text_message("one\u2028two", [call])
        lines = [line for line in ask(served, stream=True).text.split("\n") if line]
        assert lines[-1] == "data: [DONE]"
        said = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        deltas = [e["choices"][0]["delta"] for e in said]
        assert "".join(d.get("content", "") for d in deltas) == "one\u2028two"
        assert [d["tool_calls"] for d in deltas if "tool_calls" in d] == [[{"index": 0, **call}]]
        assert said[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "tool_calls"
        assert {e["model"] for e in said} == {"agent"}
        assert behind.bodies()[-1]["model"] == there["a@0001"]


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": None}]},
        {"choices": ["x"]},
        {"choices": 1},
        {"choices": [{"message": {"content": [1]}}]},
        {"choices": [{"message": {"content": "", "tool_calls": ["f"]}}]},
    ],
    ids=json.dumps,
)
def test_an_answer_of_another_shape_is_an_error(tmp_path: Path, answer: Any) -> None:
    with both(tmp_path) as (served, _, script, _):
        script.fault = Answer(answer)
        for stream in (False, True):
            refused = ask(served, stream=stream)
            assert refused.status_code == 502 and "no usable answer" in refused.text


def test_counts_that_are_none_are_zero(tmp_path: Path) -> None:
    with both(tmp_path) as (served, _, script, _):
        for usage in ({"prompt_tokens": "x"}, [1]):
            script.fault = Answer(chat("Hm.", "m").body | {"usage": usage})
            assert ask(served).json()["usage"]["prompt_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("delay", "trickle"), [(20.0, 0.0), (0.0, 0.5)])
def test_the_deadline_is_that_of_the_whole_answer(
    tmp_path: Path, stream: bool, delay: float, trickle: float
) -> None:
    """One request is made, though this server may be asked twice for other things."""
    with both(tmp_path, deadline=2.0) as (served, behind, script, _):
        script.fault = Answer(chat("Hm.", "m").body, delay=delay, trickle=trickle)
        before = len(behind.bodies())
        assert ask(served, stream=stream).status_code == 502
        assert len(behind.bodies()) == before + 1


def test_the_key_for_the_server_behind_stays_here(tmp_path: Path) -> None:
    with both(tmp_path) as (served, behind, script, _):
        script.fault = Answer({"error": {"message": f"wrong key: {KEY}"}}, 401)
        answer = ask(served)
        assert answer.status_code == 502 and "wrong key: ***" in answer.text
        assert behind.headers[-1]["Authorization"] == f"Bearer {KEY}"
        script.fault = chat(f"The key is {KEY}.", finish=KEY)
        for stream in (False, True):
            answer = ask(served, stream=stream)
            assert answer.status_code == 200 and "***" in answer.text and KEY not in answer.text


def test_what_goes_wrong_there_is_reported_here(tmp_path: Path) -> None:
    too_long = Answer({"error": {"message": "the prompt is too long"}}, 400)
    faults = [
        (too_long, 400, "too long"),
        (Answer({"error": {"message": "no"}}, 401), 502, "HTTP 401"),
        (Answer({"error": "busy"}, 503), 502, "busy"),
        (Answer("{", 200), 502, "no JSON object"),
        (Answer("x" * (16 * 2**20 + 1)), 502, "is longer than 16777216 bytes"),
        (Answer({"choices": []}), 502, "no usable answer"),
        (Answer(reset=True), 502, "the server behind"),
    ]
    with both(tmp_path) as (served, _, script, _):
        for fault, status, words in faults:
            script.fault = fault
            answer = ask(served)
            assert answer.status_code == status and words in answer.json()["error"]["message"]
        script.fault = too_long
        assert "too long" in ask(served, stream=True).json()["error"]["message"]
        script.fault = chat("\ud800")
        assert ask(served).json()["choices"][0]["message"]["content"] == "\ufffd"


def test_a_server_without_the_model_is_refused_at_the_start(tmp_path: Path) -> None:
    with serve(Behind()) as behind, pytest.raises(UserError, match=r"unknown model at .*'other'"):
        Forward(Endpoint((behind.url,), retries=0), "other", AgentSpec("other"), 16, tmp_path)
