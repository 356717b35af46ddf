"""Play what is missing, replay the rest."""

from __future__ import annotations

import pytest
from toy import ToySuite, toy_task

from trace_bench.core.types import AgentSpec
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import ReferencePolicy

AGENT = AgentSpec("none")


class Asking(ToySuite):
    def asks_user(self) -> bool:
        return True


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
