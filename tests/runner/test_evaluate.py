"""Outcomes, the oracle route and the figures made from them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from toy import ToySuite, toy_task

from trace_bench.core.protocols import Policy
from trace_bench.core.store import read_lines
from trace_bench.core.types import AdapterRef, AgentSpec, Figures, Outcome, StopReason
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import RandomPolicy, ReferencePolicy
from trace_bench.runner import evaluation as figures_of
from trace_bench.runner import report
from trace_bench.runner.evaluation import Evaluator, only, routing
from trace_bench.runner.report import Progress
from trace_bench.settings.compose import compose


def outcomes(agent: str, adapter: str | None, similarities: list[float | None]) -> list[Outcome]:
    """Outcomes on tasks 0, 1, ...; 1.0 is a success, None an episode that was lost."""
    found = []
    for i, s in enumerate(similarities):
        score, error = (None, "environment: broken") if s is None else (Figures(s == 1.0, s), None)
        found.append(Outcome(agent, agent, adapter, f"t{i}", 0, score, StopReason.DONE, error, 1))
    return found


BASE = outcomes("base", None, [1.0, 0.2, 0.0, 0.5])
ONE = outcomes("adapter:a-1", "a-1", [1.0, 1.0, 0.0, 0.4])
TWO = outcomes("adapter:b-1", "b-1", [0.0, 0.5, 0.3, 0.4])


def test_the_oracle_takes_the_best_choice_per_task() -> None:
    final = [ONE[0], TWO[1], TWO[2], BASE[3]]
    result = routing({None: BASE, "a-1": ONE, "b-1": TWO}, final)
    assert [o.similarity for o in result.oracle] == [1.0, 1.0, 0.3, 0.5]
    assert [o.adapter for o in result.oracle] == [None, "a-1", "b-1", None]
    # On task 0 the router's adapter ties with the base model; only on task 1 it errs.
    figures = result.figures
    assert (figures.single, figures.agreement) == ("a-1", 0.75)
    assert (figures.decisive, figures.agreement_decisive) == (4, 0.75)
    total = outcomes("final", "a-1*1+b-1*0.35", [1.0, 0.9, 0.5, 0.5])
    summed = routing({None: BASE, "a-1": ONE, "b-1": TWO}, total).figures
    assert summed.agreement == 0.75, "on task 1 an adapter is better, on task 2 the sum"
    same = outcomes("adapter:a-1", "a-1", [1.0, 0.2, 0.0, 0.5])
    figures = routing({None: BASE, "a-1": same}, same).figures
    assert (figures.agreement, figures.decisive) == (1.0, 0), "a choice that does not matter"


def test_only_keeps_one_adapter_and_no_router() -> None:
    refs = (AdapterRef("a-1", "p", "x"), AdapterRef("b-1", "q", "y"))
    agent = AgentSpec("m", "trace-2", "hint", refs, {"kind": "fixed", "adapter": "a-1"})
    spec = only(agent, "b-1")
    assert (spec.adapters, spec.router, spec.prompt) == (refs[1:], None, "hint")
    assert spec.version != agent.version


def test_lost_episodes_are_shown_and_never_scored() -> None:
    lost = outcomes("final", None, [1.0, None, 1.0, 1.0])
    figures = figures_of.score(lost)
    assert (figures.success, figures.n, figures.failures) == (1.0, 3, 1)
    difference = figures_of.difference(lost, BASE)
    assert difference is not None
    assert (difference.n, difference.value) == (3, pytest.approx(2 / 3))
    nothing = figures_of.score(outcomes("final", None, [None, None]))
    assert (nothing.success, nothing.n, nothing.failures) == (None, 0, 2)
    row = figures_of.row("trace", lost, BASE)
    assert row is not None
    assert "(1 lost)" in report.table([row], "title")


def make(folder: Path, policy: Policy, suite: ToySuite) -> Evaluator:
    player = Player(policy, Suites(suite), max_turns=8, max_tokens=8)
    quiet = Progress(0, stream=io.StringIO())
    return Evaluator(folder / "evaluation.jsonl", player, compose(["max_lost=1"]), quiet)


def test_evaluation_is_written_and_answered_from_disk(tmp_path: Path) -> None:
    suite = ToySuite()
    tasks = (toy_task(0), toy_task(1), toy_task(2, "step"))
    agent = AgentSpec("reference")
    evaluator = make(tmp_path, ReferencePolicy(suite), suite)
    first = evaluator.evaluate("base", agent, tasks, trials=2, keep=True)
    evaluator.close()
    order = [(task, trial) for trial in (0, 1) for task in "012"]
    assert [(o.task[-1], o.trial) for o in first] == order
    assert [o.score is None for o in first] == [False, False, True] * 2
    assert first[2].error == "environment: ValueError: broken at step"

    again = make(tmp_path, ReferencePolicy(suite), suite)
    made = len(suite.made)
    copied = again.copy("final", first)
    assert [o.score for o in copied] == [o.score for o in first]
    assert len(again.everything()) == 12 and len(suite.made) == made
    assert len((tmp_path / "evaluation.jsonl").read_text().splitlines()) == 14  # 2 retried
    assert len((tmp_path / "evaluation_trajectories.jsonl").read_text().splitlines()) == 8
    then = again.evaluate("base", agent, tasks, trials=2)
    assert [o.score for o in then] == [o.score for o in first]
    assert len(suite.made) == made + 2  # another start tries what is lost once more
    assert [o.attempt for o in again.copy("final", then)] == [0, 0, 2] * 2
    again.close()


class Server(ReferencePolicy):
    repeatable = False


def test_kept_episodes_have_their_own_places_after_a_kill(tmp_path: Path) -> None:
    """Also with a server, whose answers are not asked for again, and for attempts that are made
    again: every kept trajectory is that of its place in the plan."""
    suite = ToySuite()
    tasks = (toy_task(0), toy_task(1, "step"), toy_task(2), toy_task(3, "step"))
    server = Server(suite)
    for kept in (2, 3, None):  # lines that survive a kill
        evaluator = make(tmp_path, server, suite)
        evaluator.evaluate("base", AgentSpec("reference"), tasks, keep=True)
        evaluator.close()
        lines = read_lines(tmp_path / "evaluation_trajectories.jsonl")
        places = [(line["call"], line["index"]) for line in lines]
        assert len(set(places)) == len(places) == 6  # four, and two that were lost once more
        assert all(line["trajectory"]["task"] == tasks[line["index"]].id for line in lines)
        for name in ("evaluation_trajectories.jsonl", "evaluation.jsonl") if kept else ():
            whole = (tmp_path / name).read_bytes().splitlines(keepends=True)
            (tmp_path / name).write_bytes(b"".join(whole[:kept]))


class Noting(ReferencePolicy):
    """Notes the seeds that it is given."""

    def submit(self, requests) -> None:
        self.seeds = [*getattr(self, "seeds", []), *((r.episode, r.seed) for r in requests)]
        super().submit(requests)


def test_every_agent_is_evaluated_on_the_same_draws(tmp_path: Path) -> None:
    suite, tasks = ToySuite(), [toy_task(n) for n in range(3)]
    place = make(tmp_path, RandomPolicy(), suite)
    seeds = []
    for label in ("base", "final"):
        policy = Noting(suite)
        place.evaluate(label, AgentSpec("m", version=label), tasks, trials=2, policy=policy)
        seeds.append(sorted(set(policy.seeds)))
    assert seeds[0] == seeds[1] and len({seed for _, seed in seeds[0]}) == 6


class Flaky(ToySuite):
    """Loses every second episode that it starts."""

    started = 0

    def make(self):
        Flaky.started += 1
        env = super().make()
        if Flaky.started % 2:
            env.reset = lambda task: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        return env


def test_a_lost_episode_is_run_again_and_both_attempts_are_kept(tmp_path: Path) -> None:
    suite = Flaky()
    Flaky.started = 0
    tasks = (toy_task(0), toy_task(1), toy_task(2, "step"))
    place = make(tmp_path, ReferencePolicy(suite), suite)
    agent = AgentSpec("reference")
    first = place.evaluate("base", agent, tasks, keep=True)
    place.close()
    lines = read_lines(tmp_path / "evaluation.jsonl")
    assert sorted((o["task"], o["attempt"], o["score"] is None) for o in lines) == [
        ("toy/tests/train/0000", 0, True), ("toy/tests/train/0000", 1, False),
        ("toy/tests/train/0001", 0, False),
        ("toy/tests/train/0002", 0, True), ("toy/tests/train/0002", 1, True),
    ]  # fmt: skip
    assert [o.attempt for o in first] == [1, 0, 1] and len(place.everything()) == 3
    assert len(read_lines(tmp_path / "evaluation_trajectories.jsonl")) == 5
    again = make(tmp_path, ReferencePolicy(suite), suite)
    then = again.evaluate("base", agent, tasks)
    assert [o.attempt for o in then] == [1, 0, 2] and then[:2] == first[:2]
    assert again.evaluate("base", agent, tasks) == then  # once by every start
    assert len(read_lines(tmp_path / "evaluation.jsonl")) == 6
