"""Which splits a method may train and report on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from toy import ToySuite

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import MethodPlan
from trace_bench.core.types import Task
from trace_bench.runner.cut import Cut
from trace_bench.runner.forecast import describe
from trace_bench.runner.plan import check_splits, development_tasks
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of

TIER = "model"  # a forecast asks the trainer
LEARNS = MethodPlan()


class Splits(ToySuite):
    """`test` holds other tasks than `train`; `again` holds one task of `train` by another id."""

    there: tuple[str, ...] = ("train", "dev", "test", "again")

    def splits(self) -> Sequence[str]:
        return self.there

    def tasks(self, split: str) -> Sequence[Task]:
        assert split in self.there, "this suite has no such tasks"
        numbers = {
            "train": range(4),
            "dev": range(4, 8),
            "test": range(8, 12),
            "again": (3, 13, 14),
        }
        return [add(split, i) for i in numbers[split]]


class OnlyHeldOut(Splits):
    there = ("test",)


class NoDevelopment(Splits):
    there = ("train", "test")


def add(split: str, number: int) -> Task:
    return Task(f"toy/tests/{split}/{number:04d}", "toy", split, number, {"add": [number]})


def test_a_task_counts_as_the_same_by_its_content() -> None:
    with pytest.raises(UserError) as error:
        check_splits(compose(["evaluation.split=again"]), Splits(), LEARNS)
    assert "1 of 3 tasks of evaluation.split=again are in env.train_split=train" in str(error.value)
    assert "such as toy/tests/again/0003" in str(error.value)
    assert "`protocol=paper`" in str(error.value)


def test_the_same_tasks_are_allowed_where_the_run_is_marked_or_does_not_learn() -> None:
    check_splits(compose([]), Splits(), LEARNS)
    check_splits(compose(["evaluation.split=again", "protocol=paper"]), Splits(), LEARNS)
    check_splits(compose(["evaluation.split=again"]), Splits(), MethodPlan(learns=False))


def test_a_missing_split_is_named_with_the_setting_and_what_is_allowed() -> None:
    with pytest.raises(UserError, match=r"tset.*allowed.*again.*evaluation\.split"):
        check_splits(compose(["evaluation.split=tset"]), Splits(), LEARNS)


def test_a_curve_that_was_asked_for_needs_development_tasks() -> None:
    """Also of a method that does not learn."""
    assert development_tasks(OnlyHeldOut(), "dev", some=True) == []
    assert len(development_tasks(Splits(), "dev", some=True)) == 4
    with pytest.raises(UserError, match=r"dev.*allowed: test.*env\.dev_split"):
        check_splits(compose(["checkpoints=[0]"]), OnlyHeldOut(), MethodPlan(learns=False))


@pytest.mark.parametrize(("suite", "method"), [("OnlyHeldOut", "base"), ("NoDevelopment", "rl")])
def test_a_suite_without_some_splits_is_rehearsed(suite: str, method: str, tmp_path: Path) -> None:
    words = ["env=custom", f"env.factory=test_splits:{suite}", "sandbox=inline", f"method={method}"]
    settings = compose([*words, "checkpoints=[]"])
    text, missing = describe(settings, parts_of(settings))
    assert not missing, text
    if suite == "OnlyHeldOut":
        assert Cut(settings).affordable(tmp_path) == 48
