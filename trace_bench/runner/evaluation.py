"""All evaluations of a run, in order: the base model, the scripted bounds, points of the curve
during training, the trained agent, its adapters and its router, and the yardsticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.protocols import Policy
from trace_bench.core.run_files import FLOORS
from trace_bench.core.types import AgentSpec, Task
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import splits_of, tasks_of
from trace_bench.runner import outcomes
from trace_bench.runner.evaluate import Evaluator
from trace_bench.runner.outcomes import EpisodeCounts, EvaluationPlan, Outcome, RouterFigures
from trace_bench.runner.progress import Clock, Progress
from trace_bench.runner.unable import unable
from trace_bench.settings.schema import Settings


class Evaluation:
    """The evaluations of one run folder; finished ones are answered from disk.

    outcomes: of each agent on the held-out tasks, by label ("base", "final", a floor's or a
    yardstick's name). points: the curve. routed, validated: the router's choices on the held-out
    and on the development tasks, where there is a choice."""

    def __init__(
        self,
        folder: Path,
        player: Player,
        settings: Settings,
        tasks: Sequence[Task],
        points: Sequence[int],
        *,
        progress: Progress,
        clock: Clock,
    ) -> None:
        """`tasks`: the held-out ones. `points`: the rollout counts of the curve, ascending."""
        self.outcomes: dict[str, list[Outcome]] = {}
        self.points: list[dict[str, Any]] = []
        self.routed: RouterFigures | None = None
        self.validated: RouterFigures | None = None
        self._player, self._settings, self._due = player, settings, tuple(points)
        self._progress, self._clock = progress, clock
        self._plan = EvaluationPlan(tuple(tasks), settings.evaluation.trials)
        shared = (player, settings, progress, outcomes.KnownOutcomes())
        kept = folder / "evaluation_trajectories.jsonl"
        self._held_out = Evaluator(folder / "evaluation.jsonl", *shared, kept)
        self._curve = Evaluator(folder / "curve.jsonl", *shared)
        self._routing = Evaluator(folder / "routing.jsonl", *shared)

    def base(self, agent: AgentSpec) -> None:
        """Evaluates the base agent, and says what it did if it earned nothing."""
        with self._clock.phase("base evaluation"):
            found = self._held_out.evaluate("base", agent, self._plan, keep=True)
        self.outcomes["base"] = found
        if any(o.similarity for o in found):
            return
        if (said := unable(self._held_out.kept("base", len(found)))) is not None:
            self._progress.log(said)

    def floors(self, policies: Mapping[str, Policy]) -> None:
        """Evaluates scripted policies, by name, as bounds for the scores."""
        with self._clock.phase("floors"):
            for name, policy in policies.items():
                agent = AgentSpec(model=name, version=name)
                self.outcomes[name] = self._held_out.evaluate(
                    name, agent, self._plan, policy=policy
                )

    def checkpoint(self, spent: int, agent: AgentSpec, until: int) -> None:
        """Evaluates the agent, trained with `spent` rollouts, on the development tasks if a point
        of the curve lies before `until`. So no point shows an agent that spent more rollouts."""
        reached = {p["checkpoint"] for p in self.points}
        due = [c for c in self._due if c not in reached and c < until]
        if not due:
            return
        found = self._curve.evaluate(f"checkpoint {due[-1]}", agent, self._dev_plan())
        self._progress.phase("method")
        figures = outcomes.score(found)
        self.points += [{"checkpoint": c, "rollouts": spent, **figures} for c in due]

    def trained(
        self, label: str, phase: str, base: AgentSpec, agent: AgentSpec, keep: bool = False
    ) -> None:
        """Evaluates a trained agent; an unchanged one gets the base agent's outcomes."""
        with self._clock.phase(phase):
            if outcomes.acts_alike(agent, base):
                found = self._held_out.copy(label, self.outcomes["base"])
            else:
                found = self._held_out.evaluate(label, agent, self._plan, keep=keep)
        self.outcomes[label] = found

    def adapters(self, base: AgentSpec, agent: AgentSpec) -> None:
        """With `evaluation.routing`, evaluates every adapter alone on every held-out task, if the
        agent has a choice; and the model without any, if the router may choose that."""
        if not self._settings.evaluation.routing or not agent.adapters:
            return
        if len(agent.adapters) == 1 and agent.router is None:
            return
        with self._clock.phase("evaluation of every adapter"):
            choices: dict[str | None, Sequence[Outcome]] = {}
            for name in outcomes.choices_of(agent):
                spec, label = outcomes.only(agent, name), f"adapter:{name or 'none'}"
                if outcomes.acts_alike(spec, base):
                    choices[name] = self.outcomes["base"]
                else:
                    choices[name] = self._held_out.evaluate(label, spec, self._plan)
            self.routed = outcomes.routing(choices, self.outcomes["final"])

    def router(self, base: AgentSpec, agent: AgentSpec) -> None:
        if agent.router is None or not self._settings.evaluation.routing:
            return
        split = self._settings.env.dev_split
        if split not in splits_of(self._player.suites.target):
            self._progress.log(f"there is no split {split}, so the router is not measured on it")
            return
        plan = self._dev_plan()
        with self._clock.phase("evaluation of routing"):
            choices: dict[str | None, Sequence[Outcome]] = {}
            for name in outcomes.choices_of(agent):
                spec, label = outcomes.only(agent, name), name or "none"
                if outcomes.acts_alike(spec, base):
                    spec, label = base, "base"
                choices[name] = self._routing.evaluate(label, spec, plan)
            routed = self._routing.evaluate("routed", agent, plan)
            self.validated = outcomes.routing(choices, routed)

    @property
    def count(self) -> int:
        """Episodes in the files, of all agents."""
        return self._held_out.count + self._curve.count + self._routing.count

    def everything(self) -> EpisodeCounts:
        """The episodes of all agents and scripted bounds on the held-out tasks."""
        found = EpisodeCounts()
        found.add(self._held_out.everything())
        return found

    def health(self) -> EpisodeCounts:
        """The episodes of all agents on the held-out tasks, those of an unchanged agent once."""
        agents = [o for o in self._held_out.everything() if o.agent not in FLOORS]
        found = EpisodeCounts()
        found.add({(o.version, o.task, o.trial): o for o in agents}.values())
        return found

    def close(self) -> None:
        for evaluator in (self._held_out, self._curve, self._routing):
            evaluator.close()

    def _dev_plan(self) -> EvaluationPlan:
        settings = self._settings
        tasks = tasks_of(self._player.suites.target, settings.env.dev_split)
        few = settings.evaluation.limit if settings.rehearsal else None
        return EvaluationPlan(tuple(tasks[:few]))
