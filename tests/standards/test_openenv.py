"""env=openenv against servers of the real OpenEnv SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from standard_servers import refuses, server

from trace_bench.core.chat import make_call, text_message
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import performed
from trace_bench.core.types import StopReason, Task
from trace_bench.play.contract import check

Make = Callable[..., Any]
pytestmark = pytest.mark.standards
DONE = text_message("I am done.")
TIME = {"deadline": 60.0}


def buy(thing: str) -> Any:
    return make_call("buy", thing=thing)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("openenv", "openenv_shop.py") as port:
        yield f"http://127.0.0.1:{port}"


def test_an_episode_has_the_task_the_tools_and_the_reward(make: Make, url: str) -> None:
    suite = make("openenv", url=url, ask="You are in a shop.", steps=3, **TIME)
    assert {s: len(suite.tasks(s)) for s in suite.splits()} == {"train": 3, "test": 2, "odd": 3}
    task = suite.tasks("train")[1]
    assert task.id == "openenv/shop/train/0001"
    start, wrong, right = performed(suite, task, [buy("hat"), buy("cup")])
    assert start.messages[0]["content"] == "You are in a shop.\nBuy a cup."
    assert [tool["function"]["name"] for tool in start.tools] == ["prices", "buy"]
    assert wrong.messages[0]["content"] == "You have a hat." and not wrong.done
    assert right.done and right.stop is StopReason.DONE
    assert right.score is not None and right.score.success
    [_, none, idle] = performed(suite, task, [buy("none"), DONE])
    assert none.messages[0]["content"].startswith("Error: ") and "there is none" in str(none)
    assert idle.score is not None and idle.score.similarity == 0
    last = performed(suite, task, [make_call("prices")] * 4)[-1]
    assert last.stop is StopReason.TURN_LIMIT and last.score is not None


def test_what_an_episode_earned_is_the_last_reward_or_the_sum(make: Make, url: str) -> None:
    for reward, earned in (("last", 1.0), ("sum", 0.5)):
        suite = make("openenv", url=url, reward=reward, **TIME)
        last = performed(suite, suite.tasks("test")[0], [buy("a"), buy("b"), buy("key")])[-1]
        assert last.score is not None
        assert last.score.similarity == earned and last.score.success == (earned == 1.0)
        assert suite.about()["reward"] == reward


def test_the_contract_holds(make: Make, url: str) -> None:
    suite = make("openenv", url=url, **TIME)
    report = check(suite, suite.tasks("test")[:1])
    assert report.ok, str(report)
    assert suite.about()["tasks"].startswith("Task API ")
    assert not check(suite, suite.tasks("odd")[2:]).ok  # it answers by chance


def test_an_action_of_its_own_is_a_tool_and_a_seed_a_task(make: Make, url: str) -> None:
    suite = make("openenv", url=f"{url}/guessing", full=0.5, **TIME)
    assert (suite.variant, suite.about()["tasks"]) == ("guessing", "seeds")
    task = suite.tasks("train")[2]
    start, bad, right = performed(
        suite, task, [make_call("step", number="two"), make_call("step", number=2)]
    )
    assert start.messages[0]["content"] == "Guess a number from 0 to 3."
    assert list(start.tools[0]["function"]["parameters"]["properties"]) == ["number"]
    assert bad.messages[0]["content"].startswith("ValueError: ") and not bad.done
    assert right.messages[0]["content"] == "Right."
    assert right.score is not None and right.score.success
    assert check(suite, [task]).ok


@pytest.mark.parametrize(
    ("number", "says"),
    [(0, "over at its start"), (1, "a tool is called 'xxx")],
)
def test_a_task_that_is_wrong_is_the_environments(
    make: Make, url: str, number: int, says: str
) -> None:
    suite = make("openenv", url=url, **TIME)
    with pytest.raises(EpisodeError, match=says) as caught:
        performed(suite, suite.tasks("odd")[number])
    assert caught.value.boundary == "environment"


def test_a_fault_in_a_call_is_the_environments(make: Make) -> None:
    with server("openenv", "openenv_shop.py") as port:
        suite = make("openenv", url=f"http://127.0.0.1:{port}", deadline=20.0)
        task = suite.tasks("test")[0]
        for thing, says in (
            ("huge", "the session is lost|cannot be used"),
            ("high", "more than env.full=1"),
            ("slow", "no answer within 20 s"),
            ("dead", "the session is lost"),
        ):
            with pytest.raises(EpisodeError, match=says) as caught:
                performed(suite, task, [buy(thing), DONE])
            assert caught.value.boundary == "environment"
        assert refuses(port)
        with pytest.raises(EpisodeError, match="refused"):
            performed(suite, task)


def test_a_server_that_lies_of_its_splits_or_is_none_is_said(make: Make, url: str) -> None:
    for where, says in (
        (f"{url}/lying", "a split is called"),
        ("http://127.0.0.1:9", "refused.*Change `env.url`"),
        ("file:///etc/passwd", "no http:// or https:// address"),
    ):
        with pytest.raises(UserError, match=says):
            make("openenv", url=where, **TIME)


def test_a_session_that_is_lost_is_not_begun_anew(make: Make, url: str) -> None:
    suite = make("openenv", url=url, **TIME)
    env = suite.make()
    env.reset(Task("x", "openenv", "odd", 0, {"split": "odd", "index": 2}))
    with pytest.raises(EpisodeError):
        env.step(buy("huge"))
    with pytest.raises(EpisodeError, match="reset first"):
        env.step(buy("random"))
