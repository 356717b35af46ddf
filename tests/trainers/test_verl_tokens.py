"""The policy behind verl's rollouts, tokens in, tokens out; the server is this project's engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playing import play
from toy import ToySuite, toy_task
from verl_job import spec

from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Trajectory
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.engine.scheduler import Order, Scheduler
from trace_bench.policies.loading import load_model
from trace_bench.policies.local import LocalPolicy, backend_of
from trace_bench.trainers.verl.tokens import ServersLost, TokenPolicy, TokenServers


class TokenServer:
    """A server as verl's, in this process: this project's engine behind an asyncio loop."""

    def __init__(self, model: Path, adapter: AdapterRef | None, version: int) -> None:
        loaded, tokenizer = load_model(model)
        self.backend = backend_of(loaded, 4, 512)
        self.engine = Scheduler(self.backend, 4, 512, tokenizer.eos_token_id)
        self.adapter, self.version, self.count = adapter, version, 0
        if adapter is not None:
            self.backend.add(read_adapter(adapter, self.backend.shapes))
        self.tokenizer = tokenizer
        self.broken: Exception | None = None
        self.delay = 0.0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        for task in (tasks := asyncio.all_tasks(self.loop)):
            task.cancel()

        async def ended() -> None:
            await asyncio.gather(*tasks, return_exceptions=True)

        self.loop.run_until_complete(ended())

    async def generate(
        self, request: str, *, prompt_ids: list[int], sampling_params: Mapping[str, Any]
    ) -> Any:
        await asyncio.sleep(self.delay)
        if self.broken is not None:
            raise self.broken
        self.count += 1
        name = self.adapter.name if self.adapter else None
        how = [sampling_params[key] for key in ("seed", "temperature", "max_tokens")]
        self.engine.submit(Order(self.count, prompt_ids, name, *how))
        while not (done := self.engine.step()):
            pass
        self.engine.release(self.count)
        said = {"token_ids": list(done[0].ids), "log_probs": list(done[0].logprobs)}
        more = {"stop_reason": "completed", "extra_fields": {"global_steps": self.version}}
        return SimpleNamespace(**said, **more)

    def policy(self, deadline: float = 60.0, context: int = 512) -> TokenPolicy:
        from trace_bench.policies.chat import Chat

        servers = TokenServers(
            self.generate, self.loop, spec().version, context, deadline, True, {"top_p": 1}
        )
        return TokenPolicy(Chat(self.tokenizer, "m"), servers, 12)


@pytest.fixture
def agent(small_model: Path, small_adapter: Path) -> AgentSpec:
    return AgentSpec(str(small_model), adapters=(AdapterRef("grpo@0002", str(small_adapter)),))


@pytest.fixture
def server(agent: AgentSpec) -> Iterator[TokenServer]:
    started = TokenServer(Path(agent.model), agent.adapters[0], 2)
    yield started
    started.close()


def played(policy: Any, agent: AgentSpec, temperature: float = 1.0) -> list[Trajectory]:
    tasks = [toy_task(i // 3, patience=2) for i in range(12)]
    seeds = [7_000_000_000_000 + i for i in range(12)]
    how: dict[str, Any] = {"temperature": temperature, "max_tokens": 24}
    return play(policy, ToySuite(), agent, tasks, seeds, route=["grpo@0002"] * 12, **how)


@pytest.mark.slow
def test_the_same_episodes_as_the_local_policy(agent: AgentSpec, server: TokenServer) -> None:
    """Token by token, with the adapter, over several turns: nothing is encoded again."""
    ours = played(server.policy(), agent)
    theirs = played(LocalPolicy(Path(agent.model), batch=12, context=512), agent)
    assert any(len(t.turns) > 1 for t in ours)
    for a, b in zip(ours, theirs, strict=True):
        for left, right in zip(a.turns, b.turns, strict=True):
            assert left.prompt_ids == right.prompt_ids and left.token_ids == right.token_ids
            assert left.adapter == right.adapter
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)
        assert a.score == b.score


FAULTS = [
    (1, None, "hold 'grpo@0001' where 'grpo@0002' is to act"),
    (2, RuntimeError("the engine is dead"), "the engine is dead"),
]


@pytest.mark.parametrize(("version", "broken", "why"), FAULTS)
def test_other_weights_or_a_broken_server_are_no_episode(
    agent: AgentSpec, server: TokenServer, version: int, broken: Exception | None, why: str
) -> None:
    server.version, server.broken = version, broken
    with pytest.raises(ServersLost, match=why):
        played(server.policy(), agent)


def test_a_server_without_an_answer_fails_episodes(agent: AgentSpec, server: TokenServer) -> None:
    server.broken = ValueError("too long")
    for each in played(server.policy(), agent):
        assert each.failure is not None and each.failure.boundary == "policy"
        assert "too long" in each.failure.error and each.score is None
    server.broken = None
    server.delay = 30.0
    late = played(server.policy(deadline=0.2), agent)
    assert all(t.failure and "no answer within 0.2 s" in t.failure.error for t in late)


def test_a_users_answer_does_not_wait_for_another_episodes_turn(server: TokenServer) -> None:
    """`wake` ends the wait for a server that has not answered yet."""
    policy = server.policy()
    server.delay = 3600.0
    policy.submit([TurnRequest(0, ({"role": "user", "content": "Add 2."},), adapter="grpo@0002")])
    threading.Timer(0.2, policy.wake).start()
    assert policy.collect() == [] and server.count == 0
    policy.close()


def test_a_full_context_ends_the_episode(agent: AgentSpec, server: TokenServer) -> None:
    episodes = played(server.policy(context=40), agent)
    assert {t.stop for t in episodes} == {"context_limit"}
