import dataclasses

import pytest

import trace_bench as tb
from trace_bench.core.errors import BudgetExceeded, UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import CHARGED, Boundary, Entry, Failure, charged
from trace_bench.runner.ledger import EpisodeFile, Ledger, entry

TURN = tb.Turn((), {"role": "assistant", "content": "x"}, (1, 2), (3,), (-0.5,))
HOW = (tb.StopReason.DONE, tb.Score(0.25, False), None, "grpo@0003")
SCORED = tb.Trajectory("toy/tests/train/0001", 7, "grpo@0003", (), (TURN,), (), *HOW)
GONE = Failure(Boundary.ENVIRONMENT, "ValueError: no")
FAILED = dataclasses.replace(SCORED, score=None, stop=tb.StopReason.ERROR, failure=GONE)


def fill(ledger, call, indices, purpose=tb.Purpose.TRAINING, trajectory=SCORED):
    return [ledger.record(entry(call, i, purpose, trajectory)) for i in indices]


def test_a_line_holds_what_an_episode_was(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", 10)
    fill(ledger, "train/a", [0])
    fill(ledger, "train/a", [1], trajectory=FAILED)
    good, bad = read_lines(ledger.path, Entry)
    assert (good.similarity, good.success, good.tokens, good.turns) == (0.25, False, 3, 1)
    assert (good.task, good.seed, good.agent) == ("toy/tests/train/0001", 7, "grpo@0003")
    assert good.adapter == "grpo@0003" and good.purpose is tb.Purpose.TRAINING
    assert good.stop is tb.StopReason.DONE and good.error is None
    assert (bad.similarity, bad.success, bad.stop) == (None, None, tb.StopReason.ERROR)
    assert bad.error == "environment: ValueError: no"


def test_evaluation_is_written_and_not_charged(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", 3)
    fill(ledger, "train", range(2))
    fill(ledger, "dev", range(5), tb.Purpose.EVALUATION)
    ledger.check("test", 1000, tb.Purpose.EVALUATION, ledger.left)
    assert (ledger.spent, ledger.left) == (2, 1)
    assert ledger.by_purpose() == {"training": 2, "evaluation": 5}
    assert len(read_lines(ledger.path, Entry)) == 7


def test_the_budget_cannot_be_exceeded(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", 4)
    fill(ledger, "a", range(3))
    with pytest.raises(BudgetExceeded, match=r"'b' asks for 2 rollouts; 1 of 4.*`budget`"):
        ledger.check("b", 2, tb.Purpose.ANALYSIS, ledger.left)
    ledger.check("b", 1, tb.Purpose.ANALYSIS, ledger.left)
    fill(ledger, "b", [0], tb.Purpose.ANALYSIS)
    assert len(read_lines(ledger.path, Entry)) == 4


def test_resuming_counts_lines_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, 4)
    fill(first, "a", [0, 2])
    first.close()
    with path.open("ab") as file:
        file.write(b'{"call": "a", "ind')  # killed here
    again = Ledger(path, 4)
    assert again.spent == 2 and sorted(e.index for e in read_lines(path, Entry)) == [0, 2]
    assert fill(again, "a", range(4)) == [False, True, False, True]
    assert again.left == 0
    assert sorted(e.index for e in read_lines(path, Entry)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "line", ['{"call": "a"}', '{"purpose": "fun"}', '{"purpose": "training", "stop": "done"}']
)
def test_a_line_that_is_not_ours_is_named(tmp_path, line):
    ledger = Ledger(tmp_path / "ledger.jsonl", 4)
    fill(ledger, "a", [0])
    ledger.close()
    with ledger.path.open("a") as file:
        file.write(line + "\n")
    for read in (lambda: Ledger(ledger.path, 4), lambda: read_lines(ledger.path, Entry)):
        with pytest.raises(UserError, match=r"ledger\.jsonl, line 2 is corrupt"):
            read()


def test_the_ledger_charges_what_the_accounting_names(tmp_path):
    for accounting, spent in (("strict", 5), ("paper", 3)):
        ledger = Ledger(tmp_path / accounting, 9, CHARGED[accounting])
        for index, purpose in enumerate(tb.Purpose):
            ledger.record(entry(purpose.value, index, purpose, SCORED))
        assert ledger.spent == spent == charged(ledger.by_purpose(), accounting)
        ledger.close()


def test_an_episode_is_read_when_it_is_asked_for(tmp_path):
    """Damage in another one is said when that is read; what is taken back is gone from both."""
    path = tmp_path / "trajectories.jsonl"
    first = EpisodeFile(path)
    for index, played in enumerate([SCORED, FAILED, SCORED]):
        first.add("a", index, played)
    first.add("b", 0, FAILED)
    first.close()
    path.write_bytes(path.read_bytes().replace(b'"done"', b'"gone"', 1) + b'{"call":"b","ind')
    again = EpisodeFile(path)
    assert again.of("b") == {0: FAILED} and again.passed("a") and not again.passed("b")
    assert again.read(("a", 2)) == SCORED and ("a", 3) not in again
    with pytest.raises(UserError, match=r"line 1 is corrupt .*`trajectory.stop`"):
        again.of("a")
    again.take_back("a", [0])
    again.add("a", 3, SCORED)
    assert again.of("a") == {1: FAILED, 2: SCORED, 3: SCORED}
    assert EpisodeFile(path).of("a") == again.of("a")


def test_lines_taken_back_are_written_again(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", 4)
    fill(ledger, "a", range(3))
    ledger.take_back("a", [1, 7])
    ledger.take_back("b", [1])
    assert ledger.spent == 2 and fill(ledger, "a", range(3)) == [False, True, False]
    assert [e.index for e in read_lines(ledger.path, Entry)] == [0, 2, 1]
