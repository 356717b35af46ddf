"""env=ors against a server of the real ORS SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from standard_servers import server

from trace_bench.core.chat import make_call, text_message
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import performed
from trace_bench.core.types import StopReason
from trace_bench.envs.check import check

Make = Callable[..., Any]
pytestmark = pytest.mark.standards
SAME = "the same task and actions give the same bytes"
DONE = text_message("I am done.")
TIME = {"deadline": 60.0}


def buy(thing: str) -> Any:
    return make_call("buy", thing=thing)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("ors", "ors_shop.py") as port:
        yield f"http://127.0.0.1:{port}"


def test_an_episode_has_the_task_the_tools_and_the_reward(make: Make, url: str) -> None:
    suite = make("ors", url=url, measured=0, steps=3, **TIME)
    assert {s: len(suite.tasks(s)) for s in suite.splits()} == {"train": 3, "test": 2, "odd": 3}
    task = suite.tasks("train")[1]
    assert task.id == "ors/shop/train/0001"
    start, wrong, right = performed(suite, task, [buy("hat"), buy("cup")])
    assert start.messages[0]["content"] == "Buy a cup."
    assert [tool["function"]["name"] for tool in start.tools] == ["buy", "prices"]
    assert wrong.messages[0]["content"] == "You have a hat." and not wrong.done
    assert right.done and right.stop is StopReason.DONE
    assert right.score is not None and right.score.success
    [_, bad, idle] = performed(suite, task, [make_call("buy", thing=3), DONE])
    assert bad.messages[0]["content"].startswith("Error: Tool input validation error")
    assert idle.score is not None and idle.score.similarity == 0
    last = performed(suite, task, [make_call("prices")] * 4)[-1]
    assert last.stop is StopReason.TURN_LIMIT and last.score is not None


def test_what_an_episode_earned_is_the_last_reward_or_the_sum(make: Make, url: str) -> None:
    for reward, earned in (("last", 1.0), ("sum", 0.5)):
        suite = make("ors", url=url, measured=0, reward=reward, **TIME)
        last = performed(suite, suite.tasks("test")[0], [buy("a"), buy("b"), buy("key")])[-1]
        assert last.score is not None
        assert last.score.similarity == earned and last.score.success == (earned == 1.0)
        assert suite.about()["reward"] == reward


def test_the_contract_holds_and_what_was_measured_is_a_fact(make: Make, url: str) -> None:
    suite = make("ors", url=url, **TIME)
    report = check(suite, suite.tasks("test")[:1])
    assert report.ok, str(report)
    assert suite.about()[SAME] == "yes" and suite.about()["data"].startswith("shop, tasks ")
    assert not check(suite, suite.tasks("odd")[2:]).ok  # it answers by chance


@pytest.mark.parametrize(
    ("number", "says"),
    [(0, "task 0 of odd has changed"), (1, "/shop/prompt answered with status 500")],
)
def test_a_task_that_is_wrong_is_the_environments(
    make: Make, url: str, number: int, says: str
) -> None:
    suite = make("ors", url=url, measured=0, **TIME)
    with pytest.raises(EpisodeError, match=says) as caught:
        performed(suite, suite.tasks("odd")[number])
    assert caught.value.boundary == "environment"


def test_a_fault_in_a_call_is_the_environments(make: Make) -> None:
    with server("ors", "ors_shop.py") as port:
        suite = make("ors", url=f"http://127.0.0.1:{port}", measured=0, deadline=20.0)
        task = suite.tasks("test")[0]
        for thing, says in (
            ("huge", "says too much"),
            ("high", "more than env.full=1"),
            ("none", "there is none"),
            ("slow", "time"),
            ("dead", "call"),
        ):
            with pytest.raises(EpisodeError, match=says) as caught:
                performed(suite, task, [buy(thing), DONE])
            assert caught.value.boundary == "environment"
        with pytest.raises(EpisodeError, match="refused"):
            performed(suite, task)


def test_a_server_that_lies_of_its_splits_or_is_none_is_said(make: Make, url: str) -> None:
    for where, says in (
        ({"url": url, "environment": "lying"}, "a split is called"),
        ({"url": url, "environment": "x"}, "unknown environment 'x'; allowed: shop, lying"),
        ({"url": "http://127.0.0.1:9"}, "refused.*Change `env.url`"),
    ):
        with pytest.raises(UserError, match=says):
            make("ors", **where, **TIME)
