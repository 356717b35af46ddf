"""What an environment that a model wrote must pass, each check by a module that fails it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from sandboxes import in_process as suite
from writer import BAD, GOOD, counting, leaking

from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Source
from trace_bench.core.types import Task, Tool
from trace_bench.methods.making import opening, self_test
from trace_bench.methods.trace.generate.checks import (
    RANGE,
    TOO_CLOSE,
    Leaks,
    Seeds,
    examine,
    quoted,
    texts_of,
    violations,
)
from trace_bench.methods.trace.generate.questions import again
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.sandbox.choose import generated_suite
from trace_bench.sandbox.engine import Sandbox

BY_READING = {
    "syntax": "not Python",
    "file": "open may not be used",
    "import": "import of os; allowed:",
    "wrapper": "import of trace_bench.settings.registry; allowed:",
    "escape": "may not be used",
    "missing": "`reference` is not defined",
}
BY_PLAYING = {
    "crash": "ZeroDivisionError",
    "loop": "no answer within",
    "cheat": "does nothing earns 1.00",
    "hard": "the reference earns the full score",
    "random": "suite.task gives another task",
    "moody": "same bytes",
    "unbounded": "`score.similarity` is 7.0",
    "same": "16 seeds give only 1 different first messages",
    "tools": "is not the target's",
    "invented": "there is no tool 'win'",
    "endless": "",
    "late": "only talks earns 1.00",
}
BY_LOADING = {"import_loop": "does not start", "import_error": "source is broken: RuntimeError"}
PROCESS = Sandbox("process", allow_untrusted=True, deadline=1.5, retries=0)


@cache
def target() -> tuple[Mapping[str, Tool], Leaks, str]:
    """The tools of the training tasks, what is held out, and a held-out first message."""
    world = suite("toolsandbox", "embedded")

    def texts(tasks: Any) -> list[list[str]]:
        return [[*texts_of(t), opening(world, t)] for t in tasks]

    train, hidden = world.tasks("train"), [*world.tasks("dev"), *world.tasks("test")]
    tools = {t["function"]["name"]: t for task in train for t in world.make().reset(task).tools}
    leaks = Leaks.of(texts(hidden), texts(train))
    long = max((opening(world, t) for t in world.tasks("test")), key=len)
    return tools, leaks, long


def load(name: str, code: str, tools: Mapping[str, Tool], sandbox: Sandbox = PROCESS) -> Any:
    return generated_suite(Source(name, code, {"TOOLS": tools}), sandbox, print)


def verdict(code: str, sandbox: Sandbox = PROCESS) -> list[str]:
    tools, leaks, _ = target()
    suites = [load(name, code, tools, sandbox) for name in ("a@0", "b@0")]
    settings = SynthesisSettings()
    try:
        seeds = Seeds.of(0, "a@0", code, settings).checks
        return examine(suites[0], suites[1], seeds, tools, leaks)
    finally:
        for made in suites:
            made.close()


def test_every_fault_is_listed_once() -> None:
    assert set(BY_READING) | set(BY_PLAYING) | set(BY_LOADING) == set(BAD) - {"tires"}


def test_a_good_module_is_accepted() -> None:
    assert violations(GOOD) == []
    assert verdict(GOOD) == []


@pytest.mark.parametrize("name", BY_READING)
def test_rules_are_found_broken_by_reading(name: str) -> None:
    said = violations(BAD[name])
    assert said and BY_READING[name] in said[0]


@pytest.mark.parametrize("name", BY_PLAYING)
def test_faults_are_found_by_playing(name: str) -> None:
    assert violations(BAD[name]) == []
    problems = verdict(BAD[name])
    assert problems and BY_PLAYING[name] in problems[0], problems


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (counting(20), "only talks earns 1.00"),
        (counting(60, pay=0.15), "is rewarded otherwise in another process"),  # below the limits
    ],
    ids=["pays all", "pays little"],
)
def test_a_module_that_counts_its_episodes_is_refused(code: str, why: str) -> None:
    assert violations(code) == []
    (said,) = verdict(code)
    assert why in said


def test_words_of_a_held_out_task_are_found() -> None:
    _, leaks, long = target()
    code = leaking(long)
    assert violations(code) == []
    assert verdict(code) == [TOO_CLOSE]
    entity = sorted(leaks.entities)[0]
    assert verdict(leaking(f"Mind {entity}.")) == [TOO_CLOSE]
    # The objection goes back to the author, who must not learn what is held out.
    assert not [e for e in leaks.entities if e in TOO_CLOSE] and leaks.overlap([TOO_CLOSE]) == []
    # Words that stand only in the tasks that the program makes get the same answer, word for word.
    joined = code.replace(json.dumps(long), f"' '.join({long.split()!r})")
    assert leaks.overlap(quoted(code)) and not leaks.overlap(quoted(joined))
    problems = verdict(joined)
    assert problems == [TOO_CLOSE]
    asked = again([], joined, problems)[-1]["content"]
    assert TOO_CLOSE in asked and leaks.overlap([asked]) == []


@pytest.mark.parametrize("run", [0, 7])
def test_seeds_do_not_tell_what_they_are_for(run: int) -> None:
    """Checks, calibration and training: disjoint, and each spread over the whole range."""
    settings = SynthesisSettings(calibration_groups=32)
    seeds = Seeds.of(run, "a@0", GOOD, settings)
    kinds = (seeds.checks, seeds.calibration, seeds.training)
    assert [len(kind) for kind in kinds] == [16, 32, 512]
    assert len({seed for kind in kinds for seed in kind}) == 16 + 32 + 512
    for kind in kinds:
        assert {seed * 4 // RANGE for seed in kind} == {0, 1, 2, 3}
    others = [(run + 1, "a@0", GOOD), (run, "a@1", GOOD), (run, "a@0", GOOD + "\n")]
    for other in others:
        assert not set(Seeds.of(*other, settings).checks) & set(seeds.checks)


def test_names_and_texts_in_the_program_count_too() -> None:
    leaks = Leaks.of([["Write to Fredrik Thordendal in New York."]], [["New York is far."]])
    assert leaks.overlap(["met fredrik", "In New York"]) == []
    assert leaks.overlap(quoted("def f():\n    return {'to': 'Fredrik Thordendal'}\n")) == [
        "'fredrik thordendal'"
    ]


def test_what_training_tasks_say_is_no_leak() -> None:
    leaks = Leaks.of([["the quick brown fox jumps over dogs", "id 991122"]], [["id 991122"]])
    assert leaks.overlap(["id 991122"]) == []
    assert leaks.overlap(["the quick brown fox jumps over"]) == [
        "the wording 'the quick brown fox jumps over'"
    ]


@pytest.mark.parametrize("code", ["x = " + "(" * 5000, "\0", "é" * 70_000, "return 1", ""])
def test_no_text_breaks_the_reader(code: str) -> None:
    assert violations(code)


@pytest.mark.parametrize("name", BY_LOADING)
def test_a_module_that_cannot_be_loaded_says_why(name: str) -> None:
    """It is distinguished from a sandbox that is missing, whatever the module prints."""
    assert violations(BAD[name]) == []
    sandbox = Sandbox("process", allow_untrusted=True, start=2.0)
    with pytest.raises(SourceError, match=BY_LOADING[name]):
        load("a@0", BAD[name], target()[0], sandbox)
    with pytest.raises(UserError) as caught:
        load("a@0", BAD[name], {}, Sandbox("docker", tag="no-such-tag"))
    assert not isinstance(caught.value, SourceError)


def test_without_a_sandbox_no_generated_code_runs() -> None:
    with pytest.raises(UserError, match="sandbox=inline would run code"):
        load("a@0", GOOD, {}, Sandbox("inline"))


@pytest.fixture
def made() -> Iterator[Any]:
    world = load("restores_service@3", GOOD, target()[0])
    yield world
    world.close()


def test_tasks_come_from_seeds_and_pass_the_self_test(made: Any) -> None:
    task: Task = made.synthetic("", 5)
    assert task.id == "generated/restores_service@3/5"
    assert task.env == "generated/restores_service@3"
    assert made.task(task.id) == task and made.synthetic("", 6).data != task.data
    assert self_test(made, task) is None


@pytest.mark.docker
@pytest.mark.parametrize("name", ["good", "loop", "cheat", "crash"])
def test_the_same_in_a_container(name: str) -> None:
    sandbox = Sandbox("docker", deadline=3.0, retries=0, run="test-written")
    problems = verdict(GOOD if name == "good" else BAD[name], sandbox)
    assert bool(problems) == (name != "good")
    assert name == "good" or BY_PLAYING[name] in problems[0]
