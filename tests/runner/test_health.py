"""The health of a run: what was lost, cut off or unreadable, and what training learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from summaries import NOTHING, SUMMARY
from test_unfinished_parts import Whole
from toy import ToyEnv

import trace_bench
from trace_bench.core.summary import CurvePoint, EpisodeCounts, Health, TrainingCounts
from trace_bench.core.types import Boundary, Failure, Score, StopReason, Trajectory, Turn
from trace_bench.runner import report
from trace_bench.runner.evaluation import outcome_of


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


REPLY = {"role": "assistant", "content": ""}
TURN = Turn((), REPLY)
FINE = Trajectory("t", 0, "base", (), (TURN,), (), StopReason.DONE, Score(1.0, True))
PLAYED = (
    FINE,
    replace(FINE, turns=(TURN, replace(TURN, malformed="no JSON"))),
    replace(FINE, stop=StopReason.CONTEXT_LIMIT, turns=()),
    replace(FINE, stop=StopReason.TURN_LIMIT, score=Score(0.5, False)),
    replace(FINE, stop=StopReason.ERROR, score=None, failure=Failure(Boundary.USER, "user: gone")),
)
COUNTED: Any = {
    "episodes": 5, "lost": {"user": 1}, "context": 1, "turn_limit": 1, "turns": 5, "malformed": 1,
}  # fmt: skip


def test_episodes_are_counted() -> None:
    found = EpisodeCounts()
    found.add(outcome_of("base", 0, t, 0) for t in PLAYED)
    assert vars(found) == COUNTED


def test_training_is_summed_over_its_iterations() -> None:
    found = TrainingCounts()
    found.log({"phase": "prompt", "steps": 5})
    nothing = {"groups": None, "constant": None, "steps": None, "apart": None, "alarms": 0}
    nothing |= {"update_norm": None}
    assert vars(found) == nothing
    found.log({"phase": "training", "groups": 4, "constant_share": 0.75, "steps": 2})
    found.log({"phase": "training", "groups": 3, "constant_share": 1 / 3, "steps": 0})
    assert vars(found) == nothing | {"groups": 7, "constant": 4, "steps": 2}
    apart = {"phase": "training", "logprob_alarm": None, "logprob_difference_mean": None}
    found.log(apart)
    found.log(apart | {"logprob_alarm": True, "logprob_difference_mean": 0.25})
    found.log(apart | {"logprob_alarm": False, "logprob_difference_mean": 0.01})
    assert (found.apart, found.alarms) == (0.25, 1)
    found.log({"phase": "fine-tuning", "steps": 1, "update_norm": 0.5})
    found.log({"phase": "fine-tuning", "steps": 0, "update_norm": 0.25})
    assert (found.steps, found.update_norm) == (3, 0.5)


def test_the_closing_table_says_what_was_lost_and_what_training_learned_from() -> None:
    counted, still = EpisodeCounts(**COUNTED), EpisodeCounts(episodes=8)
    training = TrainingCounts(groups=7, constant=4, steps=2, apart=0.125, alarms=3)
    health = Health(**vars(training), method=counted, evaluation=still)
    none = CurvePoint(checkpoint=64, rollouts=60, **vars(NOTHING))
    text = report.closing(replace(SUMMARY, dev_split="dev", curve=(none,), health=health))
    for words in (
        "method: 5 episodes, 1 lost (1 user), 1 cut off by the context, 1 by the limit of turns",
        "; 4 of 7 groups without an advantage; 2 optimizer steps; sampler and trainer too far",
        "evaluation: 8 episodes, none lost or cut off",
        "curve on dev: 64: no score",
    ):
        assert words in text


class Outage(Whole):
    """The toy world with desks that are broken, as long as `broken` says so."""

    broken = 0

    def make(self) -> ToyEnv:
        env = super().make()
        if self.broken:
            self.broken -= 1
            env.reset = lambda task: 1 / 0  # type: ignore[assignment, method-assign]
        return env


def run(suite: Any, **settings: Any) -> trace_bench.Result:
    given = {"method": "base", "policy": "reference", "evaluation__retries": 0}
    return trace_bench.run(env=suite, **{**given, **settings})


def test_a_finished_run_plays_what_evaluation_has_lost_again() -> None:
    """And when nothing is lost any more, it is answered from disk."""
    suite = Outage()
    suite.broken = 3
    first = run(suite)
    assert first.summary.complete and first.score.failures == 3
    assert "3 lost (3 environment)" in first.table
    second = run(suite)
    assert second.folder == first.folder and second.score.failures == 0
    assert second.score.n == 8 and "3 lost" not in second.table
    before = len(suite.made)
    assert run(suite).summary == second.summary and len(suite.made) == before


def test_a_run_without_a_score_is_not_finished() -> None:
    suite = Outage()
    suite.broken = 10**6
    with pytest.raises(trace_bench.UserError, match="evaluation of base: 8 of 8 episodes"):
        run(suite)
    folder = run(suite, max_lost=1.0).folder
    with pytest.raises(trace_bench.UserError, match="not a finished run"):
        trace_bench.load(folder)
    suite.broken = 0
    assert run(suite).score.n == 8
    assert trace_bench.load(folder).score.failures == 0


def test_a_run_opens_with_what_it_does_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    suite = Whole()
    assert run(suite).folder and capsys.readouterr() == ("", "")
    result = run(suite, verbose=True, seed=1, evaluation__trials=2)
    said = capsys.readouterr()
    assert said.out == "" and result.score.n == 8
    assert said.err.startswith("method=base on toy/tests: 8 held-out tasks (test, 2 trials each)")
    assert f"folder: {result.folder}" in said.err
