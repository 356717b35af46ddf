"""A folder of recorded dialogues as a suite, and one episode of it. Variant: the folder's name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trace_bench.checklists import judges
from trace_bench.checklists.items import checklists_of
from trace_bench.checklists.model_judge import PROMPT_VERSION as JUDGE_VERSION
from trace_bench.checklists.model_judge import ModelJudge
from trace_bench.checklists.rewards import Assignment, Rollout, reward
from trace_bench.checklists.talk import UserTurn, step_of, turns_of
from trace_bench.core.chat import answer_call
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Env, Lender, RunContext, Suite, Typical, make_env
from trace_bench.core.store import read_bytes, read_object, stable_seed
from trace_bench.core.types import Message, Score, Step, StopReason, Task
from trace_bench.envs import EitherEnv, LiveEnv, met, task_named
from trace_bench.envs.recorded.data import META, read_split, splits_in
from trace_bench.envs.recorded.tools import PROMPT_VERSION, Behind, ModelSimulator, Rates, Tools

MOST_CALLS = 16  # of one message of the agent; the others are not made


class RecordedEnv(LiveEnv):
    """One episode of a recorded dialogue.

    The user says the recorded turns verbatim; each lasts until the agent answers without a call,
    and the next one comes only if the items that it requires are satisfied. Every step is judged
    when it is made. The score is the checklist's reward of the trajectory."""

    _tools: Tools | None = None

    def __init__(
        self, judge: judges.Judge, make_tools: Callable[[Mapping[str, Any]], Tools]
    ) -> None:
        self._judge, self._make_tools = judge, make_tools

    def reset(self, task: Task) -> Step:
        self.close()
        record = task.data["record"]
        opening, self._turns = turns_of(record["messages"])
        self._checklists = checklists_of(record["checklists"])
        self._progress = judges.ChecklistProgress(self._checklists, self._judge)
        self._tools = self._make_tools(record)
        self._task = task.id
        self._acted: list[int] = []  # the user's turn of each step
        self._talk: list[Message] = list(opening)
        self._places: list[int] = []  # the index of each step's message in the conversation
        self._hear(0)
        self._live = True
        return Step((*opening, self._now.user), tuple(record["tools"]))

    def _hear(self, number: int) -> None:
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
        message = {**action, "tool_calls": calls[:MOST_CALLS]} if calls else dict(action)
        step = step_of(message, [answer["content"] for answer in answers], malformed)
        self._now = replace(self._now, steps=(*self._now.steps, step))
        self._acted.append(self._number)
        self._places.append(len(self._talk))
        self._talk += [message, *answers]
        scene = judges.Scene(self._task, self._before, self._now)
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


@dataclass(frozen=True)
class RecordedSettings(Rates, judges.Errors):
    """`env.*` of `env=recorded`, with the set error rates of the judge and of the tools."""

    folder: str | None = None
    """The recordings: a folder with a JSONL file for each split."""
    tools: Literal["replay", "simulate", "real"] = "simulate"
    """replay: recorded answers only; simulate: the simulator (`llm.simulator`; without a model, the
    real environment) gives the others; real: the environment that the recordings come from gives
    all."""


REAL = "real_"  # before the names of the real suite's splits


class RecordedSuite(Suite):
    """Recorded dialogues: the user's turns verbatim, tools replayed or simulated, a checklist as
    the score. `python -m trace_bench.record` makes a folder of them (docs/checklists.md).

    Raises UserError."""

    name = "recorded"
    image = "base"
    lists_tasks_here = True
    typical = Typical(4, 150, 30, 2)  # of the phone world's recordings

    def __init__(self, run: RunContext, settings: RecordedSettings) -> None:
        if not settings.folder:
            raise UserError(
                "env=recorded needs env.folder: a folder of recorded dialogues, as `python -m "
                "trace_bench.record` makes one."
            )
        self._run, self._settings = run, settings
        self.folder = Path(settings.folder)
        self.variant: str = self.folder.name
        self._split: dict[str, list[Task]] = {}
        self._suites: dict[str, Suite] = {}
        self._simulator: ModelSimulator | None = None
        if settings.tools == "simulate" and run.simulator is not None:
            self._simulator = ModelSimulator(run.simulator)
        judge: judges.Judge = judges.ProgramJudge() if run.judge is None else ModelJudge(run.judge)
        self._judge = judges.ErringJudge(judge, settings, run.seed) if settings.any else judge

    def asks_user(self) -> bool:
        """Whether episodes wait for a model's answers: a judge's or a simulator's."""
        return self._run.judge is not None or self._simulator is not None

    def about(self) -> dict[str, Any]:
        s = self._settings
        judge = "program" if self._run.judge is None else f"llm, prompt {JUDGE_VERSION}"
        simulator = "program" if self._simulator is None else f"llm, prompt {PROMPT_VERSION}"
        return {
            "data": self._revision,
            "real": self._source,
            "tools": s.tools,
            "judge": judge,
            "judge_errors": {"misses": s.misses, "alarms": s.alarms, "correlated": s.correlated},
            "simulator": "none" if s.tools == "replay" else simulator,
            "simulator_errors": {
                "wrong": s.wrong, "stale": s.stale, "inconsistent": s.inconsistent,
            },
        }  # fmt: skip

    def splits(self) -> Sequence[str]:
        """The folder's files, and the splits of the suite that they come from as `real_dev`, ...:
        its own tasks with its own score."""
        if self._source is None:
            return splits_in(self.folder)
        real = [REAL + split for split in self._real(self._source).splits()]
        return [*splits_in(self.folder), *real]

    def lender(self, split: str) -> Lender | None:
        """The suite that the recordings come from, for its own splits."""
        if self._source is None or not split.startswith(REAL):
            return None
        env, _, variant = self._source.partition("/")
        real = split.removeprefix(REAL)
        return Lender(self._real(self._source), env, variant or None, real)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in (there := self.splits()):
            setting = "env.train_split, env.dev_split or evaluation.split"
            raise unknown("split", split, there, setting)
        if (lender := self.lender(split)) is not None:
            return lender.suite.tasks(lender.split)
        if split not in self._split:
            records = enumerate(read_split(self.folder, split))
            self._split[split] = [self._task(split, n, record) for n, record in records]
        return self._split[split]

    def task(self, task_id: str) -> Task:
        if self._source is not None and task_id.startswith(f"{self._source}/"):
            return self._real(self._source).task(task_id)
        return task_named(self, task_id)

    def make(self) -> EitherEnv:
        """An environment for a recording or for a task of the real suite."""
        return EitherEnv(self._env_of)

    def _env_of(self, task: Task) -> Env:
        if task.env == self.name:
            return RecordedEnv(self._judge, self._make_tools)
        return make_env(self._real("/".join(task.id.split("/")[:2])))

    def reference(self, task: Task) -> Sequence[Message]:
        """The agent's recorded messages; the real suite's reference for a task of it."""
        if task.env != self.name and self._source is not None:
            real = self._real(self._source)
            return real.reference(task) if real.has(Suite.reference) else ()
        return [m for m in task.data["record"]["messages"] if m["role"] == "assistant"]

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        """The first variant of the record's checklists; [] for a task of the real suite."""
        if task.env != self.name:
            return []
        turns: Sequence[Sequence[Mapping[str, Any]]] = task.data["record"]["checklists"][0]
        return turns

    @cached_property
    def _source(self) -> str | None:
        """The suite that all recordings come from, if the folder says so."""
        path = self.folder / META
        if not path.exists():
            return None
        made_by = read_object(path).get("made_by")
        suite = made_by.get("suite") if isinstance(made_by, Mapping) else None
        return suite if isinstance(suite, str) else None

    @cached_property
    def _revision(self) -> str:
        digest = hashlib.sha256()
        for split in splits_in(self.folder):
            digest.update(split.encode() + b"\0" + read_bytes(self.folder / f"{split}.jsonl"))
        return f"{self.variant}, {digest.hexdigest()[:12]}"

    def _task(self, split: str, place: int, record: Mapping[str, Any]) -> Task:
        if self._run.judge is None:
            for item in (i for variant in record["checklists"] for turn in variant for i in turn):
                judges.check_of(
                    item["extra_info"], f"{self.folder}, {record['uuid']}, item {item['id']}"
                )
        seed = stable_seed("recorded", record["uuid"]) % 2**31
        identity = f"{self.name}/{self.variant}/{split}/{place:05d}"
        return Task(identity, self.name, split, seed, {"record": record})

    def _make_tools(self, record: Mapping[str, Any]) -> Tools:
        replays, behind = self._settings.tools != "real", self._behind(record)
        return Tools(record, replays=replays, world=behind, simulator=self._simulator)

    def _behind(self, record: Mapping[str, Any]) -> Behind | None:
        """The real environment, where it answers calls."""
        s = self._settings
        if s.tools == "replay" or self._simulator is not None:
            return None
        source = record.get("source") or {}
        if not isinstance(source.get("suite"), str) or not isinstance(source.get("task"), str):
            raise UserError(
                f"the dialogue {record['uuid']!r} names no `source`, so there is no real "
                "environment behind it. Set env.tools to replay, or llm.simulator.by to endpoint."
            )
        suite = self._real(source["suite"])
        return Behind(suite, suite.task(source["task"]), s, self._run.seed)

    def _real(self, name: str) -> Suite:
        """The suite that the recordings come from."""
        from trace_bench.settings.registry import find
        from trace_bench.settings.schema import PartSettings

        if name not in self._suites:
            part, _, variant = name.partition("/")
            suite: Suite = find("env", PartSettings(part), variant or None).make(self._run)
            self._suites[name] = suite
        return self._suites[name]
