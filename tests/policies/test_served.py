"""Adapters behind scripted servers: loaded, lost, loaded again, and kept apart."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from playing import play
from servers.vllm import FakeVLLM, fake_adapter
from toy import ToyEnv, ToySuite

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.types import AgentSpec, Task
from trace_bench.llm.client import Endpoint
from trace_bench.policies import openai
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.rehearse.scripted import Answer, chat, models, serve

HELLO = ({"role": "user", "content": "Hello."},)


def acting(*urls: str, **more: Any) -> OpenAIPolicy:
    endpoint = Endpoint(urls, retries=0, pause=0.01, deadline=5.0, **more)
    return OpenAIPolicy(endpoint, "m", capacity=4, extra=None)


def one(policy: OpenAIPolicy, request: TurnRequest) -> TurnReply:
    policy.submit([request])
    (reply,) = policy.collect()
    return reply


def test_adapters_that_a_server_lost_are_loaded_again(tmp_path: Path) -> None:
    """It was restarted, or another program has taken them out: all episodes go on."""
    fake = FakeVLLM(owner="scripted")
    with serve(fake) as server:
        policy = acting(server.url)
        policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        fake.names[:] = ["m"]
        policy.submit([TurnRequest(n, HELLO, adapter="a") for n in range(4)])
        replies: list[TurnReply] = []
        while len(replies) < 4:
            replies += policy.collect()
        assert [reply.error for reply in replies] == [None] * 4 and fake.loads == 2
        policy.close()
    assert fake.names == ["m"]


def test_who_answers_under_an_adapters_name_must_be_it(tmp_path: Path) -> None:
    fake = FakeVLLM(lambda b: None if "logprobs" in b else chat("Hm.", "m"), owner="scripted")
    with serve(fake) as server:
        policy = acting(server.url)
        policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        reply = one(policy, TurnRequest(0, HELLO, adapter="a"))
        assert reply.turn is None and "'m' answered where 'a+" in str(reply.error)
        policy.close()


def test_a_base_model_may_have_a_longer_name_for_itself() -> None:
    fake = FakeVLLM(lambda body: chat("Hm.", "m-2026-01-01"), owner="scripted")
    with serve(fake) as server:
        policy = acting(server.url)
        assert one(policy, TurnRequest(0, HELLO)).turn is not None
        policy.close()


@pytest.mark.parametrize("noise", [0, 1e-3])
def test_wrong_weights_are_caught(tmp_path: Path, noise: float) -> None:
    """A server's answers differ a little from time to time: no sign of an adapter."""
    fake = FakeVLLM(logprob=lambda name, time: -1.0 - (time % 2) * noise, owner="scripted")
    with serve(fake) as server:
        policy = acting(server.url)
        with pytest.raises(UserError, match="just as the base model does"):
            policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        policy.close()


def test_what_only_some_servers_took_is_taken_out_again(tmp_path: Path) -> None:
    def refusing(path: str, body: dict[str, Any]) -> Answer:
        return models("m") if path == "/v1/models" else Answer({"error": "no LoRA"}, 400)

    fake = FakeVLLM(owner="scripted")
    with serve(fake) as left, serve(refusing) as right:
        policy = acting(left.url, right.url)
        with pytest.raises(UserError, match="did not load the adapter a"):
            policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        assert len(fake.names) == 2
        policy.close()
    assert fake.names == ["m"]


def test_a_server_that_comes_back_gets_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    down = True

    def moody(path: str, body: dict[str, Any]) -> Answer:
        return models("m") if path == "/v1/models" else Answer(reset=down) if down else chat("x")

    with serve(moody) as left, serve(FakeVLLM(owner="scripted")) as right:
        policy = acting(left.url, right.url)
        assert one(policy, TurnRequest(0, HELLO)).turn is None
        down = False
        for n in range(1, 4):
            assert one(policy, TurnRequest(n, HELLO)).turn is not None
        assert len(left.bodies()) == 1, "nothing is sent to it for a while"
        policy.release(0)
        monkeypatch.setattr(openai, "PROBATION", 0.0)
        assert one(policy, TurnRequest(4, HELLO)).turn is not None
        assert len(left.bodies()) == 2
        policy.close()


def test_once_the_context_is_nearly_full_the_server_decides_how_long_a_turn_is() -> None:
    """vLLM refuses a prompt that leaves less than `max_tokens`, also at the turns after that."""
    full = {"error": {"message": "This model's maximum context length is 100 tokens."}}

    def script(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return models("m", owner="vllm")
        return Answer(full, 400) if "max_tokens" in body else chat("x", "m")

    with serve(script) as server:
        policy = acting(server.url)
        for _ in range(3):
            assert one(policy, TurnRequest(0, HELLO, max_tokens=50)).turn is not None
        assert ["max_tokens" in body for body in server.bodies()] == [True, False, False, False]
        policy.close()


def test_nobody_waits_for_the_turn_of_another_episode() -> None:
    """An episode whose environment has answered goes on while another one's turn is still due."""
    came = threading.Event()
    told = []

    def script(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return models("m")
        slow = any("Add 1, 2" in str(m["content"]) for m in body["messages"])
        if slow:
            told.append(came.wait(3))  # less than the deadline
        elif len(body["messages"]) > 2:
            came.set()
        return chat("Hm.", "m")

    class Slow(ToyEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.2)  # as long as a simulated user takes
            return super().step(action)

    class Asking(ToySuite):
        asks = True

        def make(self) -> ToyEnv:
            return Slow()

    suite = Asking()
    late, other = {"add": [1, 2]}, {"add": [3], "patience": 2}
    tasks = [Task("toy/1", "toy", "train", 0, late), Task("toy/2", "toy", "train", 0, other)]
    with serve(script) as server:
        policy = acting(server.url)
        play(policy, suite, AgentSpec("m"), tasks, [0, 0])
        policy.close()
    assert told == [True]
