"""τ²-bench's domain banking_knowledge: its tools and documents, whose state an episode changes, and
verdicts against the scorer of inspect-evals. The comparison with the benchmark's own evaluator is
tests/tau2_scores.py."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from sandboxes import in_process as find
from shared import needs
from tau2_scores import ways

from trace_bench.core.chat import call_message
from trace_bench.core.protocols import perform
from trace_bench.core.types import Message, Task
from trace_bench.envs.tau2.domains import AGENT, USER
from trace_bench.envs.tau2.suite import Tau2Suite

pytestmark = [needs("inspect_evals", "the extra tau2 is not installed"), pytest.mark.worlds]


@pytest.fixture(scope="module")
def suite() -> Tau2Suite:
    return find("tau2", "banking_knowledge")  # type: ignore[no-any-return]


def named(suite: Tau2Suite, name: str) -> Task:
    return next(t for t in suite.tasks("base") if t.data["record"]["id"] == name)


# -- tools and documents --------------------------------------------------------------------------


def test_tools_have_the_names_that_the_policy_uses(suite: Tau2Suite) -> None:
    first = suite.make().reset(suite.tasks("base")[0])
    offered = [tool["function"]["name"] for tool in first.tools]
    assert offered[-1] == "grep" and len(offered) == 15
    policy = first.messages[0]["content"]
    for name in ("grep", "get_current_time", "call_discoverable_agent_tool"):
        assert name in offered and name in policy
    assert "{{" not in policy and "banking_" not in policy


def test_the_documents_are_searched_by_a_pattern(suite: Tau2Suite) -> None:
    world = suite._toolbox.world(suite.tasks("base")[0].data["record"])
    found = world.call(AGENT, "grep", {"pattern": "close_bank_account_\\d+"})
    assert found.text.startswith("1. ") and "close_bank_account_7392" in found.text
    assert found == world.call(AGENT, "grep", {"pattern": "CLOSE_BANK_ACCOUNT_\\d+"})
    assert world.call(AGENT, "grep", {"pattern": "("}).text.count("   ID: doc_") == 10  # as a text
    assert world.call(AGENT, "grep", {"pattern": "zzz"}).text == "No matches found for pattern: zzz"
    assert world.changes() == suite._toolbox.world(suite.tasks("base")[0].data["record"]).changes()


def test_the_user_has_the_tools_that_the_task_names(suite: Tau2Suite) -> None:
    told: list[str] = []

    def ask(role: str, messages: Any, schema: Any = None) -> str:
        told.append(messages[0]["content"])
        return "I want to change my email."

    env = find("tau2", "banking_knowledge", ask=ask).make()
    counts: dict[int, Task] = {}
    for task in suite.tasks("base"):
        tools = suite._toolbox.of_user(task.data["record"])
        counts.setdefault(len(tools), task)
        names = {tool["function"]["name"] for tool in tools}
        assert names == set(task.data["record"]["user_tools"])
    assert sorted(counts) == [0, 1, 2, 3]
    for number in (0, 1):
        env.reset(counts[number])
    assert "tools of your own" not in told[0]
    assert "apply_for_credit_card" in told[1] and "submit_referral" not in told[1]


# -- state ----------------------------------------------------------------------------------------


def test_both_sides_have_one_database(suite: Tau2Suite) -> None:
    world = suite._toolbox.world(suite.tasks("base")[0].data["record"])
    application = {"card_type": "EcoCard", "customer_name": "A B", "annual_income": 9.5}
    before = world.changes()
    assert not world.call(USER, "apply_for_credit_card", application).failed
    assert world.changes() != before


def test_an_episode_leaves_nothing_behind(suite: Tau2Suite) -> None:
    """Neither in the domain's database nor in the records that a task adds to it."""
    for task in suite.tasks("base")[::6]:
        record = json.dumps(task.data["record"], sort_keys=True)
        fresh = suite._toolbox.world(task.data["record"]).changes()
        texts = []
        for _ in range(2):
            steps = perform(suite.make(), task, suite.reference(task))
            assert steps[-1].score is not None and steps[-1].score.success
            texts.append([m["content"] for step in steps for m in step.messages])
        assert texts[0] == texts[1]
        assert suite._toolbox.world(task.data["record"]).changes() == fresh
        assert json.dumps(task.data["record"], sort_keys=True) == record


# -- verdicts -------------------------------------------------------------------------------------


def theirs(record: Any, said: Sequence[tuple[str, Any]]) -> bool:
    """The verdict of inspect-evals' own scorer after these calls, a side and a call each, were made
    with its own tools."""
    from inspect_ai.model import ChatMessageAssistant
    from inspect_ai.tool import ToolCall
    from inspect_ai.util import Store, store_as
    from inspect_ai.util._store import init_subtask_store
    from inspect_evals.tau2.banking import banking_scorer, environment
    from inspect_evals.tau2.common.agents import StoredAgentState
    from inspect_evals.tau2.data_model.tasks import Task as TheirTask

    async def scored() -> bool:
        # Copies: the run changes the initial state's records, and the scorer would begin with them.
        environment.initialize_environment()
        task = TheirTask.model_validate(copy.deepcopy(record))
        agent, user = environment.get_agent_tools(), environment.get_user_tools()
        environment.apply_initial_state(agent, user, task.initial_state)
        messages: dict[str, list[Any]] = {AGENT: [], USER: []}
        for number, (side, call) in enumerate(said):
            made = ToolCall(id=str(number), function=call.name, arguments=dict(call.arguments))
            messages[side].append(ChatMessageAssistant(content="", tool_calls=[made]))
            with suppress(Exception):  # the agent would be told
                getattr(agent if side == AGENT else user, call.name)(**call.arguments)
        store_as(StoredAgentState, "x").messages = messages[AGENT]
        metadata = {"instance": "x", "task": TheirTask.model_validate(record).model_dump()}
        state = SimpleNamespace(metadata=metadata, messages=messages[USER])
        return (await banking_scorer()(state, None)).value == "C"

    def run() -> bool:
        init_subtask_store(Store())
        return asyncio.run(scored())

    return contextvars.copy_context().run(run)


def said_in(env: Any, task: Task, turns: Sequence[Message]) -> list[tuple[str, Any]]:
    """Plays the turns; every call with the side that made it."""
    said: list[tuple[str, Any]] = []
    step = env.reset(task)
    for turn in turns:
        if not step.done:
            before = len(env._calls)
            step = env.step(turn)
            side = AGENT if turn.get("tool_calls") else USER
            said += [(side, call) for call in env._calls[before:]]
    return said


def test_verdicts_are_those_of_the_packages_scorer(suite: Tau2Suite) -> None:
    """It knows nothing of how an episode ended, so what was cut off is compared by its parts."""
    tasks = suite.tasks("base")[::9]
    verdicts = []
    for number, task in enumerate(tasks):
        other = tasks[(number + 7) % len(tasks)]
        played = ways(
            list(suite.reference(task)), list(suite.reference(other)), random.Random(task.id)
        )
        for way, turns in played.items():
            env = suite.make()
            said = said_in(env, task, turns)
            ours = all(env.score().details["parts"].values())
            verdicts.append(ours)
            if way == "last_call_missing" and task.data["record"]["id"] == "task_096":
                continue  # the report that only the port keeps: the next test
            assert ours == theirs(task.data["record"], said), (task.id, way)
    assert len(verdicts) == 121 and 40 < sum(verdicts) < 90


def test_a_report_that_the_benchmark_does_not_keep_is_not_compared(suite: Tau2Suite) -> None:
    """Its database has no such table; with inspect-evals', an episode without the report fails."""
    task = named(suite, "task_096")
    *calls, last = suite.reference(task)
    report = calls.pop()
    assert "submit_interest_discrepancy_report_7294" in str(report)
    env = suite.make()
    said = said_in(env, task, [*calls, last])
    assert env.score().success and not theirs(task.data["record"], said)


def test_a_read_that_was_not_due_fails_as_before_release_1_0_1(suite: Tau2Suite) -> None:
    task = suite.tasks("base")[0]
    *calls, last = suite.reference(task)
    name = {"agent_tool_name": "get_all_user_accounts_by_user_id_3847"}
    assert name["agent_tool_name"] not in str(calls)
    read = {**name, "arguments": '{"user_id": "nobody"}'}
    more = [
        call_message("unlock_discoverable_agent_tool", name, "a"),
        call_message("call_discoverable_agent_tool", read, "b"),
    ]
    steps = perform(suite.make(), task, [*calls, more[0], last])
    assert steps[-1].score is not None and steps[-1].score.success  # unlocking is not kept
    steps = perform(suite.make(), task, [*calls, *more, last])
    assert steps[-1].score is not None and not steps[-1].score.success
