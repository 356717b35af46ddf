"""Adapters behind scripted servers: loaded, lost, loaded again, and kept apart."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from at_servers import all_of, answering, one, policy
from playing import play
from servers.vllm import FakeVLLM, fake_adapter
from toy import ToyEnv, ToySuite

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AgentSpec, Task
from trace_bench.policies import openai
from trace_bench.rehearse.scripted import Answer, chat, serve

HELLO = ({"role": "user", "content": "Hello."},)


acting = partial(policy, retries=0, capacity=4)


def test_adapters_that_a_server_lost_are_loaded_again(tmp_path: Path) -> None:
    """It was restarted, or another program has taken them out: all episodes go on."""
    fake = FakeVLLM(owner="scripted")
    with serve(fake) as server, acting(server.url) as policy:
        policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        fake.names[:] = ["m"]
        replies = all_of(policy, [TurnRequest(n, HELLO, adapter="a") for n in range(4)])
        assert [reply.error for reply in replies] == [None] * 4 and fake.loads == 2
    assert fake.names == ["m"]


def test_who_answers_under_an_adapters_name_must_be_it(tmp_path: Path) -> None:
    fake = FakeVLLM(lambda b: None if "logprobs" in b else chat("Hm.", "m"), owner="scripted")
    with serve(fake) as server, acting(server.url) as policy:
        policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        reply = one(policy, TurnRequest(0, HELLO, adapter="a"))
        assert reply.turn is None and "'m' answered where 'a+" in str(reply.error)


def test_a_base_model_may_have_a_longer_name_for_itself() -> None:
    fake = FakeVLLM(lambda body: chat("Hm.", "m-2026-01-01"), owner="scripted")
    with serve(fake) as server, acting(server.url) as policy:
        assert one(policy, TurnRequest(0, HELLO)).turn is not None


@pytest.mark.parametrize("noise", [0, 1e-3])
def test_wrong_weights_are_caught(tmp_path: Path, noise: float) -> None:
    """A server's answers differ a little from time to time: no sign of an adapter."""
    fake = FakeVLLM(logprob=lambda name, time: -1.0 - (time % 2) * noise, owner="scripted")
    alike = pytest.raises(UserError, match="just as the base model does")
    with serve(fake) as server, acting(server.url) as policy, alike:
        policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))


def test_what_only_some_servers_took_is_taken_out_again(tmp_path: Path) -> None:
    fake, refusing = FakeVLLM(owner="scripted"), answering(Answer({"error": "no LoRA"}, 400))
    with serve(fake) as left, refusing as right, acting(left.url, right.url) as policy:
        with pytest.raises(UserError, match="did not load the adapter a"):
            policy.load(AgentSpec("m", adapters=(fake_adapter(tmp_path, "a", 1.0),)))
        assert len(fake.names) == 2
    assert fake.names == ["m"]


def test_a_server_that_comes_back_gets_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    down = True

    moody = answering(lambda body: Answer(reset=down) if down else chat("x"))
    calm = serve(FakeVLLM(owner="scripted"))
    with moody as left, calm as right, acting(left.url, right.url) as policy:
        assert one(policy, TurnRequest(0, HELLO)).turn is None
        down = False
        for n in range(1, 4):
            assert one(policy, TurnRequest(n, HELLO)).turn is not None
        assert len(left.bodies()) == 1, "nothing is sent to it for a while"
        policy.release(0)
        monkeypatch.setattr(openai, "PROBATION", 0.0)
        assert one(policy, TurnRequest(4, HELLO)).turn is not None
        assert len(left.bodies()) == 2


def test_once_the_context_is_nearly_full_the_server_decides_how_long_a_turn_is() -> None:
    """vLLM refuses a prompt that leaves less than `max_tokens`, also at the turns after that."""
    full = Answer({"error": {"message": "This model's maximum context length is 100 tokens."}}, 400)
    vllm = answering(lambda body: full if "max_tokens" in body else chat("x", "m"), owner="vllm")
    with vllm as server, acting(server.url) as policy:
        for _ in range(3):
            assert one(policy, TurnRequest(0, HELLO, max_tokens=50)).turn is not None
        assert ["max_tokens" in body for body in server.bodies()] == [True, False, False, False]


def test_nobody_waits_for_the_turn_of_another_episode() -> None:
    """An episode whose environment has answered goes on while another one's turn is still due."""
    came = threading.Event()
    told = []

    def answer(body: dict[str, Any]) -> Answer:
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
    with answering(answer) as server, acting(server.url) as policy:
        play(policy, suite, AgentSpec("m"), tasks, [0, 0])
    assert told == [True]
