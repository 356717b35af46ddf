"""What a class says that it can do: inherited, never recognised by the name of a member."""

from __future__ import annotations

from inspect import getattr_static
from pathlib import Path
from typing import Any

import pytest
from playing import play
from toy import ToyEnv, ToySuite, toy_task

import trace_bench
from trace_bench.core.protocols import (
    Env,
    HasReference,
    Method,
    Policy,
    Router,
    Suite,
    Synthesizes,
    Tracker,
    Trainer,
    abilities,
    adopted,
    make_env,
    members,
    required,
)
from trace_bench.core.types import AgentSpec, Task, to_json
from trace_bench.envs.check import check
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy

KINDS = (Env, Suite, Policy, Router, Trainer, Method, Tracker)
NAMED = [
    (kind, name)
    for kind in KINDS
    for protocol in (kind, *abilities(kind))
    for name in members(protocol)
    if name not in required(kind)
]
"""Every member that a class of one's own may have by chance, of every kind of part."""


def surprise(*given: Any, **named: Any) -> Any:
    raise AssertionError("a helper that nobody should call")


def guest(kind: type, inside: Any = None, **helpers: Any) -> type:
    """A class of one's own that inherits nothing: what `kind` requires, from `inside`."""

    def init(self: Any) -> None:
        for name in required(kind):
            setattr(self, name, getattr(inside, name, None))

    return type("Mine", (), {"__init__": init, **helpers})


@pytest.mark.parametrize("helper", [surprise, "a text"])
@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_a_helper_with_an_abilitys_name_is_no_ability(kind: type, name: str, helper: Any) -> None:
    mine = guest(kind, **{name: helper})()
    part = adopted(mine, kind)
    assert isinstance(part, kind) and not any(isinstance(part, a) for a in abilities(kind))
    assert vars(type(part)).keys() & {name} == set()  # the kind's own, with its default
    if name in members(kind):
        assert getattr_static(part, name) is getattr_static(kind, name)
    else:
        assert getattr(part, name) is not None  # for those who know the guest


SUITES = [(kind, name) for kind, name in NAMED if kind in (Env, Suite, Policy)]


@pytest.mark.parametrize("helper", [surprise, "a text"])
@pytest.mark.parametrize(("kind", "name"), SUITES)
def test_episodes_of_guests_are_as_if_the_helper_were_not_there(
    kind: type, name: str, helper: Any
) -> None:
    def played(**helpers: Any) -> Any:
        mine = {k: helpers if k is kind else {} for k in KINDS}
        env: Any = guest(Env, ToyEnv(), **mine[Env])
        world: Any = ToySuite()
        world.make = env
        suite = adopted(guest(Suite, world, **mine[Suite])(), Suite)
        policy = adopted(guest(Policy, RandomPolicy(), **mine[Policy])(), Policy)
        tasks = [toy_task(0), toy_task(1)]
        return play(policy, suite, AgentSpec("none"), tasks, [0, 1], max_turns=2)

    without = to_json(played())
    assert without[0]["score"] == {**without[0]["score"], "similarity": 0.0}
    assert to_json(played(**{name: helper})) == without


def test_a_run_of_guests_alone(tmp_path: Path) -> None:
    """A suite, a method, a policy, a trainer and a tracker of one's own, each with a helper beside
    the name of every ability."""

    class Fitting:
        def fit(self, base: AgentSpec, tasks: Any, lab: Any) -> AgentSpec:
            lab.rollouts("look", base, tasks[:3], purpose=trace_bench.Purpose.ANALYSIS)
            return base

    def helpers(kind: type) -> dict[str, Any]:
        return {name: surprise for k, name in NAMED if k is kind}

    world: Any = ToySuite()
    world.make = guest(Env, ToyEnv(), **helpers(Env))
    world.splits = lambda: ["train", "test"]
    world.tasks = lambda split: [toy_task(n + 50 * (split == "test")) for n in range(4)]
    result = trace_bench.run(
        "env.train_split=train", "evaluation.split=test",
        method=guest(Method, Fitting(), **helpers(Method))(), budget=3, checkpoints=[],
        suite=guest(Suite, world, **helpers(Suite))(),
        policy=guest(Policy, IdlePolicy(), **helpers(Policy))(),
        trainer=guest(Trainer, surprise, **helpers(Trainer))(),
        tracker=guest(Tracker, RecordsNothing(), **helpers(Tracker))(),
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert result.rollouts["analysis"] == 3 and result.score["success"] == 0.0


class RecordsNothing(Tracker):
    def log(self, values: Any) -> None: ...
    def conclude(self, summary: Any) -> None: ...
    def close(self) -> None: ...


class Misspelt(ToySuite):
    """Inherits the suite's class, so that its members are meant."""

    def sythetic(self, capability: str, seed: int) -> None: ...
    def milestone(self, task: Task) -> None: ...


class Misshapen(ToySuite, Synthesizes):
    about = "a text"  # type: ignore[assignment]
    tag_keys = "requires"  # type: ignore[assignment]

    def lender(self) -> None: ...  # type: ignore[override]
    def capabilities(self) -> list[str]:
        return []

    def synthetic(self, seed: int) -> Task:  # type: ignore[override]
        return toy_task(seed)


def test_the_check_refuses_misspelt_and_misshapen_members() -> None:
    def faults(suite: Suite) -> list[str]:
        return check(suite, [toy_task(0)]).lines[0].faults

    assert faults(ToySuite()) == []
    assert faults(Misspelt()) == [
        "Misspelt.sythetic looks like `synthetic` of trace_bench.Synthesizes; give it another name "
        "if it is not",
        "Misspelt.milestone looks like `milestones` of trace_bench.HasMilestones; give it another "
        "name if it is not",
    ]
    assert faults(Misshapen()) == [
        "Misshapen.about is no method; Suite wants about()",
        "Misshapen.tag_keys is 'requires'; Suite wants tuple[str, ...]",
        "Misshapen.lender takes other arguments; Suite wants lender(split)",
        "Misshapen.synthetic takes other arguments; Synthesizes wants synthetic(capability, seed)",
    ]


def test_the_check_says_what_a_class_has_and_does_not_use() -> None:
    class Half(Suite):
        name, variant = "toy", "half"
        splits, tasks, task, make = ToySuite.splits, ToySuite.tasks, ToySuite.task, ToySuite.make

        def __init__(self) -> None:
            self.max_steps, self.made = 6, list[ToyEnv]()

        def reference(self, task: Task) -> list[Any]:
            return []

    report = check(Half(), [toy_task(0)])
    assert not report.lines[0].faults and report.reference is None
    said = "Half.reference is not used: its class does not inherit trace_bench.HasReference"
    assert report.notes == [said] and f"note: {said}" in str(report)
    mine = adopted(guest(Suite, ToySuite(), reference=surprise, close=surprise)(), Suite)
    assert [note.partition(":")[0] for note in check(mine, [toy_task(0)]).notes] == [
        "Mine.reference is not used", "Mine.close is not used",
    ]  # fmt: skip
    assert not isinstance(mine, HasReference) and isinstance(make_env(mine), ToyEnv)
