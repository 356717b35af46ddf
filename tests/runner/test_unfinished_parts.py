"""Parts of one's own that are not finished yet: whatever they do, no figure is made of it, and the
error says which part is wrong and how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toy import ToyEnv, ToySuite, toy_task

import trace_bench
from trace_bench import AgentSpec, Result, Score, Step, StopReason, Task, UserError
from trace_bench.__main__ import main
from trace_bench.core.protocols import Method
from trace_bench.core.summary import AgentScore


class Whole(ToySuite):
    """The toy world with splits."""

    def splits(self) -> Sequence[str]:
        return ("train", "dev", "test")

    def tasks(self, split: str) -> Sequence[Any]:
        start = 8 * self.splits().index(split)
        return [toy_task(i) for i in range(start, start + 8)]


def holding(env: type[ToyEnv]) -> Whole:
    """It, with these environments."""
    suite = Whole()
    suite.make = env  # type: ignore[method-assign]
    return suite


def run(suite: Any, **changes: Any) -> Result:
    settings = {"method": "base", "policy": "reference", "evaluation__retries": 0, "max_lost": 1.0}
    return trace_bench.run(**{**settings, "env": suite, **changes})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- suites ---------------------------------------------------------------------------------------


def _no_disk(self: Any) -> Any:
    raise OSError("no disk")


WRONG: dict[str, dict[str, Any]] = {
    "tasks('test') returned no tasks": {"tasks": lambda self, split: []},
    "tasks('train') raised KeyError": {"tasks": lambda self, split: {}[split]},
    "returned dict instead of trace_bench.Task": {"tasks": lambda self, split: [{"id": "toy/1"}]},
    "returned 8 tasks with only 1 ids": {"tasks": lambda self, split: [toy_task(0)] * 8},
    "splits() raised OSError: no disk": {"splits": _no_disk},
    "name and variant must be strings": {"name": None},
    "about() raised or is not JSON-safe": {"about": lambda self: {"data": object()}},
}


@pytest.mark.parametrize("why", WRONG)
def test_a_suite_that_cannot_be_used_is_refused_before_anything_is_run(why: str) -> None:
    with pytest.raises(UserError) as caught:
        run(type("Wrong", (Whole,), WRONG[why])())
    assert why in str(caught.value) and "docs/environments.md" in str(caught.value)
    assert not list(Path.cwd().iterdir())


def test_the_development_split_is_asked_for_where_it_is_used() -> None:
    class NoDev(Whole):
        def splits(self) -> Sequence[str]:
            return ("train", "test")

    learning = {"method": "grpo", "policy": "local", "budget": 16}
    with pytest.raises(UserError, match=r"unknown split of toy/tests 'dev'.*`env\.dev_split`"):
        run(NoDev(), **learning)
    assert run(NoDev()).score.success == 1.0


# -- environments ---------------------------------------------------------------------------------

DONE = StopReason.DONE
ODD: dict[str, tuple[Any, str]] = {
    "a dictionary": ({"done": True}, "expected a trace_bench.Step, got dict"),
    "no score": (Step(done=True, stop=DONE), "ended without a score"),
    "a score that is none": (Step(done=True, score=1.0, stop=DONE), "trace_bench.Score, got float"),  # type: ignore[arg-type]
    "nan": (
        Step(done=True, score=Score(float("nan"), True), stop=DONE),
        "`similarity` is nan; allowed: a number from 0 to 1",
    ),
    "a message without a text": (
        Step(({"role": "user", "content": 3},)),
        "`messages[0].content` is 3; allowed: a text",
    ),
}


@pytest.mark.parametrize(("name", "place"), [*((name, "step") for name in ODD), ("nan", "reset")])
def test_what_is_no_step_fails_the_episode_and_is_no_score(name: str, place: str) -> None:
    step, why = ODD[name]

    class Odd(ToyEnv):
        def reset(self, task: Task) -> Step:
            return step if place == "reset" else super().reset(task)

        def step(self, action: Any) -> Step:
            return step

    result = run(holding(Odd))
    assert result.score == AgentScore(None, failures=8)
    for trajectory in result.trajectories(evaluation=True):
        assert trajectory.failure is not None and trajectory.score is None
        assert trajectory.failure.boundary == "environment" and why in trajectory.failure.error


def test_a_run_without_a_score_says_why_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    text = "from test_unfinished_parts import Whole\nclass Suite(Whole):\n"
    Path("odd.py").write_text(text + "    def make(self):\n        raise OSError('no desk')\n")
    settings = ["env=custom", "env.factory=odd:Suite", "method=base", "policy=reference"]
    assert main(settings) == 2
    said = capsys.readouterr().err
    assert "evaluation of base: 8 of 8 episodes were lost, more than max_lost=0.5 allows" in said
    assert "OSError: no desk" in said and "/failures.txt." in said
    (folder,) = Path("runs/odd_Suite/base").iterdir()
    assert 'raise OSError("no desk")' in (folder / "failures.txt").read_text().replace("'", '"')
    assert main([*settings, "max_lost=1"]) == 1
    printed = capsys.readouterr()
    last = printed.err.splitlines()[-1]
    assert last.startswith("error: no held-out episode of base, final has a score. ")
    assert last.endswith("The first error: environment: OSError: no desk")
    assert "run: runs/odd_Suite/base/" in printed.out


def test_an_environment_that_cannot_be_made_fails_its_episode_alone() -> None:
    class Suite(Whole):
        def make(self) -> ToyEnv:
            self.made.append(ToyEnv())
            if len(self.made) % 2:
                raise OSError("no desk")
            return self.made[-1]

    assert run(Suite()).score.failures == 4


def test_a_score_of_a_conversation_that_was_cut_off_is_looked_at_too() -> None:
    class Endless(ToyEnv):
        def step(self, action: Any) -> Step:
            return Step(({"role": "user", "content": "Go on."},))

        def score(self) -> Score:
            return Score(-1.0, False)

    assert run(holding(Endless), policy__max_turns=3).score.failures == 8


def test_a_reference_that_raises_is_a_failure_of_the_policy_that_plays_it() -> None:
    class Suite(Whole):
        def reference(self, task: Task) -> Any:
            raise ValueError("not yet")

    found = run(Suite()).trajectories(evaluation=True)
    errors = {t.failure.error for t in found if t.failure is not None}
    assert errors == {"ValueError: not yet"}


# -- methods --------------------------------------------------------------------------------------


class Forgetful(Method):
    def fit(self, base: AgentSpec, tasks: Any, lab: Any) -> Any:
        lab.log("done")

    def plan(self, run: Any) -> Any:
        return trace_bench.MethodPlan(learns=False)


class Planless(Method):
    def fit(self, base: AgentSpec, tasks: Any, lab: Any) -> Any:
        return base

    def plan(self, run: Any) -> Any:
        return {"phases": []}


METHODS = [
    (Forgetful, r"Forgetful returned NoneType instead of"),
    (Planless, r"Planless\.plan returned dict"),
]


@pytest.mark.parametrize(("method", "why"), METHODS)
def test_a_method_that_returns_something_else_is_named(method: type[Method], why: str) -> None:
    with pytest.raises(UserError, match=why):
        run(Whole(), method=method())
