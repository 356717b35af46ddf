"""Plays a few episodes in one call, with a player of their own; a policy that is a function, and a
server's answer with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trace_bench.core.chat import make_call
from trace_bench.core.protocols import OnEpisode, Policy, Suite, TurnRequest
from trace_bench.core.types import AgentSpec, Message, Score, Task, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import ScriptedPolicy
from trace_bench.rehearse.scripted import Answer, chat


def with_tokens(prompt: Any, sampled: Any, logprobs: Sequence[float]) -> Answer:
    """What a server says that tells which tokens it read and sampled."""
    content = [{"token": "t", "logprob": value} for value in logprobs]
    answer = chat("Hm.", "m", choice={"token_ids": sampled, "logprobs": {"content": content}})
    answer.body["prompt_token_ids"] = prompt
    return answer


def play(
    policy: Policy,
    suite: Suite | Suites,
    agent: AgentSpec,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    *,
    temperature: float = 1.0,
    route: Sequence[str | None] | None = None,
    on_episode: OnEpisode | None = None,
    **limits: Any,
) -> list[Trajectory]:
    """One episode per entry of `tasks`. `limits`: as of a `Player`."""
    suites = suite if isinstance(suite, Suites) else Suites(suite)
    way = None if route is None else tuple(route)
    batch = EpisodeBatch(agent, tuple(tasks), tuple(seeds), temperature, way)
    return Player(policy, suites, **limits).play(batch, on_episode)


def scores(policy: Policy, suite: Suite, tasks: Sequence[Task], **limits: Any) -> list[Score]:
    """Of one episode a task, of which none may fail."""
    played = play(policy, suite, AgentSpec("x"), tasks, range(len(tasks)), **limits)
    found = [t.score for t in played if t.score is not None and t.failure is None]
    assert len(found) == len(tasks), [t.failure for t in played if t.failure]
    return found


def acts(names: str) -> list[Message]:
    """Calls without arguments, one a message."""
    return [make_call(name) for name in names.split()]


class FunctionPolicy(ScriptedPolicy):
    """Answers with the result of a function of the request."""

    def __init__(self, function: Callable[[TurnRequest], Message]) -> None:
        super().__init__()
        self._function = function

    def reply(self, request: TurnRequest) -> Message:
        return self._function(request)
