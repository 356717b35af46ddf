"""Every reader of a file of lines gives values or its own error, whatever the lines hold."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import lab_in
from pages import ROOT
from summaries import SUMMARY
from test_readers import BYTES, DEEP, NUMBERS, VALUES
from toy import ToySuite

import trace_bench
from trace_bench import show, sweep
from trace_bench.core.beginning import read_agent
from trace_bench.core.decode import Limits, Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.store import Lines, read_lines, write_json
from trace_bench.core.types import Entry, Purpose, Score, StopReason, Stored, Trajectory, Turn
from trace_bench.llm.roles import Roles
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.report.page import Talks
from trace_bench.results.folder import same_agents
from trace_bench.results.places import find
from trace_bench.results.run import read_records
from trace_bench.runner.api import Result
from trace_bench.runner.evaluation import Evaluator, outcome_of
from trace_bench.runner.ledger import EpisodeFile, Ledger, entry
from trace_bench.runner.report import Progress
from trace_bench.runner.trackers import Metrics, Silent
from trace_bench.settings.compose import compose
from trace_bench.trainers.verl.spec import Arrivals, StepFiles

quick = settings(max_examples=25, deadline=None, derandomize=True)

NAMES = "call index purpose task seed adapter agent version trial score stop error tokens attempt"
NAMES += " turns malformed trajectory role digest text cut status retract prompt_tokens"
NAMES += " completion_tokens messages step data folder code overrides format method budget settings"
FIELDS = NAMES.split()
TEXTS = ["training", "evaluation", "final", "base", "done", "error", "user", "train/0", "t", "0/0"]
FIELD = st.sampled_from(TEXTS) | st.integers(0, 3) | VALUES
TRAJECTORY = st.dictionaries(st.sampled_from([*FIELDS, "tools", "failure"]), FIELD)
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), FIELD | TRAJECTORY, min_size=1, max_size=14)
EPISODES = st.fixed_dictionaries(
    {"call": st.sampled_from(TEXTS), "index": NUMBERS, "trajectory": TRAJECTORY}
)
LINES = st.lists(
    (OBJECTS | EPISODES).map(lambda value: json.dumps(value).encode()) | BYTES | DEEP, max_size=4
)


def lab(folder: Path) -> None:
    """The files of a lab: ledger, metrics and trajectories, of which one is read."""
    player = Player(IdlePolicy(), Suites(ToySuite()), 4, 8)
    lab_in(folder, 9, player).close()
    EpisodeFile(folder / "trajectories.jsonl").of("train/0")


def evaluator(folder: Path) -> None:
    player = Player(IdlePolicy(), Suites(ToySuite()), 4, 8)
    Evaluator(folder / "evaluation.jsonl", player, compose([]), Progress(9))


def roles(folder: Path) -> None:
    found = Roles({}, folder / "llm.jsonl")
    found.usage()
    found.close()


def arrivals(folder: Path) -> None:
    for index, trajectory in Arrivals(folder).take("train/0", {0}):
        assert index == 0 and trajectory.task


def result(folder: Path) -> None:
    Result(folder, SUMMARY).trajectories()


def listing(folder: Path) -> None:
    if show.main([str(folder)]) not in (0, 2):
        raise AssertionError("another exit code")


def swept(folder: Path) -> None:
    assert sweep.sweep(folder / "sweep.jsonl", [], 1, retry=False) == 0


def compared(folder: Path) -> None:
    trace_bench.compare(folder, folder)


# what reads lines, and the file
READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a ledger's": (lambda f: Ledger(f / "ledger.jsonl", 9), "ledger.jsonl"),
    "a lab's episodes": (lab, "trajectories.jsonl"),
    "a lab's ledger": (lab, "ledger.jsonl"),
    "an evaluation's": (evaluator, "evaluation.jsonl"),
    "its episodes": (evaluator, "evaluation_trajectories.jsonl"),
    "a comparison's": (same_agents, "evaluation.jsonl"),
    "two runs'": (compared, "evaluation.jsonl"),
    "a result's": (result, "trajectories.jsonl"),
    "answers of models": (roles, "llm.jsonl"),
    "answers in a worker": (roles, "worker/llm-1.jsonl"),
    "metrics": (lambda f: Metrics(f / "metrics.jsonl", Silent(), print), "metrics.jsonl"),
    "verl's episodes": (arrivals, "episodes.jsonl"),
    "verl's metrics": (lambda f: StepFiles(f).of(1), "metrics-0.jsonl"),
    "records": (lambda f: read_records(f / "records.jsonl"), "records.jsonl"),
    "a report's": (lambda f: Talks().add(f / "trajectories.jsonl", 10**6), "trajectories.jsonl"),
    "places": (lambda f: find([f]), "evaluation.jsonl"),
    "a listing's": (listing, "trajectories.jsonl"),
    "a sweep's": (swept, "sweep.jsonl"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("read", "name"), READERS.values(), ids=READERS)
def test_lines_are_values_or_a_typed_error(read: Callable[[Path], Any], name: str) -> None:
    @quick
    @given(LINES)
    def check(lines: list[bytes]) -> None:
        with TemporaryDirectory() as made:
            path = Path(made) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"\n".join([*lines, b""]))
            with contextlib.suppress(UserError):
                read(Path(made))

    check()


TOOL = {"type": "function", "function": {"name": "f"}}
TURN = Turn(({"role": "user", "content": "hi"},), {"role": "assistant"}, (1,), (2,), (-0.5,))
PLAYED = Trajectory("train/0", 7, "base", (TOOL,), (TURN,), (), StopReason.DONE, Score(1.0, True))
LINE = {
    "trajectories.jsonl": Stored("train/0", 0, PLAYED),
    "ledger.jsonl": entry("train/0", 0, Purpose.TRAINING, PLAYED),
    "evaluation.jsonl": outcome_of("base", 0, PLAYED, 0),
}
LAB, EVALUATOR = (lab, "trajectories.jsonl"), (evaluator, "evaluation.jsonl")
LEDGER = (lambda folder: read_lines(folder / "ledger.jsonl", Entry), "ledger.jsonl")
BAD: dict[str, tuple[Any, str, str, str]] = {
    "a success that is a text": (LAB, '"success":true', '"success":"no"', "score.success` is 'no'"),
    "a similarity of 1.5": (LAB, ":1.0", ":1.5", "is 1.5; allowed: a number from 0 to 1"),
    "a similarity that is none": (LAB, ":1.0", ":NaN", "NaN is not JSON"),
    "an index of -1": (
        LAB,
        '"index":0',
        '"index":-1',
        "`index` is -1; allowed: a whole number from 0",
    ),
    "another stop": (LAB, '"done"', '"end"', "is 'end'; allowed: done, turn_limit, context_limit"),
    "another role": (LAB, '"user"', '"boss"', "is 'boss'; allowed: system, user, assistant, tool"),
    "a call that is gone": (LAB, '"call":"train/0",', "", "`call` is missing"),
    "a million lists": (LAB, '"details":{}', '"details":' + "[" * 10**6, "nested more than 100"),
    "a ledger's purpose": (LEDGER, '"training"', '"fun"', "is 'fun'; allowed: analysis, calibr"),
    "an outcome's similarity": (EVALUATOR, ":1.0", ":1.5", "`score.similarity` is 1.5"),
}


@pytest.mark.parametrize(("where", "good", "bad", "why"), BAD.values(), ids=BAD)
def test_a_bad_value_is_named(
    where: tuple[Callable[[Path], object], str], good: str, bad: str, why: str, tmp_path: Path
) -> None:
    """With its file, line and key, what was given and what is allowed, in one line."""
    read, name = where
    with contextlib.closing(Lines(tmp_path / name, dict)) as lines:
        lines.append(LINE[name])
    read(tmp_path)
    text = (tmp_path / name).read_text()
    assert good in text
    (tmp_path / name).write_text(text.replace(good, bad, 1))
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    said = str(caught.value)
    assert f"{name}, line 1 is corrupt" in said and why in said
    assert "\n" not in said and len(said) < 700


def test_a_line_has_a_longest_length(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="longer than 100 bytes"):
        decode(b'{"text": "' + b"x" * 100 + b'"}', dict, Limits(100))


BAD_AGENTS = [
    ({"model": 5}, "`model` is 5; allowed: a text"),
    ({"model": "m", "adapter": []}, "`adapter` is no key here; allowed: model, version"),
    ({"model": "m", "adapters": [{"name": "a"}]}, "`adapters[0].path` is missing"),
]


@pytest.mark.parametrize(("given", "why"), BAD_AGENTS)
def test_a_bad_agent_is_named(given: dict[str, Any], why: str, tmp_path: Path) -> None:
    write_json(tmp_path / "agent.json", given)
    with pytest.raises(UserError, match=re.escape(why)):
        read_agent(tmp_path / "agent.json")


BAD_RECORDS = [
    ("budget", -1, "`budget` is -1; allowed: a whole number from 0"),
    ("similarity", "1", "`similarity` is '1'; allowed: a number"),
    ("success", [1.5], "`success[0]` is 1.5; allowed: a number from 0 to 1"),
    ("votes", {"a": [3, 2]}, "`passes or votes` does not agree"),
    ("method", "a\x1b[2J", "is no short printable text"),
    ("colour", "red", "`colour` is no key here"),
]


@pytest.mark.parametrize(("key", "value", "why"), BAD_RECORDS)
def test_a_bad_record_is_named(key: str, value: Any, why: str, tmp_path: Path) -> None:
    line = (ROOT / "results/fine/records.jsonl").read_text().splitlines()[0]
    (tmp_path / "records.jsonl").write_text(json.dumps({**json.loads(line), key: value}) + "\n")
    with pytest.raises(UserError, match=r"records\.jsonl, line 1 is not a record") as caught:
        read_records(tmp_path / "records.jsonl")
    assert why in str(caught.value)
