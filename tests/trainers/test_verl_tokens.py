"""The policy behind verl's rollouts, tokens in, tokens out; the server is this project's engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from models import save_adapter, save_model
from playing import play
from toy import ToyEnv, ToySuite, toy_task
from verl_job import spec

from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Step, Task, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
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
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def generate(
        self, request: str, *, prompt_ids: list[int], sampling_params: Mapping[str, Any]
    ) -> Any:
        await asyncio.sleep(self.delay)
        if self.broken is not None:
            raise self.broken
        self.count += 1
        name = self.adapter.name if self.adapter else None
        self.engine.submit(
            Order(
                self.count,
                prompt_ids,
                name,
                sampling_params["seed"],
                sampling_params["temperature"],
                sampling_params["max_tokens"],
            )
        )
        while not (done := self.engine.step()):
            pass
        self.engine.release(self.count)
        return SimpleNamespace(
            token_ids=list(done[0].ids),
            log_probs=list(done[0].logprobs),
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    def policy(self, deadline: float = 60.0, context: int = 512) -> TokenPolicy:
        from trace_bench.policies.chat import Chat

        servers = TokenServers(
            self.generate, self.loop, spec().version, context, deadline, True, {"top_p": 1}
        )
        return TokenPolicy(Chat(self.tokenizer, "m"), servers, 12)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AgentSpec]:
    folder = tmp_path_factory.mktemp("tokens")
    model = save_model(folder / "model")
    path = save_adapter(model, folder / "grpo@0002")
    return model, AgentSpec(str(model), adapters=(AdapterRef("grpo@0002", str(path)),))


@pytest.fixture
def server(world: tuple[Path, AgentSpec]) -> Iterator[TokenServer]:
    model, agent = world
    started = TokenServer(model, agent.adapters[0], 2)
    yield started
    started.loop.call_soon_threadsafe(started.loop.stop)


def played(policy: Any, agent: AgentSpec, temperature: float = 1.0) -> list[Trajectory]:
    tasks = [toy_task(i // 3, patience=2) for i in range(12)]
    return play(
        policy,
        ToySuite(),
        agent,
        tasks,
        [7_000_000_000_000 + i for i in range(12)],
        temperature=temperature,
        route=["grpo@0002"] * 12,
        max_tokens=24,
    )


def test_the_same_episodes_as_the_local_policy(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    """Token by token, with the adapter, over several turns: nothing is encoded again."""
    model, agent = world
    ours = played(server.policy(), agent)
    theirs = played(LocalPolicy(model, batch=12, context=512), agent)
    assert any(len(t.turns) > 1 for t in ours)
    for a, b in zip(ours, theirs, strict=True):
        assert [t.prompt_ids for t in a.turns] == [t.prompt_ids for t in b.turns]
        assert [t.token_ids for t in a.turns] == [t.token_ids for t in b.turns]
        assert [t.adapter for t in a.turns] == [t.adapter for t in b.turns]
        assert a.score == b.score
        for left, right in zip(a.turns, b.turns, strict=True):
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_another_version_of_the_weights_is_no_episode(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    server.version = 1
    with pytest.raises(ServersLost, match="hold 'grpo@0001' where 'grpo@0002' is to act"):
        played(server.policy(), world[1])


def test_a_server_that_refuses_fails_the_episodes(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    server.broken = ValueError("too long")
    episodes = played(server.policy(), world[1])
    assert {str(t.failure) for t in episodes} == {str(episodes[0].failure)}
    assert episodes[0].failure is not None and "too long" in episodes[0].failure.error
    assert episodes[0].failure.boundary == "policy" and episodes[0].score is None


def test_a_server_that_breaks_down_is_no_episode(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    server.broken = RuntimeError("the engine is dead")
    with pytest.raises(ServersLost, match="the engine is dead"):
        played(server.policy(), world[1])


def test_a_server_that_never_answers(world: tuple[Path, AgentSpec], server: TokenServer) -> None:
    server.delay = 30.0
    episodes = played(server.policy(deadline=0.2), world[1])
    assert all(t.failure and "no answer within 0.2 s" in t.failure.error for t in episodes)


def test_a_users_answer_does_not_wait_for_another_episodes_turn(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    """`wake` ends the wait for a server that has not answered yet."""
    policy = server.policy()
    server.delay = 3600.0
    policy.submit([TurnRequest(0, ({"role": "user", "content": "Add 2."},), adapter="grpo@0002")])
    threading.Timer(0.2, policy.wake).start()
    assert policy.collect() == [] and server.count == 0
    policy.close()


class SlowUser(ToySuite):
    """Its user says nothing to the first task before an episode of another has ended."""

    def __init__(self, policy: TokenPolicy) -> None:
        super().__init__()
        self.policy, self.waits, self.ended = policy, threading.Event(), threading.Event()

    def asks_user(self) -> bool:
        return True

    def make(self) -> ToyEnv:
        env = super().make()
        usual = env.reset

        def reset(task: Task) -> Step:
            if task == toy_task(0):
                self.waits.set()
                self.policy.wake()
                assert self.ended.wait(60)
            return usual(task)

        env.reset = reset  # type: ignore[method-assign]
        return env


def test_an_episode_that_is_asked_for_later_does_not_wait_for_those_that_run(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    policy = server.policy()
    suite = SlowUser(policy)
    first, late = (
        EpisodeBatch(world[1], (toy_task(n),), (n,), route=("grpo@0002",)) for n in range(2)
    )
    waiting = [late]

    def more() -> EpisodeBatch | None:
        return waiting.pop() if waiting and suite.waits.is_set() else None

    order = []

    def ended(place: int, trajectory: Trajectory) -> None:
        order.append(place)
        suite.ended.set()

    episodes = Player(policy, Suites(suite), max_tokens=24).play(first, ended, more)
    assert order == [1, 0] and [t.task for t in episodes] == [toy_task(n).id for n in range(2)]
    assert [t.seed for t in episodes] == [0, 1] and not any(t.failure for t in episodes)


def test_a_full_context_ends_the_episode(
    world: tuple[Path, AgentSpec], server: TokenServer
) -> None:
    episodes = played(server.policy(context=40), world[1])
    assert {t.stop for t in episodes} == {"context_limit"}
