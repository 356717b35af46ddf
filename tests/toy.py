"""A world small enough to hold in mind: add numbers to a sum, then say it.

A task's data: {"add": [int, ...], "break": null|"reset"|"step"|"close"|"episode", "patience": how
many wrong answers are met with "Go on."}. The reference calls `add` once per number and then says
"sum <total>".
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from trace_bench.core.chat import call_message, make_tool, text_message
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask, Env, RunContext, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Score, Step, StopReason, Task

TOOLS = (make_tool("add", "Adds to the sum.", number="integer"),)


class ToyEnv(Env):
    def __init__(self, max_steps: int = 6) -> None:
        self.max_steps = max_steps
        self.closed = False

    def reset(self, task: Task) -> Step:
        self.task, self.sum, self.steps = task, 0, 0
        if task.data.get("break") == "reset":
            raise RuntimeError("broken at reset")
        numbers = ", ".join(map(str, task.data["add"]))
        system: Message = {"role": "system", "content": "Use the tool."}
        return Step((system, {"role": "user", "content": f"Add {numbers}."}), TOOLS)

    def step(self, action: Message) -> Step:
        if self.task.data.get("break") == "step":
            raise ValueError("broken at step")
        if self.task.data.get("break") == "episode":
            raise EpisodeError("sandbox", "the sandbox is gone")
        self.steps += 1
        results = tuple(self._call(c) for c in action.get("tool_calls", ()))
        if not results:
            right = action["content"] == f"sum {sum(self.task.data['add'])}"
            if not right and self.steps <= self.task.data.get("patience", 0):
                return Step(({"role": "user", "content": "Go on."},))
            score = Score(1.0, True) if right else self.score()
            return Step(done=True, score=score, stop=StopReason.DONE)
        if self.steps >= self.max_steps:
            return Step(results, done=True, score=self.score(), stop=StopReason.TURN_LIMIT)
        return Step(results)

    def score(self) -> Score:
        total = sum(self.task.data["add"])
        return Score(0.5 if self.sum == total else 0.0, False)

    def close(self) -> None:
        self.closed = True
        if self.task.data.get("break") == "close":
            raise RuntimeError("broken at close")

    def _call(self, call: Message) -> Message:
        arguments = json.loads(call["function"]["arguments"])
        number = arguments.get("number")
        content = "ValueError: number is not an integer"
        if isinstance(number, int):
            self.sum += number
            content = str(self.sum)
        name = call["function"]["name"]
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


class ToySuite(Suite):
    name, variant = "toy", "tests"

    def __init__(self, max_steps: int = 6) -> None:
        self.max_steps = max_steps
        self.made: list[ToyEnv] = []

    def splits(self) -> Sequence[str]:
        return ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        return [toy_task(i) for i in range(16)]

    def task(self, task_id: str) -> Task:
        return toy_task(int(task_id.rpartition("/")[2]))

    def make(self) -> ToyEnv:
        self.made.append(ToyEnv(self.max_steps))
        return self.made[-1]

    def reference(self, task: Task) -> Sequence[Message]:
        calls = [call_message("add", {"number": n}) for n in task.data["add"]]
        return [*calls, text_message(f"sum {sum(task.data['add'])}")]


class Chat(ToyEnv):
    """A conversation with whoever plays the user, who ends it."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask

    def reset(self, task: Task) -> Step:
        self.said: list[Message] = [{"role": "user", "content": "Begin."}]
        return Step(({"role": "system", "content": "Talk."}, self._user()))

    def step(self, action: Message) -> Step:
        self.said.append({"role": "user", "content": action["content"]})
        answer = self._user()
        if "###STOP###" in answer["content"]:
            return Step(done=True, score=Score(1.0, True), stop=StopReason.DONE)
        return Step((answer,))

    def score(self) -> Score:
        return Score(0.0, False)

    def _user(self) -> Message:
        return {"role": "user", "content": self.ask("user", self.said)}


class Chats(ToySuite):
    """Its user is asked for."""

    def __init__(self, run: RunContext) -> None:
        super().__init__()
        self.ask = run.ask

    def asks_user(self) -> bool:
        return self.ask is not None

    def make(self) -> Chat:
        assert self.ask is not None
        return Chat(self.ask)


def toy_task(index: int, broken: str | None = None, patience: int = 0) -> Task:
    seed = stable_seed("toy", index)
    data = {
        "add": [seed % 90 + 5, seed % 7][: 1 + index % 2],
        "break": broken,
        "patience": patience,
    }
    return Task(f"toy/tests/train/{index:04d}", "toy", "train", seed, data)
