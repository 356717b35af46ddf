"""BabyAI: bounds, splits, what a line says, labels of its episodes, sandboxes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean

import pytest
from playing import FunctionPolicy, acts, play, scores
from sandboxes import chosen
from shared import needs

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, RunContext, perform
from trace_bench.core.types import AgentSpec, Message, StopReason, Task
from trace_bench.envs.babyai import DEFAULT, DOORS, BabyAISuite
from trace_bench.methods.looking.capabilities import Label
from trace_bench.methods.looking.evidence import heard_of
from trace_bench.methods.looking.rules import label
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy, ReferencePolicy, text_message

pytestmark = [needs("minigrid", "the extra babyai is not installed"), pytest.mark.worlds]

LOCKED = "recovers_from_errors"


@pytest.fixture(scope="module")
def suite() -> BabyAISuite:
    return BabyAISuite()


@pytest.fixture(scope="module")
def wide() -> BabyAISuite:
    """Levels of two parts too, of which two seeds may have one world."""
    return BabyAISuite(levels=(*DEFAULT, "OpenTwoDoors", "UnlockPickup"))


def of_level(suite: BabyAISuite, level: str, split: str = "dev") -> list[Task]:
    return [task for task in suite.tasks(split) if task.data["level"] == level]


def test_floors_and_ceiling_on_the_development_split(wide: BabyAISuite) -> None:
    tasks = wide.tasks("dev")[::3]

    def success(policy: Policy) -> float:
        return mean(score.success for score in scores(policy, wide, tasks, max_turns=40))

    assert success(ReferencePolicy(wide)) == 1.0
    assert success(RandomPolicy()) <= 0.1 and success(IdlePolicy()) == 0.0


def test_calls_beyond_the_limit_do_nothing() -> None:
    suite = BabyAISuite(steps=3)
    solution = BabyAISuite().reference
    task = next(t for t in suite.tasks("dev") if len(solution(t)) > 3)
    env = suite.make()
    env.reset(task)
    calls = [call for m in solution(task) for call in m["tool_calls"]]
    step = env.step({"role": "assistant", "content": "", "tool_calls": calls})
    assert step.score is not None and not step.score.success
    assert step.messages[-1]["content"] == "ValueError: it is over"


def test_splits_share_no_seed_and_no_world(suite: BabyAISuite) -> None:
    seeds = {split: {task.data["seed"] for task in suite.tasks(split)} for split in suite.sizes}
    assert [len(found) for found in seeds.values()] == list(suite.sizes.values())
    assert len(set().union(*seeds.values())) == sum(map(len, seeds.values()))
    assert all(suite.synthetic(LOCKED, n).data["seed"] >= 10_000_000 for n in range(50))
    homes: dict[str, set[str]] = {}
    for split in suite.sizes:
        for task in suite.tasks(split)[:30]:
            homes.setdefault(suite.world(task.data), set()).add(split)
    assert [found for found in homes.values() if len(found) > 1] == []


@pytest.mark.parametrize("level", DOORS)
def test_doors_in_their_order_one_of_which_is_locked(level: str) -> None:
    suite = BabyAISuite(levels=(level,))
    parts, tasks = DOORS[level], suite.tasks("dev")[:30]
    assert (
        suite.capabilities() == [LOCKED, "completes_all_parts"][:parts] == tasks[0].data["requires"]
    )
    for task in tasks:
        steps = perform(suite.make(), task, suite.reference(task))
        score, texts = steps[-1].score, [str(step.messages[-1]["content"]) for step in steps]
        assert score is not None and score.success and len(score.milestones) == parts
        assert sum("locked" in text for text in texts) > 0
    assert sum(score.success for score in scores(RandomPolicy(), suite, tasks, max_turns=40)) <= 1
    assert {suite.synthetic(LOCKED, n).data["level"] for n in range(40)} == {"OpenDoor", "Doors1"}


def test_doors_of_two_splits_are_never_the_same() -> None:
    suite = BabyAISuite(levels=("Doors1",))
    worlds = {s: {suite.world(t.data) for t in suite.tasks(s)} for s in ("train", "dev", "test")}
    assert (
        not worlds["train"] & (worlds["dev"] | worlds["test"])
        and not worlds["dev"] & worlds["test"]
    )


def test_a_line_says_what_the_agent_can_see(suite: BabyAISuite) -> None:
    task = of_level(suite, "UnlockLocal")[0]
    env = suite.make()
    steps = perform(env, task, suite.reference(task))
    texts = [str(step.messages[-1]["content"]) for step in steps]
    assert texts[0].startswith("open the door. ")
    assert not any("\n" in text for text in texts)
    locked = [text for text in texts if "locked" in text]
    assert locked and "holding" in locked[-1] and locked[-1] == texts[-2]
    assert texts[-1] == "done" and steps[-1].stop is StopReason.DONE
    assert len(steps[0].tools) == 6
    assert not any(tool["function"]["parameters"]["properties"] for tool in steps[0].tools)


def test_what_has_no_effect_is_an_error_and_costs_a_call(suite: BabyAISuite) -> None:
    task = of_level(suite, "OpenDoor")[0]
    useless = acts("pickup drop forward forward forward forward forward forward forward pickup")
    texts = [s.messages[0]["content"] for s in perform(suite.make(), task, useless)[1:]]
    assert texts[:2] == ["ValueError: nothing to take", "ValueError: nothing to drop"]
    assert texts[8].endswith("in the way")
    steps = perform(suite.make(), task, acts("drop " * 60))
    assert len(steps) == 41 and steps[-1].stop is StopReason.TURN_LIMIT


def test_the_expert_goes_on_from_anywhere(wide: BabyAISuite) -> None:
    rng, solved = random.Random(0), 0
    for task in wide.tasks("dev")[:40]:
        env = wide.make()
        noise = acts(" ".join(rng.choices(("left", "right", "forward", "pickup", "toggle"), k=8)))
        last = perform(env, task, noise)[-1]
        before = env.score()
        rest = () if last.done else env.solution()
        assert env.score() == before  # looking ahead changes nothing
        for action in rest:
            last = env.step(action)
        solved += last.score is not None and last.score.success
    assert solved >= 38


def labelled(suite: BabyAISuite, task: Task, actions: Sequence[Message]) -> dict[str, Label]:
    left = iter([*actions, text_message("I give up.")])
    policy = FunctionPolicy(lambda request: next(left))
    (played,) = play(policy, suite, AgentSpec("x"), [task], [0], max_turns=40)
    return label(heard_of(suite, task), played)


def test_who_gives_up_at_a_locked_door_lacks_recovery(suite: BabyAISuite) -> None:
    task = of_level(suite, "UnlockLocal")[0]
    right = list(suite.reference(task))
    tried = [*acts("toggle"), *right]
    cases = {Label.NA: right, Label.PRESENT: tried, Label.LACKING: tried[:-1]}  # NA: nothing failed
    for found, actions in cases.items():
        assert labelled(suite, task, actions)[LOCKED] is found


def test_who_opens_one_of_two_doors_does_not_complete(wide: BabyAISuite) -> None:
    task = of_level(wide, "OpenTwoDoors")[0]
    right = list(wide.reference(task))
    for actions, found in ((right, Label.PRESENT), (right[:-1], Label.LACKING), ([], Label.NA)):
        assert labelled(wide, task, actions)["completes_all_parts"] is found


def test_a_capability_has_levels(suite: BabyAISuite, wide: BabyAISuite) -> None:
    assert suite.capabilities() == [LOCKED]
    assert wide.capabilities() == [LOCKED, "completes_all_parts"]
    drawn = [suite.synthetic(LOCKED, n) for n in range(200)]
    contrast = [task for task in drawn if task.data["contrast"]]
    assert 20 <= len(contrast) <= 60
    assert {task.data["level"] for task in contrast} == {"OpenDoor"}
    assert all(task.data["requires"] == [LOCKED] for task in drawn if task not in contrast)
    assert [suite.task(task.id) for task in drawn] == drawn


def test_bad_settings_are_refused_with_what_is_allowed(suite: BabyAISuite) -> None:
    with pytest.raises(UserError, match="unknown level 'GoToMoon'; allowed: ActionObjDoor, "):
        BabyAISuite(levels=("GoToMoon",))
    with pytest.raises(UserError, match="unknown split 'all'; allowed: demo, train, dev, test"):
        suite.tasks("all")
    with pytest.raises(UserError, match="no task 'babyai/default/dev/9999'"):
        suite.task("babyai/default/dev/9999")
    own: BabyAISuite = chosen("babyai", levels=["GoToLocal", "PickupLoc"]).make(RunContext())
    assert own.variant == "GoToLocal+PickupLoc" and own.capabilities() == []
    assert suite.levels == DEFAULT and suite.variant == "default"
