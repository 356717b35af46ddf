"""Batches in parts: the same episodes, in the same order, with any number of processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from models import save_model
from playing import play
from toy import ToyEnv, ToySuite, toy_task

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_json
from trace_bench.core.types import AgentSpec, Boundary, Task, Trajectory
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.play.shards import divided
from trace_bench.play.steps import Faults
from trace_bench.policies.local import LocalPolicy

Kept = list[tuple[int, Trajectory]]


class Alike(ToySuite):
    forks = True


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> LocalPolicy:
    return LocalPolicy(save_model(tmp_path_factory.mktemp("m") / "model"), batch=8)


def played(policy: LocalPolicy, tasks: list[Task], **how: Any) -> tuple[Kept, list[Trajectory]]:
    """The episodes in the order in which they ended, and in the batch's."""
    ended: Kept = []
    how.setdefault("suite", Alike())
    out = play(
        policy, how.pop("suite"), AgentSpec("m"), tasks, range(len(tasks)),
        max_turns=3, max_tokens=12, on_episode=lambda i, t: ended.append((i, t)), **how,
    )  # fmt: skip
    assert not children(), "no process is left"
    return ended, out


EARLIER: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def _earlier() -> None:
    """The children that tests of other files have left in this process are not this one's."""
    EARLIER.clear()
    EARLIER.update(psutil.Process().children())


def children() -> set[psutil.Process]:
    return set(psutil.Process().children()) - EARLIER


def test_whole_groups_are_dealt_out_in_turn() -> None:
    tasks = [toy_task(n) for n in (0, 0, 0, 1, 2, 2, 3, 0)]
    assert divided(tasks, 2) == [[0, 1, 2, 4, 5, 7], [3, 6]]
    assert divided(tasks, 3) == [[0, 1, 2, 6], [3, 7], [4, 5]]
    assert divided(tasks[:3], 4) == [[0, 1, 2]] and divided([], 2) == []


def test_any_number_of_processes_plays_the_same_episodes_in_the_same_order(
    policy: LocalPolicy,
) -> None:
    tasks = [toy_task(i // 4, patience=i // 4 % 3) for i in range(36)]
    one = played(policy, tasks, shards=3)
    assert [t.task for t in one[1]] == [t.id for t in tasks]
    assert len({len(t.turns) for t in one[1]}) > 1
    order = [i for i, _ in one[0]]
    assert sorted(order[:12]) == divided(tasks, 3)[0], "part after part"
    for workers in (2, 3):
        assert played(policy, tasks, shards=3, workers=workers) == one


def test_a_suite_that_does_not_say_so_is_played_by_this_process(policy: LocalPolicy) -> None:
    pids: list[int] = []

    class Here(ToySuite):
        def make(self) -> ToyEnv:
            pids.append(os.getpid())
            return super().make()

    tasks = [toy_task(i) for i in range(6)]
    out = played(policy, tasks, suite=Here(), shards=2, workers=2)
    assert pids == [os.getpid()] * 6
    assert out == played(policy, tasks, shards=2, workers=2)


def test_a_sandbox_is_played_by_this_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its workers answer one process, also where the suite inside works in a fork."""
    assert EmbeddedSuite.forks
    given = ("method=base", "env=toolsandbox", "sandbox=process", "evaluation.limit=8")
    parts = ("policy.shards=2", "policy.workers=2")
    assert main([*given, *parts, f"run_dir={tmp_path / 'run'}"]) == 0
    told = capsys.readouterr()
    assert "one process plays all episodes of toolsandbox/embedded" in told.out + told.err
    health = read_json(tmp_path / "run/summary.json")["health"]["evaluation"]
    assert health["episodes"] == 8 and not health["lost"], health


def test_what_ends_an_episode_elsewhere_is_kept_here(policy: LocalPolicy, tmp_path: Path) -> None:
    tasks = [toy_task(i, broken="step" if i % 2 else None) for i in range(8)]
    for workers in (1, 2):
        faults = Faults(tmp_path / f"{workers}.txt")
        _, out = played(policy, tasks, shards=2, workers=workers, faults=faults)
        assert {t.failure.boundary for t in out if t.failure} == {Boundary.ENVIRONMENT}
        assert faults.where
    one, two = ((tmp_path / f"{n}.txt").read_text() for n in (1, 2))
    assert one.count("broken at step") == two.count("broken at step") > 0


def refuse() -> None:
    raise UserError("adapter 'a' is not there. Change `agent`.")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("ends", "kind", "said"),
    [
        (refuse, UserError, "^adapter 'a' is not there. Change `agent`.$"),
        (lambda: int("x"), RuntimeError, "(?s)policy.workers.*ValueError: "),
        (kill, UserError, "ended by itself .-9.*policy.workers"),
    ],
)
def test_a_process_that_ends_ends_the_batch(
    policy: LocalPolicy,
    ends: Callable[[], Any],
    kind: type[Exception],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collect, here = policy.collect, os.getpid()
    monkeypatch.setattr(
        policy, "collect", lambda: collect() if os.getpid() == here else [ends(), collect()][1]
    )
    with pytest.raises(kind, match=said):
        played(policy, [toy_task(i) for i in range(4)], shards=2, workers=2)
    assert not children()
    policy.close()


def test_who_hears_of_an_episode_may_end_the_batch(policy: LocalPolicy) -> None:
    def enough(place: int, trajectory: Trajectory) -> None:
        raise UserError(f"enough at {place}")

    tasks = [toy_task(i) for i in range(40)]
    with pytest.raises(UserError, match="enough"):
        play(
            policy, Alike(), AgentSpec("m"), tasks, range(40), max_tokens=12,
            shards=2, workers=2, on_episode=enough,
        )  # fmt: skip
    assert not children()
