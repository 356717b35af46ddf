"""Play what is missing, replay the rest; and an agent's choices without its episodes."""

from __future__ import annotations

import re

import pytest
from toy import ToySuite, toy_task

from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import IdlePolicy, ReferencePolicy
from trace_bench.runner.evaluate import choices

AGENT = AgentSpec("none")


class Asking(ToySuite):
    def asks_user(self) -> bool:
        return True


class Together(ToySuite):
    """Resets and steps many episodes at once, as a sandbox does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def act(self, calls):
        self.calls.append(len(calls))
        out = []
        for env, what in calls:
            try:
                out.append(env.reset(what) if hasattr(what, "data") else env.step(what))
            except Exception as error:
                out.append(error)
        return out


class Closing(ToySuite):
    closed = 0

    def close(self) -> None:
        self.closed += 1


class Server(ReferencePolicy):
    repeatable = False


def batch(count: int = 6, agent: AgentSpec = AGENT) -> EpisodeBatch:
    tasks = tuple(toy_task(i) for i in range(count))
    return EpisodeBatch(agent, tasks, tuple(range(count)))


@pytest.mark.parametrize(
    ("policy", "suite", "played"),
    [(ReferencePolicy, ToySuite, 6), (Server, ToySuite, 4), (ReferencePolicy, Asking, 4)],
    ids=["repeats", "server", "asks a user"],
)
def test_only_what_is_missing_is_reported(policy, suite, played) -> None:
    world, reported = suite(), {}
    player = Player(policy(ToySuite()), Suites(world))
    player.complete(batch(), {1, 4}, lambda i, t: reported.update({i: t}))
    assert sorted(reported) == [0, 2, 3, 5] and len(world.made) == played
    assert all(t.task == toy_task(i).id and t.seed == i for i, t in reported.items())
    player.complete(batch(), range(6), lambda i, t: pytest.fail("nothing was missing"))
    assert len(world.made) == played  # nothing was missing


ADAPTERS = (AdapterRef("a@1", "a"), AdapterRef("b@1", "b"))
ROUTED = AgentSpec(
    "none",
    prompt="Be brief.",
    adapters=ADAPTERS,
    router={"kind": "classifier", "labels": ["b@1", None], "weights": [[1.0], [0.0]],
            "bias": [0.0, 0.5]},
)  # fmt: skip


class Reading(IdlePolicy):
    """Its state of a prompt says whether the first number to add is even."""

    def prompt_states(self, prompts):
        numbers = [re.search(r"\d+", str(messages[-1]["content"])) for messages, _ in prompts]
        return [[float(number is not None and int(number[0]) % 2 == 0)] for number in numbers]


@pytest.mark.parametrize("suite", [ToySuite, Together])
def test_choices_are_those_of_the_episodes(suite) -> None:
    world, policy = suite(), Reading()
    policy.capacity = 4
    player = Player(policy, Suites(world))
    tasks = [toy_task(0), toy_task(1, "reset"), *(toy_task(i) for i in range(2, 7))]
    found = choices(player, ROUTED, tasks)
    assert found is not None and all(env.closed for env in world.made)
    asked = EpisodeBatch(ROUTED, tuple(tasks), tuple(range(7)))
    played = [t.adapter for t in player.play(asked)]
    assert isinstance(found[1], RuntimeError) and {"b@1"} <= set(played)
    assert [c for i, c in enumerate(found) if i != 1] == [*played[:1], *played[2:]]
    if isinstance(world, Together):
        assert world.calls[:2] == [4, 3]


def test_suites_close_what_was_added_to_them() -> None:
    target, one, two = Closing(), Closing(), Closing()
    suites = Suites(target, {"one": one})
    suites.add("two", two)
    plain = toy_task(0)
    other = type(plain)(plain.id, "two", plain.split, plain.seed, plain.data)
    assert suites.of(plain) is target and suites.of(other) is two
    assert list(suites) == [target, one, two]
    suites.drop("two")
    suites.drop("two")
    assert suites.of(other) is target
    suites.close()
    assert (target.closed, one.closed, two.closed) == (0, 1, 1)
