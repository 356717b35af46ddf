"""How a call in a recorded dialogue is answered: from the recording, by the tool's schema, or by a
simulator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from trace_bench.checklists.talk import Call, Turn, call_of
from trace_bench.core.types import Tool
from trace_bench.envs.recorded.schema import fault_of

NOT_RECORDED = json.dumps({"error": "ToolError: this call has no recorded answer"})

Exchange = tuple[Call, str]  # a call and its answer


class Simulator(Protocol):
    """Answers a call that no recording answers. `there`: all recorded exchanges; `so_far`: those of
    this rollout. Raises EpisodeError at the boundary SIMULATOR if there is no answer: the episode
    is void."""

    def answer(
        self, call: Call, tool: Tool, there: Sequence[Exchange], so_far: Sequence[Exchange]
    ) -> str: ...


class World(Protocol):
    """The real environment behind a recording. `answer` makes the call there; `shown` is what the
    agent reads of it, which may have set errors."""

    def answer(self, call: Call) -> str: ...
    def shown(self, call: Call, answer: str) -> str: ...


class Tools:
    """The tools of one episode.

    `replays`: whether recorded answers come first. `world`: makes every call, also those that a
    recording answers, so that its state stays that of the conversation. The n-th of several equal
    calls gets the n-th recorded answer, and the last one from then on; a simulated answer is given
    again."""

    def __init__(
        self,
        tools: Sequence[Tool],
        recorded: Sequence[Exchange],
        *,
        replays: bool = True,
        world: World | None = None,
        simulator: Simulator | None = None,
    ) -> None:
        self._schemas = {tool["function"]["name"]: tool for tool in tools}
        self._there, self._replays = list(recorded), replays
        self._world, self._simulator = world, simulator
        self._answers: dict[str, list[str]] = {}
        for call, answer in recorded:
            self._answers.setdefault(call.key, []).append(answer)
        self._made: dict[str, int] = {}
        self._kept: dict[str, str] = {}
        self._so_far: list[Exchange] = []
        self.counts = {"replayed": 0, "refused": 0, "simulated": 0, "real": 0}

    def answer(self, raw: Any) -> tuple[str, bool]:
        """(the answer, whether the call is malformed)."""
        try:
            call = call_of(raw)
        except ValueError as error:
            return self._refused(str(error))
        tool = self._schemas.get(call.name)
        if tool is None:
            return self._refused(f"there is no tool {call.name[:60]!r}")
        recorded = self._recorded(call)
        if recorded is not None:
            self.counts["replayed"] += 1
        elif fault := fault_of(call.arguments, tool["function"].get("parameters", {})):
            return self._refused(fault)
        real = self._world.answer(call) if self._world is not None else None
        answer = self._simulated(call, tool, real) if recorded is None else recorded
        self._so_far.append((call, answer))
        return answer, False

    def _recorded(self, call: Call) -> str | None:
        answers = self._answers.get(call.key) if self._replays else None
        if answers is None:
            return None
        number = self._made.get(call.key, 0)
        self._made[call.key] = number + 1
        return answers[min(number, len(answers) - 1)]

    def _simulated(self, call: Call, tool: Tool, real: str | None) -> str:
        if real is not None and self._world is not None:
            self.counts["real"] += 1
            return self._world.shown(call, real)
        if self._simulator is None:
            return NOT_RECORDED
        if call.key not in self._kept:
            self.counts["simulated"] += 1
            made = self._simulator.answer(call, tool, self._there, self._so_far)
            self._kept[call.key] = made
        return self._kept[call.key]

    def _refused(self, why: str) -> tuple[str, bool]:
        self.counts["refused"] += 1
        return json.dumps({"error": f"ToolError: {why[:500]}"}), True


def exchanges(turns: Sequence[Turn]) -> list[Exchange]:
    """All calls of a recording that can be read, with their answers."""
    return [
        (call, result)
        for turn in turns
        for step in turn.steps
        for call, result in zip(step.calls, step.results, strict=False)
        if call is not None
    ]
