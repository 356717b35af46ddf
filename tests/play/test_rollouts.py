import json
import re
import sys
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from playing import FunctionPolicy, play
from toy import ToyEnv, ToySuite, toy_task

from trace_bench.core.chat import call_message, text_message, with_guidance
from trace_bench.core.decode import Unreadable, convert, step_of
from trace_bench.core.protocols import TurnReply
from trace_bench.core.store import Lines, read_lines
from trace_bench.core.types import (
    AdapterRef,
    AgentSpec,
    Boundary,
    Check,
    Score,
    Step,
    StopReason,
    Trajectory,
    Turn,
    to_json,
)
from trace_bench.play import rollouts
from trace_bench.play.steps import step_one
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy, ReferencePolicy

AGENT = AgentSpec("none")


def run(policy, tasks, **options):
    suite = ToySuite(options.pop("max_steps", 6))
    agent = options.pop("agent", AGENT)
    out = play(policy, suite, agent, tasks, list(range(len(tasks))), **options)
    assert all(env.closed for env in suite.made) and len(suite.made) == len(tasks)
    return out


def test_reference_earns_everything_and_idle_nothing():
    tasks = [toy_task(i) for i in range(10)]
    reference = run(ReferencePolicy(ToySuite()), tasks)
    assert [t.task for t in reference] == [t.id for t in tasks]
    assert all(t.score.success and t.stop is StopReason.DONE for t in reference)
    idle = run(IdlePolicy(), tasks)
    assert all(t.score.similarity == 0.0 and len(t.turns) == 1 for t in idle)


def test_a_trajectory_is_the_whole_conversation():
    (t,) = run(ReferencePolicy(ToySuite()), [toy_task(1)])
    roles = [m["role"] for m in t.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert t.tools[0]["function"]["name"] == "add"
    assert convert(json.loads(json.dumps(to_json(t))), Trajectory) == t


def test_more_episodes_than_capacity_keep_their_order():
    policy = ReferencePolicy(ToySuite())
    policy.capacity = 3
    ended = []
    tasks = [toy_task(i) for i in range(11)]
    out = run(policy, tasks, on_episode=lambda i, t: ended.append((i, t.task)))
    assert [t.task for t in out] == [t.id for t in tasks]
    assert sorted(ended) == [(i, t.id) for i, t in enumerate(tasks)]
    assert ended[0][0] == 0 and ended != sorted(ended)  # no barrier: short ones end first


@pytest.mark.parametrize(
    ("broken", "boundary", "text"),
    [
        ("reset", Boundary.ENVIRONMENT, "RuntimeError: broken at reset"),
        ("step", Boundary.ENVIRONMENT, "ValueError: broken at step"),
        ("episode", Boundary.SANDBOX, "EpisodeError: the sandbox is gone"),
    ],
)
def test_a_broken_environment_is_that_episodes_failure(broken, boundary, text):
    tasks = [toy_task(0), toy_task(1, broken), toy_task(2)]
    good, bad, also_good = run(ReferencePolicy(ToySuite()), tasks)
    assert good.score.success and also_good.score.success
    assert bad.score is None and bad.stop is StopReason.ERROR
    assert (bad.failure.boundary, bad.failure.error) == (boundary, text)


def test_a_checklist_that_names_a_step_nobody_made_is_that_episodes_failure(monkeypatch):
    class Ahead(ToyEnv):
        def step(self, action):
            step = super().step(action)
            checks = (Check(0, "added", 1.0, (), self.steps),)  # counted from 1
            return replace(step, score=step.score and replace(step.score, checks=checks))

    monkeypatch.setattr(ToySuite, "make", lambda self: self.made.append(Ahead()) or self.made[-1])
    (lost,) = run(ReferencePolicy(ToySuite()), [toy_task(0)])
    assert lost.score is None and lost.failure.boundary is Boundary.ENVIRONMENT
    heard = len(lost.turns)
    assert f"the item 'added' of the checklist was satisfied by step {heard}" in lost.failure.error


class Faulty(ToySuite):
    """Resets and steps together, and does it wrong from the second call on."""

    def __init__(self, fault) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0

    def act(self, calls):
        self.calls += 1
        found = [step_one(env, what) for env, what in calls]
        return found if self.calls == 1 else self.fault(found)


def _raise(found):
    raise OSError("the rack is down")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (_raise, "OSError: the rack is down"),
        (lambda found: found[:-1], r"act\(\) returned 2 results for 3 calls"),
    ],
)
def test_episodes_of_a_suite_that_acts_together_and_fails_are_lost_not_hung(fault, text):
    tasks = [toy_task(0), toy_task(1), toy_task(2)]
    suite = Faulty(fault)
    for trajectory in play(ReferencePolicy(suite), suite, AGENT, tasks, [0, 1, 2]):
        assert trajectory.score is None and re.search(text, str(trajectory.failure))


def scored(**given: Any) -> dict[str, Any]:
    return {"score": Score(1.0, True, **given)}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tools": ({"type": "function"},)}, "`tools[0].function` is missing"),
        ({"done": "yes"}, "`done` is 'yes'; allowed: true or false"),
        ({"done": True, "stop": "finished"}, "`stop` is 'finished'; allowed: done, turn_limit"),
        (scored(milestones=({"hit": 1},)), "`milestones[0].hit` is 1; allowed: true or false"),
    ],
)
def test_steps_of_the_wrong_type_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(text)):
        step_of(Step(**given))


def test_an_environment_that_fails_to_close_keeps_its_score():
    (t,) = run(ReferencePolicy(ToySuite()), [toy_task(0, "close")])
    assert t.score.success and t.failure is None


def test_a_policy_error_is_that_episodes_failure():
    def odd(request):
        if request.episode == 1:
            raise RuntimeError("no answer")
        return text_message("")

    ok, bad = run(FunctionPolicy(odd), [toy_task(0), toy_task(1)])
    assert ok.failure is None
    assert bad.score is None and bad.failure.boundary is Boundary.POLICY
    assert bad.failure.error == "RuntimeError: no answer"


def test_turn_limit_of_the_agent_is_scored_where_the_environment_can():
    task = toy_task(0)
    right = FunctionPolicy(lambda r: call_message("add", {"number": sum(task.data["add"])}))
    (t,) = run(right, [task], max_turns=1)
    assert (t.stop, t.score.similarity, t.score.success) == (StopReason.TURN_LIMIT, 0.5, False)
    assert t.closing[0]["role"] == "tool"
    (t,) = run(FunctionPolicy(lambda r: call_message("add", {"number": 1})), [task], max_steps=4)
    assert (t.stop, len(t.turns), t.score.similarity) == (StopReason.TURN_LIMIT, 4, 0.0)


def test_halves_of_characters_reach_neither_the_agent_nor_a_file(tmp_path):
    class Half(ToyEnv):
        def step(self, action):
            step = super().step(action)
            if not step.done:
                half = {**step.messages[0], "content": "so \ud83d"}
                return replace(step, messages=(half,))
            details = {"said": "\ud83d"}
            return replace(step, score=replace(step.score, details=details))  # type: ignore[type-var]

    class Halves(ToySuite):
        def make(self):
            return Half()

    (t,) = play(ReferencePolicy(ToySuite()), Halves(), AGENT, [toy_task(1)], [0])
    assert t.failure is None and "so \ufffd" in [m["content"] for m in t.messages]
    with closing(Lines(tmp_path / "t.jsonl", Trajectory)) as lines:
        lines.append(t)
    assert read_lines(tmp_path / "t.jsonl", Trajectory) == [t]


class OddReplies(IdlePolicy):
    """First a malformed turn, then a full context."""

    def submit(self, requests):
        for request in requests:
            if request.tools:
                turn = Turn(request.messages, text_message("<tool_call>"), malformed="not JSON")
                self._ready.append(TurnReply(request.episode, turn))
            else:
                self.note = request.messages
                self._ready.append(TurnReply(request.episode, None, context_full=True))


def test_malformed_calls_and_full_contexts():
    policy = OddReplies()
    (t,) = run(policy, [toy_task(0)])
    assert policy.note == t.closing
    assert t.closing[0]["content"] == rollouts.MALFORMED and t.closing[0]["role"] == "tool"
    assert t.stop is StopReason.CONTEXT_LIMIT and t.score.similarity == 0.0
    assert len(t.turns) == 1 and t.failure is None


def test_guidance_goes_into_the_system_message_only():
    seen = []

    def look(request):
        seen.append(request.messages)
        return text_message("")

    run(FunctionPolicy(look), [toy_task(0)], agent=AgentSpec("none", prompt="Ask first."))
    assert seen[0][0]["content"] == "Use the tool.\nGuidance: Ask first."
    assert seen[0][1]["role"] == "user"
    (alone,) = with_guidance([], "Ask.")
    assert alone == {"role": "system", "content": "Guidance: Ask."}


def test_routes_are_given_or_chosen():
    seen = {}

    def look(request):
        seen[request.episode] = request.adapter
        return text_message("")

    adapters = (AdapterRef("a@1", "/a"), AdapterRef("b@1", "/b"))
    agent = AgentSpec("none", adapters=adapters)
    tasks = [toy_task(i) for i in range(3)]
    out = run(FunctionPolicy(look), tasks, agent=agent, route=["a@1", None, "b@1"])
    assert seen == {0: "a@1", 1: None, 2: "b@1"}
    assert [t.adapter for t in out] == ["a@1", None, "b@1"]
    assert [t.turns[0].adapter for t in out] == ["a@1", None, "b@1"]
    fixed = AgentSpec("none", adapters=adapters, router={"kind": "fixed", "adapter": "b@1"})
    assert [t.adapter for t in run(FunctionPolicy(look), tasks, agent=fixed)] == ["b@1"] * 3


@pytest.mark.parametrize("asks", [False, True], ids=["in the driver's thread", "in threads"])
def test_what_an_episode_writes_into_its_task_no_other_sees(asks, monkeypatch):
    before, intervals = sys.getswitchinterval(), set()

    class Writes(ToyEnv):
        def reset(self, task):
            intervals.add(sys.getswitchinterval())
            assert task.data["add"], "another episode of the task has emptied it"
            step = super().reset(task)
            task.data["add"] = []
            return step

    monkeypatch.setattr(ToySuite, "make", lambda self: self.made.append(Writes()) or self.made[-1])
    monkeypatch.setattr(ToySuite, "asks_user", lambda self: asks)
    assert all(t.failure is None for t in run(IdlePolicy(), [toy_task(0)] * 4))
    assert [*intervals] == [pytest.approx(rollouts.INTERVAL if asks else before)]
    assert sys.getswitchinterval() == before


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="same length"):
        play(IdlePolicy(), ToySuite(), AGENT, [toy_task(0)], [])


def test_an_interrupted_run_leaves_nothing_open():
    suite, policy = ToySuite(), ReferencePolicy(ToySuite())

    def stop(index, trajectory):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(policy, suite, AGENT, [toy_task(i) for i in range(8)], range(8), on_episode=stop)
    assert len(suite.made) == 8 and all(env.closed for env in suite.made)
    assert not policy._ready and not policy._script


def test_random_policy_is_seeded_and_fits_the_schema():
    tasks = [toy_task(i) for i in range(6)]
    first, again = run(RandomPolicy(), tasks), run(RandomPolicy(), tasks)
    assert first == again
    calls = [m["tool_calls"][0]["function"] for t in first for m in t.messages if "tool_calls" in m]
    assert len(calls) == 24 and {c["name"] for c in calls} == {"add"}
    numbers = {json.loads(c["arguments"])["number"] for c in calls}
    assert len(numbers) > 10 and all(isinstance(n, int) for n in numbers)
