"""The program's exit code says whether there is a result: one that ends without a summary never
ends with 0, whichever part leaves it in whatever way but `os._exit`."""

from __future__ import annotations

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


class Wordless(SystemExit):
    def __str__(self) -> str:
        raise SystemExit(0)


WAYS: dict[str, Callable[[], BaseException]] = {
    "an exit": lambda: SystemExit(0),
    "an exit that has no words": lambda: Wordless(0),
    "a generator's end": GeneratorExit,
    "a broken pipe": BrokenPipeError,
    "the keyboard": KeyboardInterrupt,
}


class Left:
    """A part that is left at one of its places."""

    def __init__(self, place: str, way: str) -> None:
        super().__init__()
        self.place, self.way = place, way
        self.at("init")

    def at(self, place: str) -> None:
        if self.place == place:
            raise WAYS[self.way]()


class _Env(Left, ToyEnv):
    def reset(self, task: Task) -> Any:
        self.at("reset")
        return super().reset(task)

    def step(self, action: Any) -> Any:
        self.at("step")
        return super().step(action)

    def close(self) -> None:
        self.at("close")


class World(Left, ToySuite):
    def tasks(self, split: str) -> Any:
        self.at("tasks")
        return super().tasks(split)

    def make(self) -> Any:
        return _Env(self.place, self.way)


class Way(Left, Method):
    def plan(self, run: Any) -> MethodPlan:
        self.at("plan")
        return MethodPlan(learns=False)

    def fit(self, base: AgentSpec, tasks: Any, lab: Any) -> AgentSpec:
        self.at("fit")
        thread = threading.Thread(target=self.at, args=("fit in a thread",))
        thread.start()
        thread.join()
        return base


class Acts(Left, IdlePolicy):
    def collect(self) -> Any:
        self.at("collect")
        return super().collect()

    def close(self) -> None:
        self.at("policy's close")


class Tracks(Left, Tracker):
    def log(self, values: Any) -> None:
        self.at("log")

    def conclude(self, summary: Any) -> None:
        return

    def close(self) -> None:
        self.at("tracker's close")


PLACES = {
    "env": (World, ["init", "tasks", "reset", "step", "close"]),
    "method": (Way, ["plan", "fit", "fit in a thread"]),
    "policy": (Acts, ["collect", "policy's close"]),
    "tracker": (Tracks, ["log", "tracker's close"]),
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
    others = {"method": "method=base", "policy": "policy=idle", "env": "evaluation.split=dev"}
    rest = [setting for name, setting in others.items() if name != group]
    split = (
        ["evaluation.split=train", "protocol=paper"] if group == "env" else ["evaluation.limit=1"]
    )
    code, said = forked("trace_bench", *rest, *options, *split, "run_dir=run")
    if code == 0:
        assert (tmp_path / "run" / "summary.json").is_file(), said
    else:
        assert "error: " in said or "interrupted" in said, said
        assert "Traceback (" not in said, said
