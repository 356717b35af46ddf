"""A lab in memory whose gate plays real episodes with real adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from named import method
from playing import play
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AdapterRef, AgentSpec, Task, Trajectory, Turn
from trace_bench.policies.loading import DType
from trace_bench.policies.local import LocalPolicy
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

MODEL = str(MODEL_FOLDER)
HABITS = {"recovers_from_errors": 0.7, "asks_when_information_is_missing": 0.7}


class Adapting(ScriptedTrainer):
    """Its adapters are real ones, and it can fine-tune: the gate's recipe and model."""

    def __init__(
        self, refs: Sequence[AdapterRef], dtype: DType = "float32", **recipe_of: Any
    ) -> None:
        super().__init__()
        recipe = TrainerSettings(groups=2, group_size=4, **recipe_of)
        self._refs, self._real = list(refs), LocalTrainer(recipe, RunContext(dtype=dtype))
        self.settings = self._real.settings

    def learner(self, model: str) -> Any:
        return self._real.learner(MODEL)

    def train(self, job: Any, lab: Any) -> AgentSpec:
        agent = super().train(job, lab)
        real = self._refs[len(self.jobs) - 1]
        added = replace(agent.adapters[-1], name=real.name, path=real.path)
        return replace(agent, adapters=(*agent.adapters[:-1], added))


class GateLab(MemoryLab):
    """The gate's rollouts are real ones."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gates: list[AgentSpec] = []  # that played
        self.played: list[Sequence[Trajectory]] = []  # by them
        self.metrics: list[dict[str, Any]] = []
        self.steps: list[tuple[str, int, int]] = []
        self.off = 0.0  # what is added to the sampler's log-probabilities

    def rollouts(self, call: str, agent: AgentSpec, tasks: Sequence[Task], **how: Any) -> Any:
        played = super().rollouts(call, agent, tasks, **how)
        if not call.startswith("train/gate"):
            return played
        assert self.policy is not None
        self.gates.append(agent)
        seeds = range(len(tasks))
        real = play(self.policy, self.suite, agent, tasks, seeds, max_turns=4, max_tokens=48)
        own = [replace(t, turns=tuple(self._shifted(turn) for turn in t.turns)) for t in real]
        self.played.append(own)
        return own

    def _shifted(self, turn: Turn) -> Turn:
        return replace(turn, logprobs=tuple(one + self.off for one in turn.logprobs))

    def metric(self, **values: Any) -> None:
        self.metrics.append(values)

    def step(self, name: str, done: int, total: int) -> None:
        self.steps.append((name, done, total))


def gated(
    policy: LocalPolicy,
    refs: Any,
    budget: int,
    dtype: DType = "float32",
    off: float = 0.0,
    aggregate: str = "trajectory",
    **settings: Any,
) -> tuple[AgentSpec, GateLab]:
    trainer = Adapting(refs, dtype, aggregate=aggregate)
    lab = GateLab(HABITS, budget, seed=7, trainer=trainer)
    lab.policy, lab.off = policy, off
    route = {"name": "gate", "rate": 0.05, **settings}
    made = method("trace", synthetic_tasks=8, max_capabilities=2, route=route)
    base = replace(BASE, model=MODEL)
    return made.fit(base, lab.suite.tasks("train"), lab), lab
