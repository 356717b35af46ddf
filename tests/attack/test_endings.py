"""The program's exit code says whether there is a result: one that ends without a summary never
ends with 0, whichever part leaves it in whatever way but `os._exit`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import forked
from toy import ToyEnv, ToySuite

from trace_bench.core.protocols import Method, MethodPlan, Tracker
from trace_bench.core.types import AgentSpec, Task
from trace_bench.policies.scripted import IdlePolicy

HERE = __name__


class Leave(SystemExit):
    """An end of one's own."""


class Wordless(SystemExit):
    def __str__(self) -> str:
        raise SystemExit(0)


class Base(BaseException):
    """No Exception."""


WAYS: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(0),
    "an exit of its own": lambda: Leave(),
    "an exit that has no words": lambda: Wordless(0),
    "a generator's end": GeneratorExit,
    "a task's end": asyncio.CancelledError,
    "a base exception": Base,
    "a broken pipe": BrokenPipeError,
    "the keyboard": KeyboardInterrupt,
}


def leave(way: str) -> Any:
    raise WAYS[way]()


class _Env(ToyEnv):
    def __init__(self, place: str, way: str) -> None:
        super().__init__()
        self.place, self.way = place, way

    def reset(self, task: Task) -> Any:
        return leave(self.way) if self.place == "reset" else super().reset(task)

    def step(self, action: Any) -> Any:
        return leave(self.way) if self.place == "step" else super().step(action)

    def close(self) -> None:
        if self.place == "close":
            leave(self.way)


class World(ToySuite):
    def __init__(self, place: str, way: str) -> None:
        super().__init__()
        self.place, self.way = place, way
        if place == "suite":
            leave(way)

    def tasks(self, split: str) -> Any:
        return leave(self.way) if self.place == "tasks" else super().tasks(split)

    def make(self) -> Any:
        return leave(self.way) if self.place == "make" else _Env(self.place, self.way)


class Way(Method):
    def __init__(self, place: str, way: str) -> None:
        self.place, self.way = place, way

    def plan(self, run: Any) -> MethodPlan:
        return leave(self.way) if self.place == "plan" else MethodPlan(learns=False)

    def fit(self, base: AgentSpec, tasks: Any, lab: Any) -> AgentSpec:
        if self.place == "fit in a thread":
            thread = threading.Thread(target=leave, args=(self.way,))
            thread.start()
            thread.join()
            return base
        return leave(self.way)


class Acts(IdlePolicy):
    def __init__(self, place: str, way: str) -> None:
        super().__init__()
        self.place, self.way = place, way

    def submit(self, requests: Any) -> None:
        leave(self.way) if self.place == "submit" else super().submit(requests)

    def collect(self) -> Any:
        return leave(self.way) if self.place == "collect" else super().collect()

    def close(self) -> None:
        if self.place == "policy's close":
            leave(self.way)


class Tracks(Tracker):
    def __init__(self, place: str, way: str) -> None:
        self.place, self.way = place, way
        if place == "tracker":
            leave(way)

    def log(self, values: Any) -> None:
        if self.place == "log":
            leave(self.way)

    def conclude(self, summary: Any) -> None:
        return

    def close(self) -> None:
        if self.place == "tracker's close":
            leave(self.way)


PLACES = {
    "env": (World, ["suite", "tasks", "make", "reset", "step", "close"]),
    "method": (Way, ["plan", "fit", "fit in a thread"]),
    "policy": (Acts, ["submit", "collect", "policy's close"]),
    "tracker": (Tracks, ["tracker", "log", "tracker's close"]),
}
USUAL = ("an exit that has no words",)
CASES = [
    (group, place, way)
    for group, (_, places) in PLACES.items()
    for place in places
    for way in (WAYS if place == "fit" else USUAL)
]


@pytest.mark.parametrize(("group", "place", "way"), CASES)
def test_no_end_without_a_summary_is_a_success(
    group: str, place: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [f"{group}.factory={HERE}:{PLACES[group][0].__name__}"]
    options += [f"{group}.options.place='{place}'", f"{group}.options.way='{way}'"]
    others = {"method": "method=base", "policy": "policy=idle", "env": "evaluation.limit=2"}
    rest = [setting for name, setting in others.items() if name != group]
    split = ["evaluation.split=train", "protocol=paper"] if group == "env" else []
    code, said = forked("trace_bench", *rest, *options, *split, "run_dir=run")
    if code == 0:
        assert (tmp_path / "run" / "summary.json").is_file(), said
    else:
        assert "error: " in said or "interrupted" in said, said
        assert "Traceback (" not in said, said
