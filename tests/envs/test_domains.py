"""Training tasks of domains beside the phone world."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sandboxes import untrusted_suite

from trace_bench.core.chat import make_call
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import SynthesizesDomains
from trace_bench.core.types import Message, Score, StopReason, Task
from trace_bench.envs.check import check
from trace_bench.envs.domains.env import DomainEnv
from trace_bench.envs.domains.tasks import tables
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.envs.toolsandbox.tools.augment import catalog
from trace_bench.methods.making import self_test
from trace_bench.sandbox.engine import Sandbox

SUITE = EmbeddedSuite()


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def play(task: Task, actions: Sequence[Message]) -> Score:
    env = SUITE.make()
    step = env.reset(task)
    for action in actions:
        if not step.done:
            step = env.step(action)
    return step.score or env.score()


def find(*wanted: str) -> Task:
    """The first task of the shop whose reference calls are these."""
    for seed in range(300):
        task = SUITE.synthetic_in("shop", seed)
        if tuple(c["name"] for turn in task.data["turns"] for c in turn["calls"]) == wanted:
            return task
    raise AssertionError(f"no task of {wanted}")


@pytest.mark.parametrize("domain", tables())
def test_a_domain_keeps_the_contract(domain: str) -> None:
    tasks = [SUITE.synthetic_in(domain, seed) for seed in range(4)]
    report = check(SUITE, tasks)
    assert report.ok, str(report)
    assert report.reference == 1.0 and report.idle == 0.0
    more = [SUITE.synthetic_in(domain, seed) for seed in range(4, 40)]
    assert all(self_test(SUITE, task) is None for task in more)
    assert len({task.data["user"][0] for task in more}) > 34


def test_domains_share_no_tool_with_each_other_or_with_the_phone() -> None:
    seen: set[str] = set()
    phone = set(catalog())
    for table in tables().values():
        names = {tool["function"]["name"] for tool in table.tools()}
        assert len(names) == 5 and not names & (seen | phone)
        seen |= names


def test_what_is_found_and_what_is_reported_are_rewarded_apart() -> None:
    task = find("find_article")
    look, told = SUITE.reference(task)
    assert play(task, [look, say("I do not know.")]).similarity == pytest.approx(0.6)
    assert play(task, [told]).similarity == pytest.approx(0.4)
    assert play(task, [look, say(f"It is {told['content']}, I think.")]).success
    assert play(task, [look, say(f"x{told['content']}1")]).similarity == pytest.approx(0.6)


def test_to_repeat_the_question_is_no_answer() -> None:
    """Of which of two is larger: both names stand in the question, the number does not."""
    made = (SUITE.synthetic_in("shop", seed) for seed in range(300))
    task = next(t for t in made if " larger " in t.data["user"][0] and len(t.data["turns"]) == 1)
    *looks, told = SUITE.reference(task)
    assert play(task, [*looks, told]).success
    assert not play(task, [*looks, say(task.data["user"][0])]).success


def test_a_table_that_has_changed_in_another_way_earns_nothing_for_its_rows() -> None:
    task = find("find_article", "set_article_price")
    reference = list(SUITE.reference(task))
    assert play(task, reference).success
    given = json.loads(reference[1]["tool_calls"][0]["function"]["arguments"])
    other = next(r for r in task.data["rows"] if r["id"] != given["article_id"])
    spoil = make_call("remove_article", article_id=other["id"])
    score = play(task, [spoil, *reference])
    assert not score.success and score.similarity == 0.0
    wrong = make_call("set_article_price", **{**given, "price": given["price"] + 1})
    assert play(task, [reference[0], wrong, say("Done.")]).similarity == 0.0


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (make_call("find_article", name="gold table"), "ValueError: There is no such article"),
        (make_call("find_article", title="oak lamp"), "ValueError: The arguments are name"),
        (make_call("find_article", name=3), "ValueError: name must be of type string"),
        (make_call("find_event", name="x"), "ValueError: Unknown tool"),
        (
            make_call("set_article_price", article_id="x", price=True),
            "ValueError: price must be of type integer",
        ),
    ],
)
def test_a_bad_call_is_answered_with_an_error(call: Message, answer: str) -> None:
    env = SUITE.make()
    env.reset(SUITE.synthetic_in("shop", 1))
    assert env.step(call).messages[0]["content"] == answer


def test_an_endless_conversation_ends() -> None:
    env = DomainEnv()
    env.reset(SUITE.synthetic_in("files", 1))
    call = make_call("find_document", name="nothing")
    steps = [env.step(call) for _ in range(30)]
    assert [s.done for s in steps] == [False] * 29 + [True]
    assert steps[-1].stop is StopReason.TURN_LIMIT and steps[-1].score is not None
    with pytest.raises(EpisodeError, match="reset first"):
        env.step(call)


def test_one_environment_plays_the_phone_and_a_domain() -> None:
    env = SUITE.make()
    shop = SUITE.synthetic_in("shop", 1)
    for task in (shop, SUITE.synthetic("disambiguates", 3), shop):
        step = env.reset(task)
        for action in SUITE.reference(task):
            step = env.step(action)
        assert step.score is not None and step.score.success
    assert SUITE.checklist(shop)


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(UserError, match="unknown domain 'zoo'; allowed: calendar, shop"):
        SUITE.synthetic_in("zoo", 1)


@pytest.fixture(scope="module")
def distant() -> Iterator[Any]:
    """The suite in a worker, which answers by remote calls."""
    source = "from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite as suite"
    suite: Any = untrusted_suite(source, Sandbox("process", allow_untrusted=True), print)
    yield suite
    suite.close()


def test_a_suite_in_a_sandbox_makes_the_same_tasks_of_domains(distant: Any) -> None:
    assert list(distant.domains()) == list(SUITE.domains())
    task: Task = distant.synthetic_in("shop", 3)
    assert task == SUITE.synthetic_in("shop", 3) and self_test(distant, task) is None
    with pytest.raises(UserError, match="unknown domain 'x'"):
        distant.synthetic_in("x", 3)
    assert isinstance(distant, SynthesizesDomains)
