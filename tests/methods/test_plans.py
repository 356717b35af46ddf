"""What a method says it will do agrees with what it then does, and what cannot work is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from named import PLAYING, QUICK, method
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.beginning import Beginning
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import MethodPlan, PlannedRun, Policy, RunContext, Suite, Trainer
from trace_bench.core.types import CHARGED, AdapterRef, AgentSpec, Purpose
from trace_bench.runner.plan import check_budget, with_beginning
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

HABITS = {"recovers_from_errors": 0.6, "completes_all_parts": 0.5, "disambiguates": 0.7}
FEW = {"recovers_from_errors": 0.8}
"""Fewer capabilities than the budget pays for: the rest is training."""
METHODS = {name: method(name, **QUICK.get(name, {})) for name in [*PLAYING, "base", "sft"]}
METHODS["select"] = method("trace", synthesis="select")
BUDGETED = sorted(METHODS.keys() - {"base", "sft"})
PHASES = {
    "analysis": Purpose.ANALYSIS,
    "analysis, which calibrates too": Purpose.ANALYSIS,
    "calibration": Purpose.CALIBRATION,
    "training": Purpose.TRAINING,
    "prompts": None,  # of two purposes
}


def played(name: str, budget: int, habits: Any, leave: int = 0) -> MemoryLab:
    lab = MemoryLab(habits, budget, 3, trainer=ScriptedTrainer(leave))
    METHODS[name].fit(BASE, lab.suite.tasks("train"), lab)
    return lab


def plan(name: str, budget: int, *, tasks: int = 64, **facts: Any) -> MethodPlan:
    said: MethodPlan = METHODS[name].plan(PlannedRun(budget, tasks, ScriptedTrainer(), **facts))
    check_budget(name, budget, said)
    return said


@pytest.mark.parametrize(
    ("budget", "habits", "leave"), [(300, HABITS, 0), (437, FEW, 0), (777, HABITS, 40)]
)
@pytest.mark.parametrize("name", BUDGETED)
def test_a_plan_agrees_with_what_is_played(name: str, budget: int, habits: Any, leave: int) -> None:
    """The lab raises when a call goes beyond the budget."""
    lab, promised = played(name, budget, habits, leave), plan(name, budget)
    counted: Counter[Any] = lab.spent()
    assert sum(counted.values()) == budget - lab.left
    assert len({call for call, _, _ in lab.calls}) == len(lab.calls)
    assert not any("/test/" in t or "/dev/" in t for _, _, tasks in lab.calls for t in tasks)
    # One more of its iterations or rounds might cost that much.
    assert lab.left <= max(leave, {"gepa": 40, "ace": 31}.get(name, 0))
    assert leave or not lab.left or any(f"{lab.left} of {budget} roll" in s for s in lab.logged)
    for phase in promised.phases:
        purpose = PHASES[phase.name]  # type: ignore[assignment]
        spent = sum(counted.values()) if purpose is None else counted.pop(purpose, 0)
        assert spent <= phase.rollouts, phase
        assert phase.most or spent == phase.rollouts, phase
        if (name, phase.name, habits) == ("trace", "training", FEW):
            assert spent == phase.rollouts == 437 - 64 - 32, "its bound is reached"
    assert set(counted) <= {Purpose.PROMPT, Purpose.VALIDATION}, "a phase that was not planned"
    assert len(lab.trainer.jobs) <= promised.adapters
    assert promised.trains == bool(promised.adapters)


def test_free_phases_are_planned_as_they_are_counted() -> None:
    free = plan("trace", 300, charged=CHARGED["paper"])
    assert [p.rollouts for p in free.phases if p.name == "training"] == [300]
    assert free.adapters == 3 > plan("trace", 300).adapters


TOO_SMALL = [
    ("trace", 159, "160 rollouts: analysis 32 .*, calibration 32 .*, training 96 .method"),
    ("select", 127, "128 rollouts: analysis, which calibrates too 32 .*, training 96 .method"),
    ("joint", 159, "at least 160 rollouts: .*; as it is, analysis has 31"),
    ("prompt_only", 31, r"32 rollouts: analysis 32 \(method.analysis_minimum\)"),
    ("gepa", 63, "method=gepa, which needs at least 64"),
    ("ace", 31, "method=ace, which needs at least 32"),
]


@pytest.mark.parametrize(("name", "budget", "words"), TOO_SMALL)
def test_a_budget_that_is_too_small_is_refused_at_once(name: str, budget: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan(name, budget)
    plan(name, budget + 1)


def test_trace_needs_its_least_of_what_it_is_left() -> None:
    finish = method("trace", route="linear", finish=0.25)

    def plan(budget: int) -> None:
        check_budget("finish", budget, finish.plan(PlannedRun(budget, 64, ScriptedTrainer())))

    with pytest.raises(UserError, match=r"budget=212 is too small .* analysis has 31"):
        plan(212)
    plan(213)


def test_with_free_phases_the_budget_has_to_pay_for_training_only() -> None:
    with pytest.raises(UserError, match=r"least 96 rollouts: training 96 \(method.minimum"):
        plan("trace", 95, charged=CHARGED["paper"])
    plan("trace", 96, charged=CHARGED["paper"])


def test_too_few_training_tasks_for_gepa_are_refused_beforehand() -> None:
    with pytest.raises(UserError, match="1 to 23, as more leaves nothing of 24 training tasks"):
        plan("gepa", 300, tasks=24)
    plan("gepa", 300, tasks=0)  # their number is not known


class Planning(ScriptedTrainer):
    """Knows what a job comes to, as `PlansTraining`."""

    def plan_training(self, rollouts: int, name: str, points: Any) -> str | None:
        if rollouts < 16:
            raise UserError(f"training {name!r} needs at least 16")
        return f"{name} at {list(points)}"


@pytest.mark.parametrize("name", ["grpo", "untargeted"])
def test_the_trainer_is_asked_for_the_curves_caveat_and_the_least_budget(name: str) -> None:
    run = PlannedRun(64, 64, Planning(), points=(32, 64))
    assert METHODS[name].plan(run).caveat == f"{name} at [32, 64]"
    with pytest.raises(UserError, match=f"training '{name}' needs at least 16"):
        METHODS[name].plan(PlannedRun(8, 64, Planning()))
    assert plan(name, 64).caveat is None


def test_the_trainer_is_asked_whether_the_least_training_of_traces_adapters_is_enough() -> None:
    large = LocalTrainer(TrainerSettings(group_size=50), RunContext())
    with pytest.raises(UserError, match=r"96 rollouts and needs at least 100 .*minimum_training`"):
        METHODS["trace"].plan(PlannedRun(160, 64, large))
    METHODS["trace"].plan(PlannedRun(260, 64, large))
    METHODS["joint"].plan(PlannedRun(260, 64, large))


def test_traces_yardstick_is_itself_with_one_adapter() -> None:
    (yardstick,) = plan("trace", 437).yardsticks
    assert (yardstick.name, yardstick.title) == ("joint", "one joint adapter")
    lab = MemoryLab(HABITS, 437, 3)
    agent = yardstick.method.fit(BASE, lab.suite.tasks("train"), lab)  # type: ignore[arg-type]
    assert [a.capability for a in agent.adapters] == ["joint"]
    assert plan("joint", 437).yardsticks == plan("single_capability", 437).yardsticks == ()
    assert plan("joint", 437).adapters == 1


def test_questions_are_counted_for_the_roles_that_models_play() -> None:
    models = frozenset({"analyst", "generator", "reflector"})
    whole = plan("trace", 437, models=models)
    assert whole.questions == {"analyst": 1 + 10 * 8, "generator": 2 * 5}
    assert plan("trace", 437).questions == {}
    assert plan("prompt_only", 300, models=models).questions == {"analyst": 1 + 10 * 38}
    assert plan("gepa", 300, models=models).questions == {"reflector": (300 - 24) // 16}
    only = plan("select", 437, models=frozenset({"analyst", "generator"}))
    assert set(only.questions) == {"analyst"}


def test_environments_selected_from_training_tasks_are_said_in_every_table() -> None:
    assert plan("select", 437).marks == ("environments selected from training tasks",)
    assert plan("trace", 437).marks == ()


def test_a_models_capabilities_need_a_models_environments() -> None:
    alone = frozenset({"analyst"})
    with pytest.raises(UserError, match=r"Set llm.generator.by=endpoint too, .*synthesis=select"):
        plan("trace", 437, models=alone)
    plan("select", 437, models=alone)
    plan("prompt_only", 437, models=alone)


def test_what_a_method_needs_of_the_others() -> None:
    def needs(name: str, *models: str) -> set[Any]:
        return {n.ability for n in plan(name, 437, models=frozenset(models)).needs}

    states = {Policy.prompt_states}  # for the default route
    made = {Suite.reference, Suite.synthetic}
    assert needs("trace") == needs("single_capability") == made | states
    assert needs("select") == {Suite.reference} | states
    assert needs("prompt_only") == {Suite.reference} and needs("joint") == made
    assert needs("trace", "analyst", "generator") == needs("select", "analyst") == states
    assert needs("untargeted") == {Suite.synthetic}
    assert needs("sft") == {Trainer.learner, Suite.reference}
    assert needs("grpo") == needs("gepa") == needs("base") == set()
    finish = method("joint", finish=0.25).plan(PlannedRun(437, 64, ScriptedTrainer()))
    assert Trainer.check_start in {n.ability for n in finish.needs}
    asks = method("trace", route="zero_shot").plan(PlannedRun(437, 64, ScriptedTrainer()))
    assert asks.routed and Policy.label_logprobs in {n.ability for n in asks.needs}
    assert not plan("trace", 437).routed


def test_the_router_of_a_beginning_is_planned_for() -> None:
    router = {"kind": "zero_shot", "skills": []}
    begun = Beginning(AgentSpec("m", "v", "", (AdapterRef("a", "x"),), router), ())
    assert plan("base", 0) == MethodPlan(learns=False)
    begun_plan = with_beginning(plan("base", 0), begun)
    assert begun_plan == MethodPlan(adapters=1, routed=True, learns=False)
