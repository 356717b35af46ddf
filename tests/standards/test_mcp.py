"""env=mcp against a server of the real MCP SDK, in a worker with the SDK's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from standard_servers import python_of, server

from trace_bench.core.chat import make_call, text_message
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import perform, performed
from trace_bench.core.types import StopReason
from trace_bench.play.contract import check

Make = Callable[..., Any]
pytestmark = pytest.mark.standards
GOOD = {"tasks": "mcp_tasks:tasks", "scorer": "mcp_tasks:score", "deadline": 60.0}
DONE = text_message("It is in the box.")


def put(thing: str) -> Any:
    return make_call("put", thing=thing)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("mcp", "mcp_box.py", "own") as port:
        yield f"http://127.0.0.1:{port}/mcp"


def test_an_episode_has_its_scorers_score(make: Make, url: str) -> None:
    suite = make("mcp", url=url, steps=3, **GOOD)
    [first, _] = suite.tasks("train")
    done = performed(suite, first, [put("pen"), DONE])
    assert [tool["function"]["name"] for tool in done[0].tools] == ["put", "look", "drop"]
    assert done[1].messages[0]["content"] == "The box has 1 things."
    assert done[2].score is not None and done[2].score.success
    half = performed(suite, first, [put("pen"), put("cup"), DONE])[-1]
    assert half.score is not None
    assert half.score.similarity == 0.5 and not half.score.success
    idle = performed(suite, first, [DONE])[-1]
    assert idle.score is not None and idle.score.similarity == 0 and idle.stop is StopReason.DONE
    [_, wrong] = performed(suite, first, [make_call("drop", thing="nothing")])
    assert wrong.messages[0]["content"].startswith("Error: ") and not wrong.done
    last = performed(suite, first, [make_call("look")] * 4)[-1]
    assert last.stop is StopReason.TURN_LIMIT and last.score is not None


def test_the_contract_holds(make: Make, url: str) -> None:
    suite = make("mcp", url=url, **GOOD)
    assert (suite.name, suite.variant, *suite.splits()) == ("mcp", "box", "train", "dev", "test")
    report = check(suite, suite.tasks("dev"))
    assert report.ok, str(report)
    assert suite.about()["data"].startswith("box 1.2, tools ")


def test_a_session_by_command_has_a_process_of_its_own(make: Make) -> None:
    suite = make("mcp", command=[python_of("mcp"), "mcp_box.py", "own"], **GOOD)
    for _ in range(2):
        last = performed(suite, suite.tasks("dev")[0], [put("key"), DONE])[-1]
        assert last.score is not None and last.score.success


def test_a_state_that_sessions_share_is_found(make: Make) -> None:
    with server("mcp", "mcp_box.py", "shared") as port:
        suite = make("mcp", url=f"http://127.0.0.1:{port}/mcp", **GOOD)
        faults = [line.faults for line in check(suite, suite.tasks("dev")).lines]
        assert "two environments differ" in str(faults)


def test_a_fault_in_a_call_is_the_environments(make: Make) -> None:
    with server("mcp", "mcp_box.py", "own") as port:
        where = {**GOOD, "url": f"http://127.0.0.1:{port}/mcp", "deadline": 10.0}
        suite = make("mcp", **where)
        task = suite.tasks("dev")[0]
        for calls, says in (
            ([put("huge"), make_call("look")], "characters|limit"),
            ([put("slow")], "no answer within 10 s"),
            ([put("dead")], "Error"),
            ([], "Error|no answer"),
        ):
            with pytest.raises(EpisodeError, match=says) as caught:
                performed(suite, task, calls)
            assert caught.value.boundary == "environment"


def test_a_scorer_that_fails_is_no_failure_of_the_agent(make: Make, url: str) -> None:
    suite = make("mcp", url=url, **{**GOOD, "scorer": "mcp_tasks:broken"})
    with pytest.raises(EpisodeError, match="the scorer failed: ZeroDivisionError"):
        perform(suite.make(), suite.tasks("dev")[0], [DONE])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": ""}, "one of `env.url` and `env.command`"),
        ({"url": "http://127.0.0.1:9/mcp"}, "Change `env.url`"),
        ({"command": [sys.executable, "-c", "pass"]}, "Change `env.command`"),
        ({"command": ["no such program"]}, "Change `env.command`"),
    ],
)
def test_a_server_that_is_not_there_is_said(make: Make, options: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make("mcp", **{**GOOD, **options})
