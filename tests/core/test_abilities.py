"""What a class can do: it overrides a method of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toy import ToyEnv, ToySuite, toy_task

import trace_bench
from trace_bench.core.errors import UserError
from trace_bench.core.factory import Factory
from trace_bench.core.protocols import (
    Env,
    Method,
    Policy,
    RunContext,
    Suite,
    Trainer,
    make_env,
    overrides,
)
from trace_bench.core.types import Task
from trace_bench.play.contract import check
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy
from trace_bench.trainers.local import LocalTrainer


def test_a_class_has_what_it_overrides_however_it_comes_by_it() -> None:
    class Makes:
        def synthetic(self, capability: str, seed: int) -> Task:
            return toy_task(seed)

    class Both(Makes, ToySuite):
        pass

    assert Both().has(Suite.synthetic) and Both().has(Suite.reference)
    assert not ToySuite().has(Suite.synthetic) and not Both().has(Suite.checklist)
    assert not ToyEnv().has(Env.solution) and not RandomPolicy().has(Policy.prompt_states)
    assert overrides(LocalTrainer, Trainer.learner) and not overrides(Trainer, Trainer.learner)


class Guest:
    """A class of one's own that inherits nothing."""

    def fit(self, base: Any, tasks: Any, lab: Any) -> Any:
        return base


class Idle(Method):
    """A method that has no `fit`."""


NO_METHODS = {Guest: "its class must inherit trace_bench.Method", Idle: "it has no fit"}


@pytest.mark.parametrize(("cls", "why"), NO_METHODS.items())
def test_what_is_no_part_of_its_kind_is_refused(cls: type, why: str) -> None:
    factory = Factory(cls, "method.factory", "mine:Mine")
    said = f"gives {cls.__name__}, which is no Method: {why}"
    with pytest.raises(UserError, match=rf"{said}\. Change `method\.factory`\."):
        factory.make({}, RunContext(), "method", Method)


def test_an_environment_that_inherits_nothing_is_refused() -> None:
    class Making(ToySuite):
        def make(self) -> Any:
            return Guest()

    with pytest.raises(UserError, match=r"makes Guest, .*must inherit trace_bench\.Env"):
        make_env(Making())


def test_a_run_of_parts_of_ones_own(tmp_path: Path) -> None:
    class Fitting(Method):
        def fit(self, base: Any, tasks: Any, lab: Any) -> Any:
            lab.rollouts("look", base, tasks[:3], purpose=trace_bench.Purpose.ANALYSIS)
            return base

    class Still(IdlePolicy):
        scripted = False

    class Split(ToySuite):
        def splits(self) -> list[str]:
            return ["train", "test"]

        def tasks(self, split: str) -> list[Task]:
            return [toy_task(n + 50 * (split == "test")) for n in range(4)]

    result = trace_bench.run(
        "env.train_split=train", "evaluation.split=test",
        method=Fitting(), budget=3, checkpoints=[], env=Split(), policy=Still(),
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert result.summary.rollouts["analysis"] == 3 and result.score.success == 0.0


class Misspelt(ToySuite):
    def sythetic(self, capability: str, seed: int) -> None: ...
    def checklists(self, task: Task) -> None: ...


class Misshapen(ToySuite):
    about = "a text"  # type: ignore[assignment]
    tag_keys = "requires"  # type: ignore[assignment]

    def lender(self) -> None: ...  # type: ignore[override]
    def synthetic(self, seed: int) -> Task:  # type: ignore[override]
        return toy_task(seed)


def test_the_check_refuses_misspelt_and_misshapen_members() -> None:
    def faults(suite: Suite) -> Sequence[str]:
        return check(suite, [toy_task(0)]).lines[0].faults

    assert faults(ToySuite()) == []
    assert faults(Misspelt()) == [
        f"Misspelt.{name} looks like `{meant}` of trace_bench.Suite; give it another name if it is "
        "not"
        for name, meant in (("sythetic", "synthetic"), ("checklists", "checklist"))
    ]
    assert faults(Misshapen()) == [
        "Misshapen.about is no method; Suite wants about()",
        "Misshapen.tag_keys is 'requires'; Suite wants tuple[str, ...]",
        "Misshapen.lender takes other arguments; Suite wants lender(split)",
        "Misshapen.synthetic takes other arguments; Suite wants synthetic(capability, seed)",
    ]
