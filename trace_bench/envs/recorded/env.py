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
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Env
from trace_bench.core.types import Boundary, Message, Milestone, Score, Step, StopReason, Task
from trace_bench.envs.recorded.tools import Behind, Tools, exchanges

MOST_CALLS = 16  # of one message of the agent; the others are not made
MakeTools = Callable[[Mapping[str, Any], list[Any], Behind | None], Tools]
"""(record, its exchanges, the real environment) -> the tools of an episode."""


class RecordedEnv(Env):
    """`behind`: makes the real environment of a
    record; it gives None where there is none."""

    def __init__(
        self,
        judge: Judge,
        make_tools: MakeTools,
        behind: Callable[[Mapping[str, Any]], Behind | None],
    ) -> None:
        self._judge, self._make_tools, self._make_behind = judge, make_tools, behind
        self._behind: Behind | None = None
        self._live = False

    def reset(self, task: Task) -> Step:
        self.close()
        record = task.data["record"]
        opening, self._turns = turns_of(record["messages"])
        self._checklists = read_checklists(record["checklists"], str(record["uuid"]))
        self._progress = ChecklistProgress(self._checklists, self._judge)
        self._behind = self._make_behind(record)
        self._tools = self._make_tools(record, exchanges(self._turns), self._behind)
        self._task, self._number = task.id, 0
        self._acted: list[int] = []  # the user's turn of each step
        self._now = UserTurn(self._turns[0].user)
        self._said: list[Message] = list(opening)
        self._places: list[int] = []  # the index of each step's message in the conversation
        self._live = True
        return Step((*opening, self._now.user), tuple(record["tools"]))

    def step(self, action: Message) -> Step:
        if not self._live:
            raise EpisodeError(
                Boundary.ENVIRONMENT.value, "step without a running episode; reset first"
            )
        raw = action.get("tool_calls") or ()
        calls = list(raw)[:MOST_CALLS] if isinstance(raw, list | tuple) else [raw]
        answers, malformed = [], False
        for call in calls:
            content, bad = self._tools.answer(call)
            answers.append(answer_call(call, content))
            malformed = malformed or bad
        made = {**action, "tool_calls": calls} if calls else dict(action)
        step = step_of(made, [answer["content"] for answer in answers], malformed)
        self._now = replace(self._now, steps=(*self._now.steps, step))
        self._acted.append(self._number)
        before = tuple(self._said)
        self._places.append(len(before) + 1 + self._length() - 1 - len(answers))
        scene = Scene(self._task, before, self._now)
        self._progress.judge(self._number, len(self._acted) - 1, scene)
        if calls:
            return Step(tuple(answers))
        return self._next()

    def score(self) -> Score:
        """The score of the conversation as it stands."""
        checks = self._progress.checks()
        rollout = Rollout(tuple(self._acted), checks)
        items = [i for c in self._checklists for turn in c.turns for i in turn]
        milestones = tuple(
            Milestone(
                f"turn {check.turn + 1}: {item.question}"[:300],
                float(check.step is not None),
                check.step is not None,
                None if check.step is None else self._places[check.step],
            )
            for check, item in zip(checks, items, strict=True)
        )
        done = all(check.step is not None for check in checks)
        details = {"turns": self._number + 1, "of": len(self._turns), "calls": self._tools.counts}
        similarity = min(1.0, max(0.0, reward(rollout, Assignment())))
        return Score(similarity, done, details, milestones, checks=checks)

    def close(self) -> None:
        self._live = False
        if self._behind is not None:
            self._behind.close()
            self._behind = None

    def _next(self) -> Step:
        """The user's next turn, or the end."""
        goes_on = self._progress.goes_on(self._number)
        if not goes_on or self._number + 1 == len(self._turns):
            self._live = False
            return Step(done=True, score=self.score(), stop=StopReason.DONE)
        self._said += [self._now.user, *self._messages()]
        self._number += 1
        self._now = UserTurn(self._turns[self._number].user)
        return Step((self._now.user,))

    def _messages(self) -> list[Message]:
        """The messages of this turn after the user's."""
        out: list[Message] = []
        for step in self._now.steps:
            out.append(step.message)
            calls = step.message.get("tool_calls") or ()
            out += [answer_call(c, r) for c, r in zip(calls, step.results, strict=True)]
        return out

    def _length(self) -> int:
        """How many messages of this turn came after the user's."""
        return sum(1 + len(step.results) for step in self._now.steps)
