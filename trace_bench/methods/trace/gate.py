"""The current paper's route (`method.route=gate`): a soft classifier over the adapters that is then
trained on the target's training tasks, by the trainer's algorithm.

Base model and adapters are frozen; only the gate is trained, and its rollouts are charged. Its
weights are set by the first prompt and stay for the conversation.

A killed run computes the gate again from the stored rollouts: an update takes a moment, and nothing
else must be kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, MethodPlan, Need, Phase, State, Trainer, TrainingJob
from trace_bench.core.store import canonical, stable_seed
from trace_bench.core.types import AgentSpec, Task, Trajectory, grouped
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.policies.routing.classifier import Gate
from trace_bench.trainers import loop
from trace_bench.trainers.algorithms import GRADIENT, policy_loss
from trace_bench.trainers.course import Course, Rollouts, play_iteration
from trace_bench.trainers.grpo import Advantages, Batch, mismatch, token_weights
from trace_bench.trainers.job import credit

if TYPE_CHECKING:
    from torch import Tensor

    from trace_bench.trainers.tree import Tree
    from trace_bench.trainers.update import Steps

NAME = "gate"
TUNING = Need(
    "trainer", Trainer.learner, "docs/routing.md",
    "The gate is trained in this process. Set `trainer` to local, or `method.route` to soft.",
)  # fmt: skip


def with_gate(plan: MethodPlan, rollouts: int, trainer: Trainer) -> MethodPlan:
    """The plan of what comes before, and the training of the gate."""
    try:
        trainer.plan_training(rollouts, NAME, ())
    except UserError as error:
        raise UserError(f"{error} Or raise `method.route.share`.") from error
    phase = Phase("training of the gate", rollouts, most=True)
    return replace(plan, phases=(*plan.phases, phase), needs=(*plan.needs, TUNING))


@dataclass
class _Alike:
    """The episodes with one first prompt, whose `state` sets the weights of their adapters: one
    tree. `old`: the log-probabilities before the first step."""

    state: State
    tree: Tree
    lengths: Tensor  # sampled tokens of each sequence
    old: Tensor  # from here on [sampled tokens]
    base: Tensor | None
    advantages: Tensor
    weights: Tensor


class GateTraining(loop.Training[Rollouts]):
    """Trains `agent`'s gate, its router, with all rollouts that are left."""

    def __init__(
        self, lab: Lab, agent: AgentSpec, tasks: Sequence[Task], settings: TraceSettings
    ) -> None:
        import torch

        from trace_bench.trainers.gates import Gated, GateLayer

        route = settings.route
        assert isinstance(route, Gate) and agent.router is not None
        assert lab.trainer.has(Trainer.learner)  # the plan's need: TUNING
        self.lab, self.rate, self.recipe = lab, route.rate, lab.trainer.settings
        seed, rollouts = stable_seed(lab.seed, "trace", NAME), lab.budget_left()
        self.job = TrainingJob(NAME, agent, tasks, rollouts, seed, settings.reward)
        self.course = Course(tasks, self.recipe, seed, rollouts, NAME)
        self.gate = GateLayer(agent.router)
        by_name = {adapter.name: adapter for adapter in agent.adapters}
        adapters = [by_name[name] for name in self.gate.adapters]
        self.model = Gated(agent.model, adapters, lab.trainer.learner(agent.model))
        self.optimizer = torch.optim.AdamW(self.gate.parameters, lr=self.rate, weight_decay=0.0)

    def play(self, iteration: int) -> Rollouts:
        call, agent = loop.Versions(NAME, self.job.agent).call(iteration), self.agent(iteration)
        return play_iteration(self.course, call, agent, None, self.job, self.lab, routed=True)

    def goes_on(self, records: Sequence[loop.Record]) -> bool:
        return self.course.iterations_left()

    def publish(self, iteration: int, record: loop.Record) -> None:
        loop.publish(self.job, self.lab, record, self.agent(iteration + 1))

    def result(self, records: Sequence[loop.Record]) -> AgentSpec:
        return self.agent(len(records))

    def agent(self, iteration: int) -> AgentSpec:
        """With the gate as it is now."""
        version = f"{self.job.agent.version}+{NAME}@{iteration:04d}"
        return replace(self.job.agent, version=version, router=self.gate.as_json())

    def learn(self, iteration: int, played: Rollouts) -> loop.Record:
        from trace_bench.trainers.update import Steps

        where, steps = f"{NAME}, iteration {iteration}", Steps()
        advantages = credit(played.trajectories, played.rewards, self.job, self.recipe)
        every = self.alike(played.trajectories, advantages)
        for epoch in range(self.recipe.epochs if every else 0):
            self.lab.step(where, epoch, self.recipe.epochs)
            self.step(every, steps)
            loop.check_finite(where, steps.grad_norm, setting="method.route.rate")
        n = steps.steps
        return {
            "phase": "training",
            "adapter": f"{NAME}@{iteration + 1:04d}",
            "iteration": iteration,
            "spent": self.course.spent,
            **loop.of_rollouts(played.trajectories, self.job.reward, advantages),
            "learning_rate": self.rate,
            "steps": n,
            "loss": steps.loss / n if n else None,
            "grad_norm": steps.grad_norm / n if n else None,
            **loop.of_sampler(where, steps.mismatch, self.recipe.mismatch, self.lab),
        }

    def alike(self, played: Sequence[Trajectory], advantages: Advantages) -> list[_Alike]:
        """The episodes that are trained on, by their first prompts."""
        import torch

        from trace_bench.trainers.tree import build, stretches

        def opening(n: int) -> str:
            return canonical([played[n].task, played[n].turns[0].messages])

        used = [n for n, one in enumerate(played) if advantages.trained[n] and one.turns]
        places = list(grouped(used, opening).values())
        tokens = [sum(len(turn.token_ids) for turn in one.turns) for one in played]
        lengths = torch.tensor([tokens[n] for members in places for n in members])
        sizes = [sum(tokens[n] for n in members) for members in places]
        weights = token_weights(lengths, *self.recipe.algorithm.aggregation()).split(sizes)
        every: list[_Alike] = []
        for members, of_tokens in zip(places, weights, strict=True):
            first, sequences = played[members[0]], stretches(*(played[n] for n in members))
            (state,) = self.lab.prompt_states([(first.turns[0].messages, first.tools)])
            tree, base, learner = build(sequences), None, self.model.learner
            if self.recipe.algorithm.kl:
                with torch.no_grad(), learner.without_adapter():
                    base = learner.logprobs(tree).cpu()
            own = torch.tensor([len(s.sampled) for s in sequences])
            told = torch.cat([torch.from_numpy(s.logprobs) for s in sequences])
            values = advantages.spread(members, torch.tensor([tokens[n] for n in members]))
            every.append(_Alike(state, tree, own, told, base, values, of_tokens))
        return every

    def step(self, every: Sequence[_Alike], steps: Steps) -> None:
        """One optimizer step. With rounded products the old policy's log-probabilities are the
        trainer's own before the first step, so that rounding is no change of the gate."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        sampler, ours = [one.old for one in every], []
        for one in every:
            new = self.model.logprobs(one.tree, self.gate.mix(one.state)).cpu()
            ours.append(new.detach())
            if steps.steps == 0 and self.model.learner.rounded:
                one.old = ours[-1]
            batch = Batch(new, one.old, one.advantages, one.lengths, one.base)
            loss = policy_loss(batch, one.weights, self.recipe.algorithm).loss
            torch.autograd.backward(loss)
            steps.loss += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.gate.parameters, GRADIENT))
        if steps.steps == 0:
            steps.mismatch = mismatch(torch.cat(sampler), torch.cat(ours))
        steps.steps += 1
        steps.grad_norm += norm if math.isfinite(steps.loss) else math.nan
        if math.isfinite(steps.grad_norm):
            self.optimizer.step()
