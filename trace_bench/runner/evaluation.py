"""All evaluations of a run, in order: the base model, the scripted bounds, points of the curve
during training, the trained agent, its adapters and its router, and the yardsticks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.core.chat import read_call
from trace_bench.core.protocols import Policy
from trace_bench.core.run_files import FLOORS
from trace_bench.core.summary import CurvePoint, EpisodeCounts
from trace_bench.core.text import visible
from trace_bench.core.types import AgentSpec, Task, Tool, Trajectory
from trace_bench.play.rollouts import Player
from trace_bench.play.suites import splits_of, tasks_of
from trace_bench.runner import outcomes
from trace_bench.runner.evaluate import Evaluator
from trace_bench.runner.outcomes import EvaluationPlan, Outcome, RouterFigures
from trace_bench.runner.progress import Clock, Progress
from trace_bench.settings.schema import Settings


@dataclass(eq=False)
class Evaluation:
    """The evaluations of one run folder; finished ones are answered from disk.

    tasks: the held-out ones. due: the rollout counts of the curve's points, ascending. outcomes: of
    each agent on the held-out tasks, by label ("base", "final", a floor's or a yardstick's name).
    points: the curve. routed, validated: the router's choices on the held-out and on the
    development tasks, where there is a choice."""

    folder: Path
    player: Player
    settings: Settings
    tasks: Sequence[Task]
    due: Sequence[int]
    progress: Progress
    clock: Clock
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    points: list[CurvePoint] = field(default_factory=list)
    routed: RouterFigures | None = None
    validated: RouterFigures | None = None

    def __post_init__(self) -> None:
        self._plan = EvaluationPlan(tuple(self.tasks), self.settings.evaluation.trials)
        shared = (self.player, self.settings, self.progress, outcomes.KnownOutcomes())
        self._held_out, self._curve, self._routing = (
            Evaluator(self.folder / f"{name}.jsonl", *shared)
            for name in ("evaluation", "curve", "routing")
        )

    def base(self, agent: AgentSpec) -> None:
        """Evaluates the base agent, and says what it did if it earned nothing."""
        with self.clock.phase("base evaluation"):
            found = self._held_out.evaluate("base", agent, self._plan, keep=True)
        self.outcomes["base"] = found
        if any(o.similarity for o in found):
            return
        if (said := unable(self._held_out.kept("base", len(found)))) is not None:
            self.progress.log(said)

    def floors(self, policies: Mapping[str, Policy]) -> None:
        """Evaluates scripted policies, by name, as bounds for the scores."""
        with self.clock.phase("floors"):
            for name, policy in policies.items():
                agent = AgentSpec(model=name, version=name)
                self.outcomes[name] = self._held_out.evaluate(
                    name, agent, self._plan, policy=policy
                )

    def checkpoint(self, spent: int, agent: AgentSpec, until: int) -> None:
        """Evaluates the agent, trained with `spent` rollouts, on the development tasks if a point
        of the curve lies before `until`. So no point shows an agent that spent more rollouts."""
        reached = {p.checkpoint for p in self.points}
        due = [c for c in self.due if c not in reached and c < until]
        if not due:
            return
        found = self._curve.evaluate(f"checkpoint {due[-1]}", agent, self._dev_plan())
        self.progress.phase("method")
        own = vars(outcomes.score(found))
        self.points += [CurvePoint(checkpoint=c, rollouts=spent, **own) for c in due]

    def trained(
        self, label: str, phase: str, base: AgentSpec, agent: AgentSpec, keep: bool = False
    ) -> None:
        """Evaluates a trained agent; an unchanged one gets the base agent's outcomes."""
        with self.clock.phase(phase):
            if outcomes.acts_alike(agent, base):
                found = self._held_out.copy(label, self.outcomes["base"])
            else:
                found = self._held_out.evaluate(label, agent, self._plan, keep=keep)
        self.outcomes[label] = found

    def adapters(self, base: AgentSpec, agent: AgentSpec) -> None:
        """With `evaluation.routing`, evaluates every adapter alone on every held-out task, if the
        agent has a choice; and the model without any, if the router may choose that."""
        if not self.settings.evaluation.routing or not agent.adapters:
            return
        if len(agent.adapters) == 1 and agent.router is None:
            return
        with self.clock.phase("evaluation of every adapter"):
            alone = _each_alone(self._held_out, self._plan, base, agent, "adapter:")
            self.routed = outcomes.routing(alone, self.outcomes["final"])

    def router(self, base: AgentSpec, agent: AgentSpec) -> None:
        if agent.router is None or not self.settings.evaluation.routing:
            return
        split = self.settings.env.dev_split
        if split not in splits_of(self.player.suites.target):
            self.progress.log(f"there is no split {split}, so the router is not measured on it")
            return
        plan = self._dev_plan()
        with self.clock.phase("evaluation of routing"):
            alone = _each_alone(self._routing, plan, base, agent)
            self.validated = outcomes.routing(alone, self._routing.evaluate("routed", agent, plan))

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
        settings = self.settings
        tasks = tasks_of(self.player.suites.target, settings.env.dev_split)
        few = settings.evaluation.limit if settings.rehearsal else None
        return EvaluationPlan(tuple(tasks[:few]))


def _each_alone(
    evaluator: Evaluator, plan: EvaluationPlan, base: AgentSpec, agent: AgentSpec, label: str = ""
) -> dict[str | None, list[Outcome]]:
    """The outcomes of all that the agent's router chooses among, each for all tasks."""
    found = {}
    for name in outcomes.choices_of(agent):
        spec, own = outcomes.only(agent, name), f"{label}{name or 'none'}"
        if outcomes.acts_alike(spec, base):
            spec, own = base, "base"
        found[name] = evaluator.evaluate(own, spec, plan)
    return found


# -- what a base agent did that earned nothing, before rollouts are spent on rewards of 0 ----------

UNREAD = "calls that could not be read"
LONGEST = 160  # characters of the example's call, and of its answer
_ERROR = re.compile(r"\W*(error\b|\w*(Error|Exception)\b|traceback\b|invalid\b)", re.IGNORECASE)
REMEDY = (
    "Methods learn from differences between rewards and may find none. Change `model` to one that "
    "can act in this environment (model=made makes one from its references: docs/own_world.md), or "
    "begin with easier tasks; python -m trace_bench.show RUN --agent base shows its conversations"
)


def unable(episodes: Sequence[Trajectory]) -> str | None:
    """What the agent did in these episodes; None if it earned anything, or none has a score."""
    scores = [t.score for t in episodes if t.score is not None]
    if not scores or any(s.similarity > 0 or s.success for s in scores):
        return None
    counts: Counter[str] = Counter()
    examples: list[str] = []
    any_call: list[str] = []  # an example where no fault is known
    for episode in episodes:
        calls = list(_calls(episode))
        counts["calls"] += len(calls)
        counts["episodes without a call"] += not calls
        unread = [str(turn.reply.get("content")) for turn in episode.turns if turn.malformed]
        counts[UNREAD] += len(unread)
        examples += map(_shown, unread)
        for call, answer in calls:
            shown = f"{_shown(call)}, answered by {_shown(answer)}"
            any_call.append(shown)
            if (fault := _fault(episode.tools, call, answer)) is not None:
                counts[fault] += 1
                examples.append(shown)
    did = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    example = "".join(f". For example: {one}" for one in [*examples, *any_call][:1])
    head = f"the base agent earned 0 in all {len(scores)} held-out episodes"
    return f"{head}: {did}{example}. {REMEDY}"


def _shown(said: Any) -> str:
    """A call, or a text, in quotes."""
    function = said.get("function") if isinstance(said, Mapping) else None
    if isinstance(function, Mapping):
        said = f"{function.get('name')}({function.get('arguments')})"
    return f'"{visible(" ".join(str(said).split())[:LONGEST])}"'


def _calls(episode: Trajectory) -> Iterator[tuple[Any, str]]:
    """Every call, of which a guest's policy may have made anything, and its answer."""
    after = [*(turn.messages for turn in episode.turns[1:]), episode.closing]
    for turn, messages in zip(episode.turns, after, strict=False):  # the end, where it has no turn
        answers = {m.get("tool_call_id"): str(m.get("content")) for m in messages}
        calls = turn.reply.get("tool_calls")
        for call in calls if isinstance(calls, list | tuple) else ():
            identity = call.get("id") if isinstance(call, Mapping) else None
            yield call, answers.get(str(identity), "")


def _fault(tools: Sequence[Tool], call: Any, answer: str) -> str | None:
    """What is wrong with a call by the tools' own schemas, as far as names go, or by its answer."""
    try:
        name, given = read_call(call)
    except ValueError:
        return UNREAD
    offered: Mapping[str, Any] = {t["function"]["name"]: t["function"] for t in tools}
    if name not in offered:
        return "calls to tools that are not there"
    schema = offered[name].get("parameters")
    schema = schema if isinstance(schema, Mapping) else {}
    takes, needs = schema.get("properties"), schema.get("required")
    unknown = isinstance(takes, Mapping) and given.keys() - takes.keys()
    missing = isinstance(needs, list) and any(str(name) not in given for name in needs)
    if unknown or missing:
        return "calls with arguments that the tool does not take"
    return "calls answered by an error" if _ERROR.match(answer) else None
