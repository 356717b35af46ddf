"""What one agent has run is not run again for another one that would act alike."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from toy import ToySuite, toy_task

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.protocols import Prompt, State, TurnRequest
from trace_bench.core.store import read_lines, stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Message
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import IdlePolicy, ScriptedPolicy
from trace_bench.runner.evaluate import EvaluationPlan, Terms
from trace_bench.runner.evaluation import Evaluation
from trace_bench.runner.progress import Clock, Progress

TASKS = 12
KINDS = 6
ADAPTERS = (AdapterRef("a@1", "a"), AdapterRef("b@1", "b"))
BASE = AgentSpec("m")


class AdapterPolicy(ScriptedPolicy):
    """What it does follows from seed and adapter, as with a model. Counts what it plays. Its state
    of a prompt tells which of six kinds it is."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: Counter[int] = Counter()
        self.played: Counter[str | None] = Counter()  # episodes by adapter

    def reply(self, request: TurnRequest) -> Message:
        turn = self._turns[request.episode]
        self.played[request.adapter] += turn == 0
        self._turns[request.episode] += 1
        draw = stable_seed(request.seed, request.adapter, turn)
        if draw % 3 == 0:
            return text_message("")
        return call_message("add", {"number": draw % 9})

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        kinds = [stable_seed(str(messages[-1]["content"])) % KINDS for messages, _ in prompts]
        return [[float(kind == n) for n in range(KINDS)] for kind in kinds]

    def release(self, episode: int) -> None:
        super().release(episode)
        del self._turns[episode]


class ServerPolicy(AdapterPolicy):
    repeatable = False


class AskingSuite(ToySuite):
    def asks_user(self) -> bool:
        return True


class DevSuite(ToySuite):
    """The second half of its tasks is for development."""

    def splits(self) -> tuple[str, ...]:
        return ("dev", "test")

    def tasks(self, split: str) -> list:
        return [toy_task(i) for i in (range(TASKS) if split == "test" else range(20, 20 + TASKS))]


def routed(adapters: tuple[AdapterRef, ...] = ADAPTERS) -> AgentSpec:
    """Chooses by a task's first message: the base model, or one of two adapters."""
    labels = [None, *(a.name for a in adapters)]
    rows = [[float(kind % len(labels) == n) for kind in range(KINDS)] for n in range(len(labels))]
    router = {"kind": "classifier", "labels": labels, "weights": rows, "bias": [0.0] * len(labels)}
    return AgentSpec("m", "v1", adapters=adapters, router=router)


class AskingDevSuite(DevSuite, AskingSuite):
    pass


def evaluation(folder: Path, policy: ScriptedPolicy, suite: ToySuite) -> Evaluation:
    folder.mkdir(parents=True, exist_ok=True)
    return Evaluation(
        folder,
        Player(policy, Suites(suite)),
        Terms(seed=1, temperature=1.0),
        EvaluationPlan(tuple(suite.tasks("test")), trials=2),
        EvaluationPlan(tuple(suite.tasks("dev"))),
        True,
        (10, 20, 30),
        progress=Progress(0, stream=io.StringIO()),
        clock=Clock(folder / "timing.json"),
    )


def whole(folder: Path, policy: ScriptedPolicy, suite: ToySuite | None = None) -> Evaluation:
    """All that a run evaluates, in its order."""
    out = evaluation(folder, policy, suite or DevSuite())
    out.base(BASE)
    out.floors({"idle": IdlePolicy()})
    out.checkpoint(10, BASE, 11)
    out.checkpoint(20, routed(ADAPTERS[:1]), 21)
    out.checkpoint(30, routed(), 31)
    out.trained("final", "final evaluation", BASE, routed(), keep=True)
    out.adapters(BASE, routed())
    joint = AgentSpec("m", "j", adapters=(AdapterRef("a@1", "joint/a"),))
    out.trained("joint", "evaluation of one joint adapter", BASE, joint)
    out.close()
    return out


FILES = ("evaluation.jsonl", "curve.jsonl", "evaluation_trajectories.jsonl")


def rows(folder: Path) -> dict[str, list[str]]:
    """The files as sets of lines: what is copied is written before what is played."""
    return {name: sorted((folder / name).read_text().splitlines()) for name in FILES}


def test_the_same_rows_with_half_of_the_episodes(tmp_path: Path) -> None:
    one, other = AdapterPolicy(), ServerPolicy()
    reused, played = whole(tmp_path / "reused", one), whole(tmp_path / "played", other)
    assert rows(tmp_path / "reused") == rows(tmp_path / "played")
    assert reused.count == played.count
    assert (reused.outcomes, reused.points) == (played.outcomes, played.points)
    assert reused.routed == played.routed
    # Each test task twice (two trials) by each that can act, and each development task by whom the
    # routes choose; the yardstick's adapter has a name that the run's has too, and is another one.
    assert one.played == {None: 3 * TASKS, "a@1": 4 * TASKS + 8, "b@1": 2 * TASKS + 3}
    assert sum(other.played.values()) == (2 * 5 + 3) * TASKS


def test_nothing_is_reused_where_it_would_not_come_out_again(tmp_path: Path) -> None:
    """A server, or a user whom a model plays."""
    asking = AdapterPolicy()
    whole(tmp_path / "a", asking, AskingDevSuite())
    assert sum(asking.played.values()) == (2 * 5 + 3) * TASKS


@pytest.mark.parametrize("name", FILES[:2])
@pytest.mark.parametrize("kept", [0.4])
def test_a_kill_in_the_middle_changes_nothing(tmp_path: Path, name: str, kept: float) -> None:
    policy = AdapterPolicy()
    whole(tmp_path, policy)
    expected = {file: (tmp_path / file).read_bytes() for file in FILES}
    lines = expected[name].splitlines(keepends=True)
    place = int(kept * len(lines))
    (tmp_path / name).write_bytes(b"".join(lines[:place]) + lines[place][:25])
    again = AdapterPolicy()
    whole(tmp_path, again)
    assert {file: (tmp_path / file).read_bytes() for file in FILES} == expected
    assert sum(again.played.values()) < sum(policy.played.values())


@pytest.mark.parametrize("kept", [30, 47])
def test_a_kill_among_kept_trajectories_changes_nothing(tmp_path: Path, kept: int) -> None:
    """In the final evaluation, part of which is copied from the base model's."""
    whole(tmp_path, AdapterPolicy())
    expected = {file: (tmp_path / file).read_bytes() for file in FILES}
    (tmp_path / FILES[2]).write_bytes(b"".join(expected[FILES[2]].splitlines(True)[:kept]))
    done = [x for x in read_lines(tmp_path / FILES[0]) if x["agent"] not in ("final", "joint")]
    count = kept - 2 * TASKS  # of final's lines, less the one that the kill came before
    before = [x for x in done if not x["agent"].startswith("adapter")]
    final = [x for x in read_lines(tmp_path / FILES[0]) if x["agent"] == "final"][: count - 1]
    text = "".join(json.dumps(x, separators=(",", ":")) + "\n" for x in [*before, *final])
    (tmp_path / FILES[0]).write_text(text)
    whole(tmp_path, AdapterPolicy())
    assert {file: (tmp_path / file).read_bytes() for file in FILES} == expected


def test_a_lost_episode_is_no_answer_for_another_agent(tmp_path: Path) -> None:
    class Broken(DevSuite):
        def tasks(self, split: str) -> list:
            return [*super().tasks(split)[:3], toy_task(3, "step")]

    policy = AdapterPolicy()
    out = whole(tmp_path, policy, Broken())
    assert [o.lost for o in out.outcomes["final"]] == [False, False, False, True] * 2
    lines = [x for x in read_lines(tmp_path / FILES[0]) if x["agent"] == "adapter:a@1"]
    lost = [x for x in lines if x["score"] is None]
    assert {x["attempt"] for x in lost} == {0, 1} and len(lost) == 4  # tried for itself
    assert all(x["attempt"] == 0 for x in lines if x["score"] is not None)
