"""The current paper's route (`method.route=gate`): a soft classifier over the adapters that is then
trained by GRPO on the target's training tasks.

It starts as the classifier that was learned from synthetic openings (warm start: it costs no
rollout), or at zero, which weighs all adapters alike. Base model and adapters are frozen; only the
gate is trained, with the trainer's own recipe, and its rollouts are charged. Its weights are set by
the first prompt and locked for the conversation. It chooses as any soft classifier does
(`policies.routing.classifier`).

A killed run computes the gate again from the stored rollouts: an update takes a moment, and nothing
else must be kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from trace_bench.core.protocols import Lab, Need, Policy, State, Trainer
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, NotNegative, Purpose, Share, Task, Trajectory
from trace_bench.policies.routing.classifier import LOCK, Classifier, learned
from trace_bench.policies.routing.route import Evidence, Expert
from trace_bench.trainers.algorithms import GRADIENT, Advantages
from trace_bench.trainers.course import make_schedule, task_of_group
from trace_bench.trainers.episodes import check_prompt, reward_of
from trace_bench.trainers.loop import Record, Training, check_finite, of_rollouts, of_sampler

if TYPE_CHECKING:
    import torch

    from trace_bench.trainers.grpo import Mismatch

HERE = Need(
    "policy",
    Policy.holds_model,
    "docs/routing.md",
    "Training the gate makes new sums of adapters with every update, which a model in this process "
    "takes at once. At servers set method.route=zero_shot.",
)
TUNING = Need(
    "trainer",
    Trainer.learner,
    "docs/routing.md",
    "With method.route.share=0 the gate stays as it starts.",
)

NAME = "gate"


@dataclass(frozen=True)
class GateRoute(Classifier):
    """A soft classifier that is then trained with GRPO on the target's training tasks (the current
    paper's)."""

    soft = True

    name: Literal["gate"] = "gate"  # type: ignore[assignment]
    share: Share = 0.15
    """Part of the budget for GRPO of the gate; with 0 it stays as it starts (ours)."""
    rate: NotNegative = 1e-3
    """Learning rate of its GRPO, constant (published)."""
    warm: bool = True
    """Start from the classifier (published: a warm start on prompts and capabilities), or else at
    zero, which weighs all adapters alike (published as the gate's initialization)."""

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, *((HERE, TUNING) if self.share else ()))

    @property
    def rollouts(self) -> float:
        return self.share

    def fit(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        layer = learned(experts, evidence, self.warm)
        return {"kind": "classifier", **layer, "others": self.others, "soft": True, "lock": LOCK}

    def finish(
        self, agent: AgentSpec, tasks: Sequence[Task], lab: Lab, rollouts: int, reward: str
    ) -> AgentSpec:
        return GateTraining(lab, agent, tasks, self, rollouts, reward).run()


@dataclass
class _Update:
    """What one iteration's optimizer steps did."""

    steps: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    mismatch: Mismatch | None = None
    first: list[torch.Tensor] = field(default_factory=list)  # log-probabilities before any step


class GateTraining(Training[list[Trajectory]]):
    """Trains `agent`'s gate, its router, with at most so many rollouts of the target's tasks."""

    def __init__(
        self,
        lab: Lab,
        agent: AgentSpec,
        tasks: Sequence[Task],
        route: GateRoute,
        rollouts: int,
        reward: str,
    ) -> None:
        import torch

        from trace_bench.trainers.gates import Gate, Gated

        assert agent.router is not None
        assert lab.trainer.has(Trainer.learner)  # the route's needs: TUNING
        self.lab, self.base, self.tasks = lab, agent, tasks
        self.route, self.reward = route, reward
        self.recipe = lab.trainer.settings
        self.schedule = make_schedule(rollouts, self.recipe, NAME)
        self.gate = gate = Gate(agent.router, route.others)
        self.seed = stable_seed(lab.seed, "trace", NAME)
        adapters = [next(a for a in agent.adapters if a.name == n) for n in gate.adapters]
        like = lab.trainer.learner(agent.model)
        self.model = Gated(agent.model, adapters, str(like.device), like.dtype, like.memory)
        self.optimizer = torch.optim.AdamW(gate.parameters, lr=route.rate, weight_decay=0.0)

    def play(self, iteration: int) -> list[Trajectory]:
        first, size = sum(self.schedule[:iteration]), self.recipe.group_size
        groups = range(first, first + self.schedule[iteration])
        tasks = [task_of_group(g, self.tasks, self.seed) for g in groups for _ in range(size)]
        call = f"train/{NAME}/iter{iteration:04d}"
        played = self.lab.rollouts(
            call, self.agent(iteration), tasks, purpose=Purpose.TRAINING, temperature=1.0
        )
        for trajectory in played:
            check_prompt(trajectory)
        return played

    def goes_on(self, records: Sequence[Record]) -> bool:
        return len(records) < len(self.schedule)

    def publish(self, iteration: int, record: Record) -> None:
        self.lab.metric(**record)
        self.lab.checkpoint(self.agent(iteration + 1))

    def result(self, records: Sequence[Record]) -> AgentSpec:
        return self.agent(len(records))

    def agent(self, iteration: int) -> AgentSpec:
        version = f"{self.base.version}+{NAME}@{iteration:04d}"
        return replace(self.base, version=version, router=self.gate.as_json())

    def learn(self, iteration: int, played: Sequence[Trajectory]) -> Record:
        import torch

        from trace_bench.trainers.grpo import group_advantages

        reward = self.reward
        rewards = torch.tensor([reward_of(t, reward) for t in played], dtype=torch.float64)
        group = torch.arange(len(played)) // self.recipe.group_size
        advantages = group_advantages(rewards, group)
        where = f"{NAME}, iteration {iteration}"
        update = _Update()
        used = [n for n, t in enumerate(played) if bool(advantages.trained[n]) and t.turns]
        alike = self.alike(played, used)
        for epoch in range(self.recipe.epochs if used else 0):
            self.lab.step(where, epoch, self.recipe.epochs)
            self.step(played, alike, advantages, update)
            check_finite(where, update.grad_norm)
        return {
            "phase": "training",
            "adapter": f"{NAME}@{iteration + 1:04d}",
            "iteration": iteration,
            "spent": self.recipe.group_size * sum(self.schedule[: iteration + 1]),
            **of_rollouts(played, reward, advantages),
            "learning_rate": self.route.rate,
            "steps": update.steps,
            "loss": update.loss / update.steps if update.steps else None,
            "grad_norm": update.grad_norm / update.steps if update.steps else None,
            **of_sampler(where, update.mismatch, self.recipe.mismatch, self.lab),
        }

    def alike(
        self, played: Sequence[Trajectory], used: Sequence[int]
    ) -> list[tuple[State, list[int]]]:
        """The places of the used episodes by their first prompts, whose states set the weights."""
        places: dict[str, list[int]] = {}
        for n in used:
            first = played[n].turns[0].messages
            places.setdefault(json.dumps([played[n].task, first]), []).append(n)
        openings = [played[of[0]] for of in places.values()]
        states = [self.lab.prompt_states([(t.turns[0].messages, t.tools)])[0] for t in openings]
        return list(zip(states, places.values(), strict=True))

    def step(
        self,
        played: Sequence[Trajectory],
        alike: Sequence[tuple[State, list[int]]],
        advantages: Advantages,
        update: _Update,
    ) -> None:
        """One optimizer step, one tree for the episodes of a state. With rounded products the old
        policy's log-probabilities are the trainer's own before the first step, so that rounding is
        not taken for a change of the gate."""
        import torch

        from trace_bench.trainers.algorithms import Algorithm, Batch
        from trace_bench.trainers.grpo import mismatch, token_weights
        from trace_bench.trainers.tree import build, stretches

        tokens = [sum(len(turn.token_ids) for turn in one.turns) for one in played]
        used = [n for _, places in alike for n in places]
        lengths = torch.tensor([tokens[n] for n in used])
        sizes = [sum(tokens[n] for n in places) for _, places in alike]
        weights = token_weights(lengths).split(sizes)
        spread = advantages.spread(used, lengths).split(sizes)
        self.optimizer.zero_grad(set_to_none=True)
        before: list[tuple[torch.Tensor, torch.Tensor]] = []
        total = 0.0
        for place, (state, members) in enumerate(alike):
            sequences = stretches(*(played[n] for n in members))
            told = torch.cat([torch.from_numpy(s.logprobs) for s in sequences])
            new = self.model.logprobs(build(sequences), self.gate.mix(state)).cpu()
            if update.steps == 0:
                update.first.append(new.detach())
            old = update.first[place] if self.model.learner.rounded else told
            batch = Batch(new, old, spread[place], lengths)
            each = Algorithm().loss(batch)
            loss = (weights[place] * each.values).sum()
            torch.autograd.backward(loss)
            total += float(loss.detach())
            before.append((told, new.detach()))
        norm = float(torch.nn.utils.clip_grad_norm_(self.gate.parameters, GRADIENT))
        if update.steps == 0:
            old, new = (torch.cat(side) for side in zip(*before, strict=True))
            update.mismatch = mismatch(old, new)
        update.steps, update.loss = update.steps + 1, update.loss + total
        update.grad_norm += norm if math.isfinite(total) else math.nan
        if math.isfinite(norm) and math.isfinite(total):
            self.optimizer.step()
