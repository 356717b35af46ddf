"""Calibration numbers by hand, bands, mixes; synthetic tasks and their self-test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from trace_lab import BASE, MemoryLab

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.protocols import RunContext, Suite
from trace_bench.core.types import Purpose, Score, StopReason, Trajectory
from trace_bench.envs.toolsandbox.scenarios import CAPABILITIES, EmbeddedSuite
from trace_bench.methods.looking.analysis import Analysis, CapabilityReport
from trace_bench.methods.looking.capabilities import Capability, Verdict
from trace_bench.methods.making import Mix, draw, self_test
from trace_bench.methods.trace import calibrate as c
from trace_bench.methods.trace.settings import Budget, TraceSettings
from trace_bench.methods.trace.tasks import Looked, generated
from trace_bench.runner.build import run_context
from trace_bench.runner.plan import check_needs, plan_of
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of

DEFAULTS = TraceSettings()


def ended(score: Score | None) -> Trajectory:
    return Trajectory("t", 0, "a", (), (), (), StopReason.DONE, score)


WIN, LOSE, PART = (ended(Score(r, r == 1.0)) for r in (1.0, 0.0, 0.6))
LOST = ended(None)


def measure(groups: list[list[Trajectory]]) -> c.Numbers:
    return c.measure(groups, "similarity")


def after(numbers: c.Numbers, level: int = 0) -> int:
    """The level of the next round."""
    return c.Calibration("x", [c.Round(Mix(0.2, level), numbers)]).next_mix().level


def test_numbers_by_hand() -> None:
    groups = [[WIN, WIN, LOST], [LOSE, LOSE, LOST], [WIN, PART, LOST], [PART, PART]]
    numbers = measure(groups)
    assert (numbers.groups, numbers.rollouts, numbers.failures) == (4, 8, 3)
    assert numbers.mean_reward == pytest.approx((2 + 0 + 1.6 + 1.2) / 8)
    assert numbers.success == pytest.approx(3 / 8)
    mean = numbers.mean_reward
    squares = 3 * (1 - mean) ** 2 + 2 * mean**2 + 3 * (0.6 - mean) ** 2
    assert numbers.std == pytest.approx((squares / 8) ** 0.5)
    assert (numbers.all_success, numbers.all_zero) == (0.25, 0.25)
    assert (numbers.constant, numbers.informative) == (0.75, 0.25)
    nothing = measure([[], []])
    assert (nothing.groups, nothing.mean_reward, nothing.informative) == (0, 0.0, 0.0)


def test_bands() -> None:
    assert measure([[WIN, LOSE, LOSE, PART]] * 4).outside() == ()
    missed = measure([[WIN, WIN, WIN, WIN]] * 3 + [[WIN, LOSE, WIN, WIN]]).outside()
    assert [m.split(" 0")[0] for m in missed] == [
        "mean reward", "success", "all-success groups", "constant groups",
    ]  # fmt: skip
    assert "0.94 (wanted 0.2 to 0.6)" in missed[0]


def test_an_environment_that_loses_episodes_is_not_calibrated_by_the_rest() -> None:
    good = [[WIN, LOSE, LOSE, PART]] * 4
    assert measure([*good, [LOST]]).outside() == ()
    assert measure([*good, [LOST] * 4]).outside() == ("4 of 20 episodes were lost to errors",)
    assert "5 of 5" in measure([[LOST] * 5]).outside()[0]


def test_mix_follows_the_difficulty() -> None:
    easy, hard, fine = (measure([g] * 4) for g in ([WIN] * 4, [LOSE] * 4, [WIN, LOSE]))
    assert (after(easy), after(hard), after(fine), after(easy, level=3)) == (1, -1, 0, 3)


def test_calibration_in_the_world_stays_within_its_pool() -> None:
    names = ["recovers_from_errors", "disambiguates", "checks_preconditions"]
    lab = MemoryLab({"recovers_from_errors": 0.6, "checks_preconditions": 1.0}, budget=500)
    results = c.calibrate(lab, BASE, names, DEFAULTS, pool=200)  # type: ignore[arg-type]
    assert 500 - lab.left <= 200
    assert all(purpose is Purpose.CALIBRATION for _, purpose, _ in lab.calls)
    by_name = {r.name: r for r in results}
    assert by_name["disambiguates"].outcome == "dropped"  # always succeeds
    assert by_name["checks_preconditions"].outcome == "kept with a warning"  # never succeeds
    assert by_name["checks_preconditions"].rounds[0].numbers.success == 0.0
    assert 0.2 < by_name["recovers_from_errors"].rounds[0].numbers.success < 0.7
    assert by_name["disambiguates"].in_words().endswith("wanted 0 to 0.5)")
    groups = [lab.calls[0][2][i : i + 8] for i in range(0, 96, 8)]
    assert all(len(set(g)) == 1 for g in groups) and len({g[0] for g in groups}) == 12


def test_what_calibration_drops_gets_no_tasks() -> None:
    names = ["recovers_from_errors", "disambiguates", "checks_preconditions"]
    lab = MemoryLab({"recovers_from_errors": 0.6, "checks_preconditions": 1.0}, budget=500)
    settings, place = TraceSettings(synthetic_tasks=24), cast(Any, lab)
    analysis = Analysis(place, settings, CapabilityReport(place))
    chosen = [Verdict(Capability(name, ""), (), 1, True, "") for name in names]
    made = generated(Looked(BASE, [], place, Budget(settings, 500), analysis), chosen)
    assert set(made) == {"recovers_from_errors", "checks_preconditions"}
    kept = {c["name"]: c["outcome"] for c in lab.files["capabilities.json"]["calibration"]}
    assert kept["disambiguates"] == "dropped"


def test_a_settled_capability_is_not_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, loose in (("ALL_SUCCESS", 1.0), ("ALL_ZERO", 1.0), ("HIGH", 0.9)):
        monkeypatch.setattr(c, name, loose)
    lab = MemoryLab({"recovers_from_errors": 0.55, "disambiguates": 1.0}, budget=900)
    names = ["recovers_from_errors", "disambiguates"]
    recovers, which = c.calibrate(lab, BASE, names, DEFAULTS, pool=900)  # type: ignore[arg-type]
    assert recovers.outcome == "in bands" and len(recovers.rounds) == 1
    assert len(which.rounds) == DEFAULTS.calibration_rounds
    free = replace(DEFAULTS, bands=False)
    lab = MemoryLab({"disambiguates": 1.0}, budget=900)
    (measured,) = c.calibrate(lab, BASE, names[1:], free, pool=900)  # type: ignore[arg-type]
    assert measured.outcome == "measured only" and len(measured.rounds) == 1


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_environment_passes_its_self_test(capability: str) -> None:
    suite = EmbeddedSuite()
    drawn = draw(suite, capability, 10, Mix(0.2), seed=4, label="train")
    assert sum(t.data["contrast"] for t in drawn) == 2 and len({t.id for t in drawn}) == 10


def test_a_label_names_its_tasks() -> None:
    suite = EmbeddedSuite()
    one, again, other = (
        draw(suite, "disambiguates", 10, Mix(0.2), 4, label)
        for label in ("train", "train", "calibration/0")
    )
    assert one == again and {t.id for t in other}.isdisjoint(t.id for t in one)


def test_level_makes_tasks_longer() -> None:
    suite = EmbeddedSuite()

    def steps(level: int) -> float:
        tasks = draw(suite, "recovers_from_errors", 12, Mix(0.0, level), 1, "x")
        return sum(len(t.data["reference"]) for t in tasks) / len(tasks)

    assert steps(-2) < steps(0) < steps(2)


def test_a_share_of_the_tasks_is_drawn_in_context() -> None:
    suite = EmbeddedSuite(needs=2)
    tasks = draw(suite, "disambiguates", 40, Mix(0.2), 4, "train", in_context=0.5)
    several = [task for task in tasks if "/needs2/synthetic/" in task.id]
    contrast = sum(task.data["contrast"] for task in tasks)
    assert len(tasks) == 40 and contrast == 8 and 10 <= len(several) <= 22
    assert all(len(t.data["requires"]) == 2 and not t.data["contrast"] for t in several)
    every = draw(suite, "disambiguates", 10, Mix(0.0), 4, "train", in_context=1.0)
    assert all("/needs2/synthetic/" in task.id for task in every)


class Apart(EmbeddedSuite):
    """It makes no tasks in context."""

    in_context = Suite.in_context


def test_tasks_in_context_need_a_suite_that_makes_them() -> None:
    settings = compose(["method=trace", "method.in_context=0.5"])
    parts = parts_of(settings)
    trainer = parts["trainer"].make(run_context(settings, parts))
    plan = plan_of(settings, parts["method"].make(RunContext()), trainer, 64)
    check_needs(plan, parts, EmbeddedSuite(), trainer)
    why = r"needs `Suite\.in_context` of the setting `env`.*With method\.in_context=0 "
    with pytest.raises(UserError, match=why):
        check_needs(plan, parts, Apart(), trainer)
    with pytest.raises(UserError, match=r"method\.in_context=1\.0 is for made tasks, and"):
        compose(["method=trace", "method.in_context=1", "method.synthesis=select"])


class Spoiled(EmbeddedSuite):
    """Its synthetic tasks cannot be solved: the reference is cut off."""

    def synthetic(self, capability: str, seed: int):
        task = super().synthetic(capability, seed)
        return replace(task, data={**task.data, "reference": task.data["reference"][:1]})


class Plain(EmbeddedSuite):
    """Its synthetic tasks are all marked as contrast cases."""

    def synthetic(self, capability: str, seed: int):
        task = super().synthetic(capability, seed)
        return replace(task, data={**task.data, "contrast": True})


def test_a_generator_of_contrast_cases_alone_is_named() -> None:
    why = r"1 contrast cases\) could be made; the generator marks all as `contrast`, so none needs"
    with pytest.raises(TraceBenchError, match=why):
        draw(Plain(), "disambiguates", 4, Mix(0.2), 0, "train")


def test_defective_tasks_are_refused_and_named() -> None:
    suite = Spoiled()
    lab: Any = MemoryLab({}, 200, suite=suite)
    task = suite.synthetic("recovers_from_errors", 1)
    assert "the reference earns" in str(self_test(suite, task))
    free = replace(task, data={**task.data, "milestones": [], "edges": [], "weights": None})
    assert "doing nothing earns 1.0" in str(self_test(suite, free))
    for setting, made in (
        ("method.synthetic_tasks", lambda name: draw(suite, name, 8, Mix(0.2), 0, "train")),
        ("method.calibration_groups", lambda name: c.calibrate(lab, BASE, [name], DEFAULTS, 200)),
    ):
        with pytest.raises(TraceBenchError, match=f"of recovers_from_errors .*Lower `{setting}`"):
            made("recovers_from_errors")
