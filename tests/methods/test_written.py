"""What an environment that a model wrote must pass, each check by a module that fails it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from playing import FunctionPolicy, play
from sandboxes import in_process as suite
from toy import ToyEnv, ToySuite
from trace_lab import BASE, MemoryLab
from writer import BAD, GOOD, block, counting, leaking

from trace_bench.core.chat import answer_call, text_message
from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Source
from trace_bench.core.types import AgentSpec, Message, Score, Step, StopReason, Task, Tool
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.methods.making import opening, self_test
from trace_bench.methods.trace import Trace, checks
from trace_bench.methods.trace.checks import TOO_CLOSE, Leaks, quoted, violations
from trace_bench.methods.trace.generation import CHECKED, again, seeds_of
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.play.suites import Suites
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
    "moody": "same bytes",
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
        return [[*checks.texts_of(t), opening(world, t)] for t in tasks]

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
    try:
        seeds = seeds_of(0, "a@0", code, CHECKED)
        return checks.examine(suites[0], suites[1], seeds, tools, leaks)
    finally:
        for one in suites:
            one.close()


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


COUNTS = {
    "pays all": (counting(20), "only talks earns 1.00"),
    # Below the limits.
    "pays little": (counting(60, pay=0.15), "is rewarded otherwise in another process"),
}


@pytest.mark.parametrize(("code", "why"), COUNTS.values(), ids=COUNTS)
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
    seeds = seeds_of(run, "a@0", GOOD, 16 + 32 + 512)
    assert len(set(seeds)) == 16 + 32 + 512
    for kind in (seeds[:16], seeds[16:48], seeds[48:]):
        assert {seed * 4 // 2**31 for seed in kind} == {0, 1, 2, 3}
    for other in [(run + 1, "a@0", GOOD), (run, "a@1", GOOD), (run, "a@0", GOOD + "\n")]:
        assert not set(seeds_of(*other, 16)) & set(seeds)


def test_names_and_texts_in_the_program_count_too() -> None:
    leaks = Leaks.of([["Write to Fredrik Thordendal in New York."]], [["New York is far."]])
    assert leaks.overlap(["met fredrik", "In New York"]) == []
    said = quoted("def f():\n    return {'to': 'Fredrik Thordendal'}\n")
    assert leaks.overlap(said) == ["'fredrik thordendal'"]


def test_what_training_tasks_say_is_no_leak() -> None:
    leaks = Leaks.of([["the quick brown fox jumps over dogs", "id 991122"]], [["id 991122"]])
    assert leaks.overlap(["id 991122"]) == []
    words = "the quick brown fox jumps over"
    assert leaks.overlap([words]) == [f"the wording '{words}'"]


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
        load("a@0", BAD[name], {}, Sandbox("bubblewrap", roots="/nowhere"))
    assert not isinstance(caught.value, SourceError)


def test_without_a_sandbox_no_generated_code_runs() -> None:
    with pytest.raises(UserError, match="sandbox=inline would run code"):
        load("a@0", GOOD, {}, Sandbox("inline"))


def test_tasks_come_from_seeds_and_pass_the_self_test() -> None:
    world = load("restores_service@3", GOOD, target()[0])
    task: Task = world.synthetic("", 5)
    assert task.id == "generated/restores_service@3/5"
    assert task.env == "generated/restores_service@3"
    assert world.task(task.id) == task and world.synthetic("", 6).data != task.data
    assert self_test(world, task) is None
    world.close()


HELLO = FunctionPolicy(lambda request: text_message("Hello."))


class OneCall(ToyEnv):
    """Pays for exactly one call, whatever it is."""

    def step(self, action: Message) -> Step:
        if action.get("tool_calls"):
            self.calls = getattr(self, "calls", 0) + 1
            return Step((answer_call(action["tool_calls"][0], "ok"),))
        paid = getattr(self, "calls", 0) == 1
        return Step((), done=True, score=Score(float(paid), paid), stop=StopReason.DONE)


def test_one_call_at_random_is_a_floor_as_well_as_four() -> None:
    suite = ToySuite()
    suite.make = lambda: OneCall(6)  # type: ignore[method-assign]
    (said,) = checks.floors(suite, suite, suite.tasks("train")[:4])
    assert "calls one tool at random earns 1.00" in said


SMALL = TraceSettings(
    synthetic_tasks=4, calibration_groups=2, calibration_group_size=4, bands=False
)


class TrainingOnly(EmbeddedSuite):
    """The phone world without held-out tasks."""

    def splits(self) -> Sequence[str]:
        return ("train",)


class WritingLab(MemoryLab):
    """One module for each capability, in real workers; the agent says `Hello.` in their tasks."""

    def __init__(self, modules: Mapping[str, str], budget: int) -> None:
        super().__init__(dict.fromkeys(modules, 0.7), budget, 7, TrainingOnly())
        self.modules = modules
        self.suites = Suites(self.suite)

    def prompt_limit(self, role: str) -> int | None:
        return 200_000 if role == "generator" else None

    def ask(self, role: str, call: str, messages: Any, read: Any, schema: Any = None) -> Any:
        return read(block(self.modules[call.partition("/")[0]]))

    def generated_suite(self, name: str, code: str, given: Mapping[str, Any]) -> Any:
        box = Sandbox("process", allow_untrusted=True, deadline=20.0)
        suite = load(name, code, given["TOOLS"], box)
        self.suites.add(f"generated/{name}", suite)
        return suite

    def drop_suite(self, name: str) -> None:
        self.suites.drop(f"generated/{name}")

    def suite_of(self, task: Task) -> Any:
        return self.suites.of(task)

    def write_text(self, name: str, text: str) -> None:
        self.files[name] = text

    def rollouts(self, call: str, agent: AgentSpec, tasks: Sequence[Task], **how: Any) -> Any:
        if call == "analysis":
            return super().rollouts(call, agent, tasks, **how)
        self.left -= len(tasks)
        return play(HELLO, self.suites, agent, tasks, range(len(tasks)))


def test_a_capability_without_an_environment_is_listed_and_the_others_are_trained() -> None:
    counts, good = "recovers_from_errors", "completes_all_parts"
    lab = WritingLab({counts: counting(20), good: GOOD}, 420)
    agent = Trace(SMALL).fit(BASE, lab.suite.tasks("train"), lab)  # type: ignore[arg-type]
    lab.suites.close()
    assert [a.capability for a in agent.adapters] == [good]
    report = lab.files["capabilities.json"]
    assert report["outcome"]["trained"] == [good] == [t["name"] for t in report["training"]]
    (dropped,) = report["dropped"]
    assert dropped["name"] == counts and "only talks earns 1.00" in dropped["reason"]
    assert f"{counts} is dropped: {dropped['reason']}" in lab.logged
    assert not lab.files[f"generated/{counts}/0.json"]["accepted"]
    assert lab.left == 0 and len(lab.trainer.jobs) == 1


@pytest.mark.docker
@pytest.mark.parametrize("name", ["good", "loop", "cheat", "crash"])
def test_the_same_in_a_container(name: str) -> None:
    sandbox = Sandbox("docker", deadline=3.0, retries=0, run="test-written")
    problems = verdict(GOOD if name == "good" else BAD[name], sandbox)
    assert bool(problems) == (name != "good")
    assert name == "good" or BY_PLAYING[name] in problems[0]
