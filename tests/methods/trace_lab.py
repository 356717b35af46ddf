"""A lab in memory for the tests of TRACE: a scripted agent in the real embedded world.

The agent solves tasks by the scenarios' own programs, and in every episode lacks each capability
with a given probability. It differs from a real one only by having no tokens.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import BudgetExceeded
from trace_bench.core.protocols import Prompt, State, Trainer, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import CHARGED, AdapterRef, AgentSpec, Purpose, Task, Trajectory, Turn
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.envs.toolsandbox.scenarios.shapes import shapes
from trace_bench.envs.toolsandbox.scenarios.solver import Playback, Solver, play
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.scripted import IdlePolicy

SHAPES = {shape.name: shape for shape in shapes()}
BASE = AgentSpec(model="scripted")
THREE = {
    "recovers_from_errors": 0.7,
    "asks_when_information_is_missing": 0.7,
    "completes_all_parts": 0.5,
}
"""What an agent lacks, and how often."""
_EPISODES: dict[tuple[str, frozenset[str]], Trajectory] = {}
"""Of the embedded world, for all labs: by task and what the agent lacks."""


def trajectory_of(task: Task, record: Playback) -> Trajectory:
    """What a program did, as a trajectory."""
    turns: list[Turn] = []
    pending = list(record.first.messages)
    for message in record.messages:
        if message["role"] == "assistant":
            turns.append(Turn(tuple(pending), message))
            pending = []
        else:
            pending.append(message)
    tools, acted, last = tuple(record.first.tools), tuple(turns), record.last
    assert last.stop is not None
    return Trajectory(task.id, 0, "base", tools, acted, tuple(pending), last.stop, last.score)


def act_out(task: Task, lacks: frozenset[str]) -> Trajectory:
    """Solves a task of the embedded suite without the capabilities `lacks`."""
    pool = "train" if task.split == "train_large" else task.split
    _, turns = build(SHAPES[task.data["shape"]], Words(pool), task.seed, task.id, task.split)
    solver = Solver(frozenset(task.data["tools"]), lacks)
    return trajectory_of(task, play(ToolSandboxEnv(), task, turns, solver))


class ScriptedTrainer(Trainer):
    """Spends its share but for `leave` rollouts; its adapters do nothing."""

    def __init__(self, leave: int = 0) -> None:
        self.jobs: list[TrainingJob] = []
        self.leave = leave

    def train(self, job: TrainingJob, lab: Any) -> AgentSpec:
        self.jobs.append(job)
        tasks = [job.tasks[i % len(job.tasks)] for i in range(max(0, job.rollouts - self.leave))]
        lab.rollouts(f"train/{job.name}/0", job.agent, tasks, purpose=Purpose.TRAINING)
        adapter = AdapterRef(f"{job.name}-v1", f"adapters/{job.name}-v1", job.name)
        agent = replace(job.agent, adapters=(adapter,))
        lab.checkpoint(job.whole(agent) if job.whole else agent)
        return agent


class MemoryLab:
    """`protocols.Lab`. `habits`: how often the agent lacks each capability."""

    def __init__(
        self, habits: dict[str, float], budget: int, seed: int = 0, suite: Any = None, trainer=None
    ) -> None:
        self.folder = Path("unused")
        self.seed = seed
        self.suite = suite or EmbeddedSuite()
        self.trainer = trainer or ScriptedTrainer()
        self.policy: LocalPolicy | None = None
        self.habits, self.left = habits, budget
        self.calls: list[tuple[str, Purpose, tuple[str, ...]]] = []
        self.files: dict[str, Any] = {}
        self.logged: list[str] = []
        self.checkpoints: list[AgentSpec] = []
        self._episodes = _EPISODES if suite is None else {}

    def charges(self, purpose: Purpose) -> bool:
        return purpose in CHARGED["strict"]

    def budget_left(self) -> int:
        return self.left

    def spent(self) -> Counter[Purpose]:
        """Rollouts by purpose, charged or not."""
        purposes = [purpose for _, purpose, tasks in self.calls for _ in tasks]
        return Counter(purposes)

    def leave(self, why: str) -> None:
        self.logged.append(why)

    def rollouts(
        self, call: str, agent: AgentSpec, tasks: Sequence[Task], *, purpose: Purpose, **how: Any
    ) -> list[Trajectory]:
        assert call not in [c for c, _, _ in self.calls], f"{call} is used twice"
        charge = len(tasks) if self.charges(purpose) else 0
        if charge > self.left:
            raise BudgetExceeded(f"{call}: {charge} of {self.left}")
        self.left -= charge
        self.calls.append((call, purpose, tuple(t.id for t in tasks)))
        if purpose is Purpose.TRAINING:
            return []  # the scripted trainer does not look at them
        return [self._episode(call, i, task) for i, task in enumerate(tasks)]

    def _episode(self, call: str, index: int, task: Task) -> Trajectory:
        rng = random.Random(stable_seed(self.seed, call, index))
        lacks = frozenset(c for c, p in sorted(self.habits.items()) if rng.random() < p)
        key = (task.id, lacks)
        if key not in self._episodes:
            self._episodes[key] = act_out(self.suite.task(task.id), lacks)
        return self._episodes[key]

    def checkpoint(self, agent: AgentSpec) -> None:
        self.checkpoints.append(agent)

    def prompt_limit(self, role: str) -> int | None:
        """Programs play all roles."""
        return None

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        """Of the policy that a test gives; without one, how often words with each of 32 checksums
        stand in a prompt."""
        if self.policy is not None:
            return self.policy.prompt_states(prompts)
        found: list[State] = []
        for messages, tools in prompts:
            counts = [0.0] * 32
            for word in f"{messages} {tools}".split():
                counts[zlib.crc32(word.encode()) % 32] += 1.0
            found.append(counts)
        return found

    def suite_of(self, task: Task) -> Any:
        return self.suite

    def metric(self, **values: Any) -> None:
        """Nothing is followed."""

    def log(self, text: str) -> None:
        self.logged.append(text)

    def write(self, name: str, value: Any) -> None:
        self.files[name] = json.loads(json.dumps(value, allow_nan=False))


class States(IdlePolicy):
    """The states of a lab's policy, for a router."""

    def __init__(self, lab: MemoryLab) -> None:
        super().__init__()
        self._lab = lab

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        return self._lab.prompt_states(prompts)
