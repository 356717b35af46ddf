"""Rewards and advantages: each by an example worked by hand, and all against a slow implementation
that goes through states step by step."""

from __future__ import annotations

import math
import random
from typing import Any

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


def rollout(turns: str, *met: int | None) -> Rollout:
    """Two turns: the first has A (0.5), B (0.25) and C after B (0.25), the second D (1). `met`: the
    step of each."""
    a, b, c, d = met
    checks = (
        Check(0, "A", 0.5, (), a),
        Check(0, "B", 0.25, (), b),
        Check(0, "C", 0.25, ("B",), c),
        Check(1, "D", 1.0, (), d),
    )
    return Rollout(tuple(map(int, turns)), checks)


FULL = rollout("0011", 0, 0, 1, 3)
HALF = rollout("00", 0, None, None, None)
SAME = rollout("01", 0, 0, 0, 1)  # C at the same step as B, on which it depends


def test_the_reward_of_a_trajectory_by_hand() -> None:
    how = Assignment()
    assert reward(FULL, how) == 1.0
    assert reward(HALF, how) == 0.25  # (0.5 + 0) / 2: the turn it did not reach costs
    assert reward(SAME, how) == 0.875  # (0.75 + 1) / 2
    assert reward(SAME, Assignment(dependencies=False)) == 1.0
    assert reward(HALF, Assignment(weights=False)) == pytest.approx(1 / 6)
    assert turn_rewards(SAME, how) == {0: 0.75, 1: 1.0}


def test_advantages_of_trajectories_by_hand() -> None:
    found = advantages([FULL, HALF, SAME], Assignment())
    mean = (1 + 0.25 + 0.875) / 3
    expected = [[1 - mean] * 4, [0.25 - mean] * 2, [0.875 - mean] * 2]
    assert [pytest.approx(e) for e in expected] == found


def test_advantages_of_turns_by_hand() -> None:
    found = advantages([FULL, HALF, SAME], Assignment("turn", holders=2))
    first = (1 + 0.5 + 0.75) / 3
    assert found[0] == pytest.approx([1 - first] * 2 + [0.0] * 2)
    assert found[1] == pytest.approx([0.5 - first] * 2)
    assert found[2] == pytest.approx([0.75 - first, 0.0])
    late = rollout("0011", 0, 0, 1, None)
    found = advantages([FULL, late, HALF], Assignment("turn", holders=2))
    assert found[0][2:] == [0.5, 0.5] and found[1][2:] == [-0.5, -0.5]  # HALF is in no baseline
    found = advantages([FULL, late, HALF], Assignment("turn", holders=3))
    assert found[0][2:] == [0.0, 0.0]  # two rollouts are too few


def test_advantages_of_steps_by_hand() -> None:
    """Shares: A 3/3, B 2/3, C 1/3 (SAME has no event of it), D 2/2 of those that reached it."""
    found = advantages([FULL, HALF, SAME], Assignment("step", holders=2))
    # FULL, step 0: A (1 - 1), B (1 - 2/3); C is not eligible before B. Step 1: C (1 - 1/3).
    assert found[0] == pytest.approx([0.25 * (1 / 3) / 0.75, 2 / 3, 0.0, 0.0])
    # HALF, step 0: A 0, B (0 - 2/3); step 1: only B is left that is eligible.
    assert found[1] == pytest.approx([0.25 * (-2 / 3) / 0.75, -2 / 3])
    assert found[2] == pytest.approx([0.25 * (1 / 3) / 0.75, 0.0])


def test_the_deviation_is_an_option() -> None:
    group = [FULL, HALF]
    plain = advantages(group, Assignment())
    divided = advantages(group, Assignment(deviation=True))
    deviation = 0.75 / math.sqrt(2)
    assert plain[0][0] == pytest.approx(0.375)
    assert divided[0][0] == pytest.approx(0.375 / deviation, rel=1e-5)


@pytest.mark.parametrize("level", ["trajectory", "turn", "step"])
def test_a_void_rollout_is_in_no_baseline(level: Level) -> None:
    how = Assignment(level, holders=2)
    with_void = advantages([FULL, None, HALF], how)
    assert with_void[1] == []
    assert [with_void[0], with_void[2]] == advantages([FULL, HALF], how)
    assert advantages([None, None], how) == [[], []]
    assert advantages([FULL, FULL], how) == [[0.0] * 4] * 2


def test_unreadable_calls_are_steps_that_no_environment_heard() -> None:
    user, tool = {"role": "user", "content": "a"}, {"role": "tool", "content": "b"}
    reply = {"role": "assistant", "content": "x"}
    turns = (
        Turn((user,), reply, malformed="no JSON"),
        Turn((tool,), reply),
        Turn((user,), reply),
    )
    checks = (Check(0, "A", 1.0, (), 0), Check(1, "B", 1.0, (), 1))
    score = Score(1.0, True, checks=checks)
    whole = Trajectory("t", 0, "base", (), turns, (), StopReason.DONE, score)
    found = rollout_of(whole)
    assert found is not None and found.turns == (0, 0, 1)
    assert [c.step for c in found.checks] == [1, 2]
    lost = Trajectory("t", 0, "base", (), turns, (), StopReason.ERROR, None, Failure(At.JUDGE, "x"))
    assert rollout_of(lost) is None


# -- the slow implementation ----------------------------------------------------------------------


def slow(group: list[Rollout], how: Assignment) -> list[list[float]]:
    """The same from the definitions: walks through every state of every rollout."""
    walked = [walk(rollout, how) for rollout in group]
    if how.level == "trajectory":
        totals = [sum(sum(e.values()) for e in w["events"]) / w["length"] for w in walked]
        return [[v] * len(r.turns) for v, r in zip(centre(totals, how), group, strict=True)]
    out = [[0.0] * len(r.turns) for r in group]
    if how.level == "turn":
        for turn in range(10):
            who = [n for n, r in enumerate(group) if turn in r.turns]
            if len(who) < how.holders:
                continue
            gains = [
                sum(v for e in walked[n]["events"] for (t, _), v in e.items() if t == turn)
                for n in who
            ]
            for n, value in zip(who, centre(gains, how), strict=True):
                out[n] = [value if t == turn else old
                          for t, old in zip(group[n].turns, out[n], strict=True)]  # fmt: skip
        return out
    for n, r in enumerate(group):
        for step, turn in enumerate(r.turns):
            top = bottom = 0.0
            for check in r.checks:
                key = (check.turn, check.item)
                who = [m for m, other in enumerate(group) if check.turn in other.turns]
                if check.turn != turn or len(who) < how.holders:
                    continue
                before = walked[n]["states"][step]
                ready = all((turn, name) in before for name in check.after)
                if key in before or (how.dependencies and not ready):
                    continue
                ever = [float(any(key in e for e in walked[m]["events"])) for m in who]
                later = [s for s in range(step, len(r.turns)) if key in walked[n]["events"][s]]
                got = float(bool(later))
                scale = deviation(ever) if how.deviation else 1.0
                weight = walked[n]["weights"][key]
                top += weight * (got - sum(ever) / len(ever)) / scale
                bottom += weight
            out[n][step] = top / bottom if bottom else 0.0
    return out


def walk(r: Rollout, how: Assignment) -> dict[str, Any]:
    """States before each step, the events of each step with their weights, and the weights."""
    weights: dict[tuple[int, str], float] = {}
    for turn in {c.turn for c in r.checks}:
        items = [c for c in r.checks if c.turn == turn]
        total = sum(c.weight if how.weights else 1 for c in items)
        weights |= {(turn, c.item): (c.weight if how.weights else 1) / total for c in items}
    state: set[tuple[int, str]] = set()
    states, events = [], []
    for step in range(len(r.turns)):
        states.append(set(state))
        flips = [c for c in r.checks if c.step == step]
        counted = [
            c for c in flips
            if not how.dependencies or all((c.turn, name) in states[-1] for name in c.after)
        ]  # fmt: skip
        events.append({(c.turn, c.item): weights[c.turn, c.item] for c in counted})
        state |= {(c.turn, c.item) for c in flips}
    return {
        "states": states, "events": events, "weights": weights,
        "length": len({c.turn for c in r.checks}),
    }  # fmt: skip


def centre(values: list[float], how: Assignment) -> list[float]:
    mean = sum(values) / len(values)
    scale = deviation(values) if how.deviation else 1.0
    return [(v - mean) / scale if len(values) > 1 else 0.0 for v in values]


def deviation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    found = (sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)) ** 0.5
    return found + 1e-6 if found > 1e-8 else 1.0


def drawn(rng: random.Random) -> list[Rollout]:
    """A group of rollouts of one checklist, which may end early and satisfy anything anywhere."""
    wanted: list[Check] = []
    for turn in range(rng.randint(1, 3)):
        names = "ABCD"[: rng.randint(1, 4)]
        weights = [rng.random() + 0.1 for _ in names]
        for n, name in enumerate(names):
            after = tuple(other for other in names[:n] if rng.random() < 0.4)
            wanted.append(Check(turn, name, weights[n] / sum(weights), after))
    group = []
    for _ in range(rng.randint(2, 7)):
        turns: list[int] = []
        for turn in range(rng.randint(1, wanted[-1].turn + 1)):
            turns += [turn] * rng.randint(1, 4)
        checks = []
        for c in wanted:
            steps = [n for n, turn in enumerate(turns) if turn == c.turn]
            met = rng.choice(steps) if steps and rng.random() < 0.6 else None
            checks.append(Check(c.turn, c.item, c.weight, c.after, met))
        group.append(Rollout(tuple(turns), tuple(checks)))
    return group


@pytest.mark.parametrize("level", ["trajectory", "turn", "step"])
def test_the_formulas_agree_with_a_slow_implementation(level: Level) -> None:
    rng = random.Random(f"rewards/{level}")
    learned = 0
    for _ in range(300):
        how = Assignment(
            level,
            weights=rng.random() < 0.7,
            dependencies=rng.random() < 0.7,
            holders=rng.choice([2, 3, 5]),
            deviation=rng.random() < 0.5,
        )
        group = drawn(rng)
        found, expected = advantages([*group], how), slow(group, how)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-7)
        learned += any(value for values in found for value in values)
    assert learned > 150
