"""One episode of a recorded dialogue.

The user says the recorded turns verbatim; each lasts until the agent answers without a call, and
the next one comes only if the items that it requires are satisfied. Every step is judged when it is
made. The score is the checklist's reward of the trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trace_bench.checklists.items import read_checklists
from trace_bench.checklists.judges import ChecklistProgress, Judge, Scene
from trace_bench.checklists.rewards import Assignment, Rollout, reward
from trace_bench.checklists.talk import UserTurn, step_of, turns_of
from trace_bench.core.chat import answer_call
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import LiveEnv, met
from trace_bench.envs.recorded.tools import Exchange, Tools, exchanges

MOST_CALLS = 16  # of one message of the agent; the others are not made
MakeTools = Callable[[Mapping[str, Any], list[Exchange]], Tools]
"""(record, its exchanges) -> the tools of an episode."""


class RecordedEnv(LiveEnv):
    """A recorded dialogue as an episode."""

    _tools: Tools | None = None

    def __init__(self, judge: Judge, make_tools: MakeTools) -> None:
        self._judge, self._make_tools = judge, make_tools

    def reset(self, task: Task) -> Step:
        self.close()
        record = task.data["record"]
        opening, self._turns = turns_of(record["messages"])
        self._checklists = read_checklists(record["checklists"], str(record["uuid"]))
        self._progress = ChecklistProgress(self._checklists, self._judge)
        self._tools = self._make_tools(record, exchanges(self._turns))
        self._task = task.id
        self._acted: list[int] = []  # the user's turn of each step
        self._talk: list[Message] = list(opening)
        self._places: list[int] = []  # the index of each step's message in the conversation
        self._hear(0)
        self._live = True
        return Step((*opening, self._now.user), tuple(record["tools"]))

    def _hear(self, number: int) -> None:
        """The user's turn of that number begins."""
        self._number, self._now = number, UserTurn(self._turns[number].user)
        self._before = tuple(self._talk)
        self._talk.append(self._now.user)

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        assert self._tools is not None
        answers, malformed = [], False
        for call in calls[:MOST_CALLS]:
            content, bad = self._tools.answer(call)
            answers.append(answer_call(call, content))
            malformed = malformed or bad
        made = {**action, "tool_calls": calls[:MOST_CALLS]} if calls else dict(action)
        step = step_of(made, [answer["content"] for answer in answers], malformed)
        self._now = replace(self._now, steps=(*self._now.steps, step))
        self._acted.append(self._number)
        self._places.append(len(self._talk))
        self._talk += [made, *answers]
        scene = Scene(self._task, self._before, self._now)
        self._progress.judge(self._number, len(self._acted) - 1, scene)
        if calls:
            return Step(tuple(answers))
        if not self._progress.goes_on(self._number) or self._number + 1 == len(self._turns):
            return self.end(StopReason.DONE)
        self._hear(self._number + 1)
        return Step((self._now.user,))

    def score(self) -> Score:
        assert self._tools is not None
        checks = self._progress.checks()
        rollout = Rollout(tuple(self._acted), checks)
        items = [i for c in self._checklists for turn in c.turns for i in turn]
        milestones = []
        for check, item in zip(checks, items, strict=True):
            place = None if check.step is None else self._places[check.step]
            name = f"turn {check.turn + 1}: {item.question}"[:300]
            milestones.append(met(name, place is not None, place))
        done = all(milestone.hit for milestone in milestones)
        details = {"turns": self._number + 1, "of": len(self._turns), "calls": self._tools.counts}
        similarity = min(1.0, max(0.0, reward(rollout, Assignment())))
        return Score(similarity, done, details, tuple(milestones), checks=checks)

    def close(self) -> None:
        super().close()
        if self._tools is not None:
            self._tools.close()
