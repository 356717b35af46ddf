"""Rewards and advantages, each by an example worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trace_bench.checklists.rewards import (
    Assignment,
    Level,
    Rollout,
    advantages,
    reward,
    rollout_of,
    turn_rewards,
)
from trace_bench.core.types import Boundary as At
from trace_bench.core.types import Check, Failure, Score, StopReason, Trajectory, Turn

PLAIN = Assignment(deviation=False)
BY_STEP = replace(PLAIN, level="step", holders=2)


def rollout(turns: str, *met: int | None) -> Rollout:
    """Two turns: the first has A (0.5), B (0.25) and C after B (0.25), the second D (1). `met`: the
    step of each."""
    items = (0, "A", 0.5, ()), (0, "B", 0.25, ()), (0, "C", 0.25, ("B",)), (1, "D", 1.0, ())
    checks = tuple(Check(*item, step) for item, step in zip(items, met, strict=True))
    return Rollout(tuple(map(int, turns)), checks)


FULL = rollout("0011", 0, 0, 1, 3)
HALF = rollout("00", 0, None, None, None)
SAME = rollout("01", 0, 0, 0, 1)  # C at the same step as B, on which it depends


def test_the_reward_of_a_trajectory_by_hand() -> None:
    how = PLAIN
    assert reward(FULL, how) == 1.0
    assert reward(HALF, how) == 0.25  # (0.5 + 0) / 2: the turn it did not reach costs
    assert reward(SAME, how) == 0.875  # (0.75 + 1) / 2
    assert reward(SAME, replace(PLAIN, dependencies=False)) == 1.0
    assert reward(HALF, replace(PLAIN, weights=False)) == pytest.approx(1 / 6)
    assert turn_rewards(SAME, how) == {0: 0.75, 1: 1.0}


def test_advantages_of_trajectories_by_hand() -> None:
    found = advantages([FULL, HALF, SAME], PLAIN)
    mean = (1 + 0.25 + 0.875) / 3
    expected = [[1 - mean] * 4, [0.25 - mean] * 2, [0.875 - mean] * 2]
    assert [pytest.approx(e) for e in expected] == found


def test_advantages_of_turns_by_hand() -> None:
    found = advantages([FULL, HALF, SAME], replace(PLAIN, level="turn", holders=2))
    first = (1 + 0.5 + 0.75) / 3
    assert found[0] == pytest.approx([1 - first] * 2 + [0.0] * 2)
    assert found[1] == pytest.approx([0.5 - first] * 2)
    assert found[2] == pytest.approx([0.75 - first, 0.0])
    late = rollout("0011", 0, 0, 1, None)
    found = advantages([FULL, late, HALF], replace(PLAIN, level="turn", holders=2))
    assert found[0][2:] == [0.5, 0.5] and found[1][2:] == [-0.5, -0.5]  # HALF is in no baseline
    found = advantages([FULL, late, HALF], replace(PLAIN, level="turn", holders=3))
    assert found[0][2:] == [0.0, 0.0]  # two rollouts are too few


def test_advantages_of_steps_by_hand() -> None:
    """Shares: A 3/3, B 2/3, C 1/3 (SAME has no event of it), D 2/2 of those that reached it."""
    found = advantages([FULL, HALF, SAME], BY_STEP)
    # FULL, step 0: A (1 - 1), B (1 - 2/3); C is not eligible before B. Step 1: C (1 - 1/3).
    assert found[0] == pytest.approx([0.25 * (1 / 3) / 0.75, 2 / 3, 0.0, 0.0])
    # HALF, step 0: A 0, B (0 - 2/3); step 1: only B is left that is eligible.
    assert found[1] == pytest.approx([0.25 * (-2 / 3) / 0.75, -2 / 3])
    assert found[2] == pytest.approx([0.25 * (1 / 3) / 0.75, 0.0])
    # Without dependencies C counts from the first step on, and SAME has an event of it: 2/3.
    free = advantages([FULL, HALF, SAME], replace(BY_STEP, dependencies=False))
    assert free[0] == pytest.approx([0.5 * (1 / 3), 1 / 3, 0.0, 0.0])
    assert free[1] == pytest.approx([0.5 * (-2 / 3), -2 / 3])
    # All items alike, divided by the deviation of B's events (1, 0, 1) and of C's (1, 0, 0).
    how = replace(BY_STEP, weights=False, deviation=True)
    deviation = math.sqrt(1 / 3)
    assert advantages([FULL, HALF, SAME], how)[0] == pytest.approx(
        [0.5 * (1 / 3) / deviation, 2 / 3 / deviation, 0.0, 0.0], rel=1e-5
    )


def test_the_deviation_is_an_option() -> None:
    group = [FULL, HALF]
    plain = advantages(group, PLAIN)
    divided = advantages(group, Assignment())
    deviation = 0.75 / math.sqrt(2)
    assert plain[0][0] == pytest.approx(0.375)
    assert divided[0][0] == pytest.approx(0.375 / deviation, rel=1e-5)


@pytest.mark.parametrize("level", ["trajectory", "turn", "step"])
def test_a_void_rollout_is_in_no_baseline(level: Level) -> None:
    how = replace(PLAIN, level=level, holders=2)
    with_void = advantages([FULL, None, HALF], how)
    assert with_void[1] == []
    assert [with_void[0], with_void[2]] == advantages([FULL, HALF], how)
    assert advantages([None, None], how) == [[], []]
    assert advantages([FULL, FULL], how) == [[0.0] * 4] * 2


def test_unreadable_calls_are_steps_that_no_environment_heard() -> None:
    user, tool = {"role": "user", "content": "a"}, {"role": "tool", "content": "b"}
    reply = {"role": "assistant", "content": "x"}
    turns = (Turn((user,), reply, malformed="no JSON"), Turn((tool,), reply), Turn((user,), reply))
    checks = (Check(0, "A", 1.0, (), 0), Check(1, "B", 1.0, (), 1))
    score = Score(1.0, True, checks=checks)
    whole = Trajectory("t", 0, "base", (), turns, (), StopReason.DONE, score)
    found = rollout_of(whole)
    assert found is not None and found.turns == (0, 0, 1)
    assert [c.step for c in found.checks] == [1, 2]
    lost = Trajectory("t", 0, "base", (), turns, (), StopReason.ERROR, None, Failure(At.JUDGE, "x"))
    assert rollout_of(lost) is None
