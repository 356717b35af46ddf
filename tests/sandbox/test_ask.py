"""What a suite in a sandbox has from the host: the run's facts, as in this process, and answers to
the reverse question, with which an environment asks for the simulated user."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import toy
from playing import FunctionPolicy, play
from sandboxes import in_sandbox

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AgentSpec, Step
from trace_bench.sandbox.choose import Processes, make_pool, suite_in
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.suite import SandboxedSuite, remote
from trace_bench.settings.registry import find
from trace_bench.settings.schema import EnvSettings


@pytest.fixture(autouse=True)
def beside_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports from the working folder."""
    monkeypatch.chdir(Path(toy.__file__).parent)


CHATS = find("env", EnvSettings("custom", factory="toy:Chats"))


def sandboxed(ask: Any, **changes: Any) -> closing[Any]:
    suite = in_sandbox(CHATS, Sandbox("process", run="ask", **changes), ask=ask)
    assert isinstance(suite, SandboxedSuite)
    return closing(suite)


SUITE = """
from trace_bench import RunContext, Suite, Task

class Dice(Suite):
    name, variant = "dice", "own"
    def __init__(self, run: RunContext): self.run = run
    def splits(self): return [f"{self.run.seed}/{self.run.budget}/{self.run.max_turns}"]
    def tasks(self, split): return [Task("dice-0", "dice", split, self.run.seed)]
    def task(self, task_id): return self.tasks("train")[0]
    def make(self): raise NotImplementedError
"""


def test_the_facts_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dice_of_facts.py").write_text(SUITE)
    part = find("env", EnvSettings("custom", "dice_of_facts:Dice"))
    facts = RunContext(seed=7, budget=64, max_turns=5)
    suite = suite_in(part, facts, Sandbox("process", run="facts"), EnvSettings("custom"), print)
    assert isinstance(suite, SandboxedSuite)
    assert list(suite.splits()) == ["7/64/5"] == part.make(facts).splits()
    suite.close()


def test_more_live_episodes_than_can_wait_for_answers_are_told(capsys: Any) -> None:
    for batch, workers, told in ((256, 2, True), (256, 4, False), (128, 2, False)):
        facts = RunContext(seed=7, budget=64, max_turns=5, batch=batch, ask=lambda *_: "")
        sandbox = Sandbox("process", run="facts", workers=workers)
        suite_in(CHATS, facts, sandbox, EnvSettings("custom"), print).close()
        said = capsys.readouterr().out
        assert ("128 at a time" in said and "sandbox.workers=4 lets" in said) == told, said


def test_many_episodes_are_answered_side_by_side() -> None:
    """Nobody is answered before all have asked: one after the other this would never end."""
    count = 6
    gate = threading.Barrier(count, timeout=20)
    asked: list[str] = []

    def ask(role: str, messages: Sequence[Mapping[str, Any]], schema: Any = None) -> str:
        asked.append(role)
        gate.wait()
        said = messages[-1]["content"]
        return "###STOP###" if said.startswith("Answer") else f"I heard: {said}"

    with sandboxed(ask) as suite, ThreadPoolExecutor(count) as threads:
        assert suite.asks_user(), "what resets its tasks must know that a model is asked"
        tasks = suite.tasks("train")[:count]
        envs = [suite.make() for _ in tasks]
        list(threads.map(lambda env, task: env.reset(task), envs, tasks))
        actions = [{"role": "assistant", "content": f"Answer {n}"} for n in range(count)]
        ends = list(threads.map(lambda env, action: env.step(action), envs, actions))
    assert all(isinstance(step, Step) and step.done and step.score for step in ends)
    assert asked == ["user"] * 2 * count


def test_no_episode_waits_for_the_user_of_another() -> None:
    """The first question is answered after three others, which are all the other episode's."""
    asked: list[str] = []
    others = threading.Event()

    def ask(role: str, messages: Sequence[Mapping[str, Any]], schema: Any = None) -> str:
        asked.append(role)
        if len(asked) == 1:
            assert others.wait(20), "the other episode did not go on"
        elif len(asked) == 4:
            others.set()
        return "My phone does not work."

    policy = FunctionPolicy(lambda _: {"role": "assistant", "content": "I see."})
    with sandboxed(ask, workers=1) as suite:
        tasks = suite.tasks("train")[:2]
        played = play(policy, suite, AgentSpec("idle"), tasks, [0, 0], max_turns=3)
    assert [trajectory.failure for trajectory in played] == [None, None]
    assert [len(trajectory.turns) for trajectory in played] == [3, 3]


def test_the_clock_stands_still_while_the_host_thinks() -> None:
    def ask(role: str, messages: Sequence[Mapping[str, Any]], schema: Any = None) -> str:
        threading.Event().wait(4)  # longer than the deadline of a batch
        return "My phone does not work."

    with sandboxed(ask, deadline=3.0, retries=0) as suite:
        suite.tasks("train")  # the worker has imported what it needs
        step = suite.make().reset(suite.tasks("train")[0])
    assert step.messages[1]["content"] == "My phone does not work."


def test_a_host_that_cannot_answer_is_an_error_of_that_episode() -> None:
    def ask(role: str, messages: Sequence[Mapping[str, Any]], schema: Any = None) -> str:
        raise ConnectionError("the model is gone")

    gone = pytest.raises(EpisodeError, match="user could not answer: the model is gone")
    with sandboxed(ask) as suite, gone:
        suite.make().reset(suite.tasks("train")[0])


def test_no_model_to_answer_is_reported() -> None:
    worker = {"factory": CHATS.factory.text, "options": dict(CHATS.options), "asks_user": True}
    sandbox, why = Sandbox("process", run="ask", retries=0), "which no model or program plays here"
    pool = make_pool(Processes(sandbox, ""), sandbox, worker, None, print)
    with closing(remote(pool)) as suite, pytest.raises(EpisodeError, match=f"for 'user', {why}"):
        suite.make().reset(suite.tasks("train")[0])


def test_an_episode_that_moves_is_given_the_same_answers_again() -> None:
    asked: list[str] = []

    def ask(role: str, messages: Sequence[Mapping[str, Any]], schema: Any = None) -> str:
        asked.append(str(messages[-1]["content"]))
        return f"answer {len(asked)}"  # a model would say something else each time

    with sandboxed(ask) as suite:
        env = suite.make()
        first = env.reset(suite.tasks("train")[0])
        env.step({"role": "assistant", "content": "one"})
        suite._pool.workers.there[0].kill()
        third = env.step({"role": "assistant", "content": "two"})
    assert first.messages[1]["content"] == "answer 1"
    assert third.messages[0]["content"] == "answer 3" and asked[1:] == ["one", "two"]
