"""The same world inline, in a process and in a container: callers can't tell."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any, cast

import pytest
from playing import play, scores
from sandboxes import OTHERS, ROOTS, SUITE, chosen, in_process, in_sandbox, untrusted_suite

from trace_bench.__main__ import main
from trace_bench.core.errors import EpisodeError, SourceError, UserError
from trace_bench.core.protocols import Source, Suite, members
from trace_bench.core.store import read_json
from trace_bench.core.types import AgentSpec, Message, Step, Task, to_json
from trace_bench.play.contract import check
from trace_bench.play.suites import Suites
from trace_bench.policies.scripted import IdlePolicy, ReferencePolicy
from trace_bench.sandbox.choose import generated_suite
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.suite import SandboxedSuite
from trace_bench.sandbox.workers import Lost, Worker

Patch = pytest.MonkeyPatch
PHONE = chosen("toolsandbox", "embedded")
KINDS = ["process", *OTHERS]


def sandboxed(kind: Any, **changes: Any) -> Any:
    suite = in_sandbox(PHONE, Sandbox(kind, run=f"test-{kind}", roots=ROOTS, **changes))
    assert isinstance(suite, SandboxedSuite)
    return suite


class Telling(Suite):
    """Answers with the name of the method that was asked."""

    name, variant = "toy", "telling"
    tag_keys, world_key, typical = ("needs",), "world", None


METHODS = [n for n in members(Suite) if inspect.isfunction(vars(Suite).get(n))]
TOLD = [name for name in METHODS if name not in ("make", "act", "close")]
for member in TOLD:
    setattr(Telling, member, lambda self, *given, said=member: said)


def test_a_sandboxed_suite_is_the_suite_inside() -> None:
    suite = SandboxedSuite(cast(Any, Telling)(), cast(Any, None))
    places = {n: len(inspect.signature(getattr(Suite, n)).parameters) - 1 for n in TOLD}
    assert {n: getattr(suite, n)(*"ab"[:k]) for n, k in places.items()} == {n: n for n in TOLD}
    for name in ("name", "variant", "tag_keys", "world_key", "typical"):
        assert getattr(suite, name) == getattr(Telling, name)
    assert suite.has(Suite.reference) and suite.has(Suite.synthetic)
    assert suite.unwrapped is suite.inside


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def suite(kind: str) -> Iterator[Any]:
    made = sandboxed(kind, workers=2)
    yield made
    made.close()


def actions(task: Task, reference: list[Message]) -> list[Message]:
    """A reference trajectory with noise before its end: wrong tools, bad arguments, odd texts."""
    rng = random.Random(task.seed)
    bad = {"id": "x", "type": "function", "function": {"name": "no_such_tool", "arguments": "{"}}
    noise: list[Message] = [
        {"role": "assistant", "content": "Hmm \u2603 \ud83d\ude00 \x00"},
        {"role": "assistant", "content": "", "tool_calls": [bad]},
    ]
    return [*reference[:-1], rng.choice(noise), reference[-1]]


def test_every_step_is_the_same_as_in_this_process(suite: Any) -> None:
    inline = in_process("toolsandbox", "embedded")
    for task in list(inline.tasks("dev"))[:12]:
        one, two = inline.make(), suite.make()
        steps: list[tuple[Step, Step]] = [(one.reset(task), two.reset(task))]
        for action in actions(task, list(inline.reference(task))):
            if not steps[-1][0].done:
                steps.append((one.step(action), two.step(action)))
        for here, there in steps:
            assert to_json(here) == to_json(there)
        assert to_json(one.score()) == to_json(two.score())  # type: ignore[attr-defined]
        two.close()
        two.close()


def test_many_episodes_at_once_score_as_inline(suite: Any) -> None:
    inline, found = in_process("toolsandbox", "embedded"), list[Any]()
    tasks = list(inline.tasks("dev"))[::3]
    for acting, world in ((ReferencePolicy(inline), inline), (ReferencePolicy(suite), suite)):
        played = play(acting, world, AgentSpec("r"), tasks, range(len(tasks)), max_turns=30)
        found.append([to_json(trajectory) for trajectory in played])
    assert found[0] == found[1]


def test_the_contract_holds_in_the_sandbox(suite: Any) -> None:
    report = check(suite, suite.tasks("train")[:4])
    assert report.ok, str(report)
    assert report.reference == 1.0


def test_what_an_environment_raises_names_its_boundary(suite: Any) -> None:
    with pytest.raises(EpisodeError, match="step without a running episode") as found:
        env = suite.make()
        env.reset(suite.tasks("train")[0])
        for action in suite.reference(suite.tasks("train")[0]):
            env.step(action)
        env.step({"role": "assistant", "content": "again"})
    assert found.value.boundary == "environment"


ENDS = {"os._exit(137)": "exit code 137", "1 / 0": "exit code 1: ZeroDivisionError: .*"}


@pytest.mark.parametrize(("end", "how"), ENDS.items())
def test_how_a_worker_ended_is_told_though_its_output_ends_first(end: str, how: str) -> None:
    said = "os.write(2, b'Traceback\\n'); " * ("/" in end)  # before the last words
    program = f"import os, time; {said}os.close(1); time.sleep(0.5); {end}"
    worker = Worker([sys.executable, "-c", program], os.environ, hint="")
    with pytest.raises(Lost, match=rf"it ended \({how}\)"):
        while True:
            worker.lines()
    worker.kill()


def test_an_episode_moves_when_its_worker_is_lost(kind: str) -> None:
    suite = sandboxed(kind)
    task = suite.tasks("train")[2]  # of four turns, before three of which a worker is lost
    reference = list(suite.reference(task))
    env = suite.make()
    env.reset(task)
    for action in reference[:-1]:
        env.step(action)
        suite._pool.workers.there[0].kill()
    end = env.step(reference[-1])
    assert end.done and end.score is not None and end.score.success
    assert len(suite._pool.workers.lost) == len(reference) - 1
    suite.close()


class Unlucky(ReferencePolicy):
    """Plays the reference, few episodes at once; in each fourth round a worker is killed."""

    capacity = 6

    def __init__(self, suite: Any) -> None:
        super().__init__(suite)
        self.workers, self.rng, self.rounds = suite._pool.workers, random.Random(7), 0

    def collect(self) -> list[Any]:
        self.rounds += 1
        if self.rounds % 4 == 0:
            threading.Timer(self.rng.random() * 0.02, self.kill).start()
        return super().collect()

    def kill(self) -> None:
        for worker in self.workers.there[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker._process.pid, signal.SIGKILL)


def test_workers_that_are_killed_at_any_moment_change_nothing(kind: str) -> None:
    inline = in_process("toolsandbox", "embedded")
    tasks = list(inline.tasks("dev"))[:40]
    suite = sandboxed(kind, workers=2, retries=5)
    calm, bad = (
        play(policy, world, AgentSpec("r"), tasks, range(40), max_turns=30)
        for policy, world in ((ReferencePolicy(inline), inline), (Unlucky(suite), suite))
    )
    assert [to_json(t) for t in calm] == [to_json(t) for t in bad]
    assert len(suite._pool.workers.lost) > 2
    suite.close()


def test_a_run_in_a_sandbox_gives_the_same_files(kind: str, tmp_path: Path) -> None:
    settings = ["method=base", "policy=reference", "evaluation.limit=4", f"sandbox.roots={ROOTS}"]
    here, there = tmp_path / "inline", tmp_path / "sandboxed"
    for folder, where in ((here, "inline"), (there, kind)):
        assert main([*settings, f"sandbox={where}", f"run_dir={folder}"]) == 0
    lines = [sorted((f / "evaluation.jsonl").read_text().splitlines()) for f in (here, there)]
    assert lines[0] == lines[1]
    fingerprints = [read_json(f / "summary.json")["fingerprint"] for f in (here, there)]
    assert fingerprints[0] == fingerprints[1]  # the sandbox is not part of the identity


# -- bad input ------------------------------------------------------------------------------------


def test_generated_code_is_refused_outside_docker(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("inline", "process"):
        with pytest.raises(UserError, match="allow_untrusted=true"):
            untrusted_suite("def suite(): ...", Sandbox(kind), print)
    with pytest.raises(UserError, match="the environment's source is broken: ZeroDivisionError"):
        untrusted_suite("1 / 0", Sandbox("process", allow_untrusted=True), print)
    assert "generated code runs with this user's rights" in capsys.readouterr().out


def test_a_worker_that_cannot_start_says_why() -> None:
    suite = in_sandbox(PHONE, Sandbox("process"), python="/nowhere/python")
    with pytest.raises(UserError, match="no worker could be started with /nowhere/python"):
        suite.make().reset(suite.tasks("train")[0])
    suite = in_sandbox(PHONE, Sandbox("process"), python="/bin/false")
    with pytest.raises(UserError, match="worker does not start: it ended \\(exit code 1"):
        suite.make().reset(suite.tasks("train")[0])


def test_a_worker_that_ends_at_its_start_is_started_again_if_others_started(tmp_path: Path) -> None:
    """As a container that is killed while it starts: of five starts every second ends."""
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\ncd {tmp_path}; echo $$ >> pids\n"
        f'[ $(($(wc -l < pids) % 2)) = 1 ] || exit 1\ncd {Path.cwd()}; exec {sys.executable} "$@"\n'
    )
    python.chmod(0o700)
    suite = in_sandbox(PHONE, Sandbox("process", retries=1), python=str(python))
    task, env = suite.tasks("train")[0], suite.make()
    for started in (1, 3, 5):
        assert env.reset(task).messages
        pids = (tmp_path / "pids").read_text().split()
        assert len(pids) == started
        os.killpg(int(pids[-1]), signal.SIGKILL)  # the worker and the process that waits for it
        while alive(int(pids[-1])):
            time.sleep(0.01)
    suite.close()


def alive(group: int) -> bool:
    """Whether a process of that group still runs (Linux)."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = place.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def test_other_code_in_the_worker_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr("trace_bench.sandbox.workers.code_hash", lambda: "of another version")
    suite = sandboxed("process")
    with pytest.raises(UserError, match=r"its image is of another version\. Build it again"):
        suite.make().reset(suite.tasks("train")[0])


WORDY = """
from trace_bench.core import protocols
from trace_bench.core.types import Score, Step

class Env(protocols.Env):
    def reset(self, task):
        tool = {"type": "function", "function": {"name": "wait", "parameters": {}}}
        return Step(({"role": "user", "content": "x" * task.data["first"]},), (tool,))
    def step(self, action):
        return Step((), done=True, score=Score(1.0, True))
"""


def test_too_long_a_message_is_the_failure_of_its_episode_alone() -> None:
    sandbox = Sandbox("process", run="wordy", allow_untrusted=True)
    suite: Any = untrusted_suite(WORDY + SUITE, sandbox, print)
    long, short = (Task(f"{n}", "source", "train", 0, {"first": n}) for n in (17 * 2**20, 1))
    envs = [suite.make(), suite.make()]
    failed, opened = suite.act(list(zip(envs, (long, short), strict=True)))
    assert isinstance(failed, EpisodeError) and failed.boundary == "environment"
    assert "the environment's answer has 17825" in str(failed)
    assert isinstance(opened, Step) and opened.tools[0]["function"]["name"] == "wait"
    envs[0] = suite.make()
    envs[0].reset(short)
    words = ("x" * 17 * 2**20, "go")
    texts = [{"role": "assistant", "content": text} for text in words]
    failed, step = suite.act(list(zip(envs, texts, strict=True)))
    assert isinstance(failed, EpisodeError) and failed.boundary == "sandbox"
    assert "what is to be sent has 1782" in str(failed) and step.score.success
    envs = [suite.make(), suite.make(), suite.make()]
    suite.act([(env, short) for env in envs])
    said = {"role": "assistant", "content": "x" * 7 * 2**20}  # too long together, not alone
    steps = suite.act([(env, said) for env in envs])
    assert all(isinstance(step, Step) and step.done for step in steps)
    suite.close()


def test_a_closed_pool_leaves_nobody_waiting() -> None:
    suite = sandboxed("process")
    task = suite.tasks("train")[0]
    threads = ThreadPoolExecutor(8)
    calls = [threads.submit(suite.make().reset, task) for _ in range(64)]
    suite.close()
    errors = [call.exception(timeout=60) for call in calls]
    assert all(isinstance(error, NoneType | EpisodeError | UserError) for error in errors)
    threads.shutdown()
    suite.close()  # what was called after the first


IMAGES: dict[str, tuple[str | None, str, slice]] = {
    # name: (variant, split, which of its tasks)
    "tau2": ("telecom", "test", slice(6)),
    "bfcl": ("all", "leaderboard", slice(None, None, 40)),
    "babyai": (None, "dev", slice(40)),
    "textarena": (None, "dev", slice(40)),
}


@pytest.mark.docker
@pytest.mark.parametrize("name", IMAGES)
def test_a_world_of_others_is_played_in_its_image(name: str) -> None:
    variant, split, which = IMAGES[name]
    suite: Any = in_sandbox(chosen(name, variant), Sandbox("docker", run=f"test-{name}"))
    found = scores(ReferencePolicy(suite), suite, suite.tasks(split)[which], max_turns=168)
    assert all(score.success for score in found)
    suite.close()


ONCE = """
import os, pathlib
from trace_bench.core.types import Score, Step, Task

place = pathlib.Path(PLACE)
place.write_text(place.read_text() + "x")
if len(place.read_text()) > 1:
    THEN

class Env:
    def reset(self, task):
        return Step(({"role": "user", "content": "hello"},))
    def step(self, action):
        if self.bad:
            os._exit(3)
        return Step((), done=True, score=Score(1.0, True))
    def close(self):
        pass

def make_task(seed):
    return {"seed": seed}

def reference(data):
    return []

class Env(Env):
    def reset(self, task):
        self.bad = task.data["seed"] == 2
        return super().reset(task)
"""
LATER = {"raises": "raise RuntimeError('once only')", "hangs": "while 1: 0"}


@pytest.mark.parametrize("then", LATER.values(), ids=LATER)
def test_a_program_that_loads_once_loses_episodes_not_the_run(then: str, tmp_path: Path) -> None:
    """Its worker ends during the third task; no other worker can load it any more."""
    place = tmp_path / "loads"
    place.write_text("")
    sandbox = Sandbox("process", start=3.0, allow_untrusted=True)
    source = ONCE.replace("THEN", then)
    suite: Any = generated_suite(Source("once", source, {"PLACE": str(place)}), sandbox, print)
    tasks = [suite.synthetic("", seed) for seed in range(4)]
    idle = IdlePolicy()
    idle.capacity = 1
    suites = Suites(suite, {tasks[0].env: suite})
    played = play(idle, suites, AgentSpec("r"), tasks, range(4), max_turns=3)
    suite.close()
    assert [t.score is not None and t.score.success for t in played[:2]] == [True, True]
    for lost in played[2:]:
        assert lost.score is None and lost.failure is not None
        assert "the environment's source is broken" in lost.failure.error
    assert place.read_text() == "xx", "it is tried once more, and then no more"
    with pytest.raises(SourceError, match="the environment's source is broken"):
        suite.synthetic("", 5)


# -- sandboxes without an engine ------------------------------------------------------------------


def test_a_missing_program_or_folder_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the program `bwrap` in PATH"):
        sandboxed("bubblewrap")
    old.chmod(0o755)
    with pytest.raises(UserError, match=r"needs bubblewrap 0\.8 or later; .* 0\.4\.1"):
        sandboxed("bubblewrap")
    old.write_text("#!/bin/sh\necho bubblewrap 0.11.0\n")
    with pytest.raises(UserError, match=r"base/latest does not hold them\. docs/sandbox\.md says"):
        in_sandbox(PHONE, Sandbox("bubblewrap", roots=str(tmp_path)))


def test_a_machine_that_forbids_namespaces_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "trace-bench/base/latest/opt/project/trace_bench").mkdir(parents=True)
    program = tmp_path / "bwrap"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit\n'
        "echo bwrap: No permissions to create new namespace >&2; exit 1\n"
    )
    for path in (program, tmp_path):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"failed: .*\. Change `sandbox` if this machine"):
        in_sandbox(PHONE, Sandbox("bubblewrap", roots=str(tmp_path)))


def test_an_image_that_podman_lacks_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    program = tmp_path / "podman"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the program `podman` in PATH"):
        sandboxed("podman")
    info = '{"host": {"security": {"rootless": true}, "cgroupControllers": ["pids"]}}'
    program.write_text(
        f"#!/bin/sh\n[ $1 = info ] && echo '{info}' && exit\necho x: image not known >&2; exit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"the image trace-bench/base:latest\. .* podman load"):
        sandboxed("podman")


@pytest.mark.rootless
def test_what_bubblewrap_cannot_limit_is_said_at_the_start() -> None:
    said: list[str] = []
    in_sandbox(PHONE, Sandbox("bubblewrap", roots=ROOTS), log=said.append).close()
    (line,) = said
    assert line.startswith("sandbox=bubblewrap does not limit memory in total")
    assert "CPU time" in line and "system calls" in line and "programs in /tmp" in line
