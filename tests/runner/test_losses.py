"""Calls of which too many episodes are lost: the run stops with the first cause, and the next start
runs the lost episodes again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_lab import BASE, CountingPolicy
from test_lab import make as make_lab
from toy import ToyEnv, ToySuite, toy_task

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import OnEpisode, PlayElsewhere
from trace_bench.core.store import read_lines, stable_seed
from trace_bench.core.types import Boundary, Failure, Purpose, Step, Task
from trace_bench.play.rollouts import EpisodeBatch
from trace_bench.play.steps import Faults
from trace_bench.runner.lab import RunLab
from trace_bench.runner.ledger import counts


class Outage(ToySuite):
    """The toy world, in which the environments with these numbers cannot be reset."""

    def __init__(self, broken: set[int]) -> None:
        super().__init__()
        self.broken = broken

    def make(self) -> ToyEnv:
        env = super().make()
        if len(self.made) - 1 in self.broken:
            env.reset = self._raise  # type: ignore[method-assign]
        return env

    def _raise(self, task: Task) -> Step:
        raise OSError("no desk")


class Server(CountingPolicy):
    """Plays only what is missing, as an agent behind a server does."""

    repeatable = False


def make(folder: Path, broken: set[int] | None = None, **how: Any) -> RunLab:
    faults = Faults(folder / "failures.txt")
    return make_lab(folder, suite=Outage(broken or set()), faults=faults, **how)


def play(lab: RunLab, by: PlayElsewhere | None = None) -> int:
    """Eight episodes; how many of them are lost."""
    tasks = [toy_task(i) for i in range(8)]
    played = lab.rollouts("one", BASE, tasks, purpose=Purpose.TRAINING, by=by)
    return sum(t.score is None for t in played)


def test_a_call_that_loses_too_much_stops_with_the_first_cause(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        play(make(tmp_path, set(range(2, 8))))
    said = str(caught.value)
    assert said.startswith("one: 5 of 8 episodes were lost, more than max_lost=0.5 allows. The ")
    assert "environment: OSError: no desk (toy/tests/train/0002)" in said
    assert f"Tracebacks: {tmp_path / 'failures.txt'}." in said and "`max_lost`" in said
    text = (tmp_path / "failures.txt").read_text()
    assert text.startswith("toy/tests/train/0002, lost at the boundary environment:\nTraceback")
    assert text.count("Traceback") == 1 and 'raise OSError("no desk")' in text


@pytest.mark.parametrize("policy", [CountingPolicy, Server])
def test_the_next_start_plays_the_lost_episodes_again(tmp_path: Path, policy: Any) -> None:
    """And ends like a run that was never disturbed: every episode has one line in the ledger."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    play(make(whole, policy=policy()))
    for broken in ({0, *range(2, 7)}, {1, 2, 3, 4, 5, 6, 7, 8}):
        with pytest.raises(UserError, match="episodes were lost"):
            play(make(cut, broken, policy=policy()))
    lab = make(cut, policy=policy())
    assert play(lab) == 0
    assert (lab.budget_left(), lab.ledger.left) == (32, 32)
    for name in ("ledger.jsonl", "trajectories.jsonl"):
        assert sorted(contents_of(whole, name)) == sorted(contents_of(cut, name))


def contents_of(folder: Path, name: str) -> list[bytes]:
    return (folder / name).read_bytes().splitlines()


def test_few_lost_episodes_stay_lost(tmp_path: Path) -> None:
    assert play(make(tmp_path, {0, 3, 4, 7})) == 4
    before = (tmp_path / "trajectories.jsonl").read_bytes()
    again = CountingPolicy()
    assert play(make(tmp_path, policy=again)) == 4
    assert again.asked == 0 and (tmp_path / "trajectories.jsonl").read_bytes() == before


def test_the_limit_is_a_setting_that_may_change_between_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of 8 .* more than max_lost=0 allows"):
        play(make(tmp_path, {3}, max_lost=0.0))
    assert play(make(tmp_path, set(range(12)), max_lost=1.0)) == 8


def test_a_lower_limit_is_for_calls_that_are_still_to_come(tmp_path: Path) -> None:
    """What came after a call was made with it as it is."""

    def both(lab: RunLab) -> list[int]:
        lost = []
        for call, count in (("one", 8), ("two", 4)):
            tasks = [toy_task(i) for i in range(count)]
            played = lab.rollouts(call, BASE, tasks, purpose=Purpose.TRAINING)
            lost.append(sum(t.score is None for t in played))
        return lost

    assert both(make(tmp_path, {1, 2, 9})) == [2, 1]
    before = contents_of(tmp_path, "trajectories.jsonl")
    with pytest.raises(UserError, match=r"two: 1 of 4 .* more than max_lost=0 allows"):
        both(make(tmp_path, set(range(8)), max_lost=0.0))
    assert both(make(tmp_path, max_lost=0.0)) == [2, 0]
    assert contents_of(tmp_path, "trajectories.jsonl")[:8] == before[:8]


def test_killed_between_ledger_and_trajectories(tmp_path: Path) -> None:
    """The ledger has forgotten the lost episodes, the trajectories have not."""
    with pytest.raises(UserError):
        play(make(tmp_path, set(range(8))))
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    assert play(make(tmp_path)) == 0
    assert [line["error"] for line in read_lines(tmp_path / "ledger.jsonl")] == [None] * 8


class Elsewhere(PlayElsewhere):
    """Plays the toy world's episodes for the lab, as another process does; `desks` of them are
    broken. Keeps what it was asked to take back."""

    def __init__(self, folder: Path, desks: set[int]) -> None:
        self.lab, self.taken = make(folder, desks), list[list[int]]()

    def __call__(self, which: Sequence[int], ended: OnEpisode) -> None:
        tasks = tuple(toy_task(i) for i in which)
        seeds = tuple(stable_seed(self.lab.seed, "one", i) for i in which)
        for i, t in zip(which, self.lab.player.play(EpisodeBatch(BASE, tasks, seeds)), strict=True):
            ended(i, t)

    def take_back(self, missing: Sequence[int]) -> None:
        self.taken.append(list(missing))


def test_a_trainer_elsewhere_that_goes_back_plays_them_again(tmp_path: Path) -> None:
    by = Elsewhere(tmp_path / "other", {1, 2, 3, 4, 5})
    with pytest.raises(UserError, match=r"5 of 8 .* the lost episodes are run again"):
        play(make(tmp_path / "run"), by)
    assert by.taken == []
    by = Elsewhere(tmp_path / "again", set())
    assert play(make(tmp_path / "run"), by) == 0
    assert by.taken == [[1, 2, 3, 4, 5, 6, 7]], "6 and 7 had not been heard of"
    lines = read_lines(tmp_path / "run/ledger.jsonl")
    assert sorted(x["index"] for x in lines) == list(range(8))


COUNTED = [
    ("toy", Boundary.ENVIRONMENT, True),
    ("toy", Boundary.USER, True),
    ("generated/a", Boundary.POLICY, True),
    ("generated/a", Boundary.ENVIRONMENT, False),
    ("generated/a", Boundary.SANDBOX, False),
]


@pytest.mark.parametrize(("env", "boundary", "counted"), COUNTED)
def test_a_broken_generated_world_is_a_finding(env: str, boundary: Boundary, counted: bool) -> None:
    task = Task("x", env, "train", 0)
    assert counts(task, Failure(boundary, "gone")) is counted
    assert not counts(task, None)
