"""Fine-tuning on the agent's own successes (`rft`), and the analysis without training
(`prompt_only`).

Rejection-sampling fine-tuning: Yuan et al. 2023 (arXiv 2308.01825); in rounds, each trained anew
from the base model on all that was kept so far, it is expert iteration as in ReST-EM (Singh et al.
2023, arXiv 2312.06585). Against GRPO it tells what the failures and the contrast within a group
bring.

`prompt_only`: what the agent lacks becomes lines of its prompt. The whole budget is analysis, so
the capabilities are chosen on as many rollouts as other methods train on. The paper's curve of this
name adds 1 to 16 descriptions to the prompt; here each is a selected capability's line of advice
(the analyst's description where a model is the analyst), at most `method.max_capabilities` of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, NotNegative, Positive, Purpose, Task, Trajectory
from trace_bench.methods.looking.analysis import Analysis, CapabilityReport, planned
from trace_bench.methods.looking.capabilities import AnalysisSettings
from trace_bench.methods.tuning import HERE, Tuning, TuningSettings
from trace_bench.play.suites import needed
from trace_bench.trainers.job import exact

if TYPE_CHECKING:
    from trace_bench.trainers.tree import Tokens

CAVEAT = "its rounds are shares of the whole budget"
ROUNDS = 2  # of rollouts and fine-tuning, each with the same part of the budget
PER_TASK = 4  # successes that are kept of a task in a round, so that easy ones do not crowd out


@dataclass(frozen=True)
class RftSettings(TuningSettings):
    """`method.*` of `method=rft`. None of the numbers was searched for."""

    epochs: Positive = 4
    """Passes over what was kept."""
    batch: Positive = 16
    """Conversations in one optimizer step."""
    learning_rate: NotNegative = 0.003
    """At the first step, as with trainer=local; it falls linearly to 0."""


class Rft(Method):
    """Rejection-sampling fine-tuning: on the agent's own successes on the training tasks."""

    def __init__(self, settings: RftSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with one adapter; itself when nothing succeeded."""
        agent, kept = base, list[Trajectory]()
        budget = lab.budget_left()
        for turn in range(ROUNDS):
            share = budget // ROUNDS + (budget % ROUNDS if turn == ROUNDS - 1 else 0)
            chosen = in_turn(tasks, share, stable_seed(lab.seed, "rft", turn))
            played = lab.rollouts(f"rft/{turn}", agent, chosen, purpose=Purpose.TRAINING)
            new = successes(played)
            kept += new
            lab.log(f"rft: {len(new)} of {len(played)} episodes are kept in round {turn + 1}")
            if kept:
                agent = tune(f"rft{turn + 1}", base, lab, self.settings, kept)
                lab.checkpoint(agent)
        return agent

    def plan(self, run: PlannedRun) -> MethodPlan:
        phases, caveat = (Phase("training", run.budget),), CAVEAT
        return MethodPlan(phases, needs=(HERE,), adapters=ROUNDS, trains=True, caveat=caveat)


def in_turn(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """`count` tasks, in shuffled passes over all of them."""
    out: list[Task] = []
    while len(out) < count:
        again = list(needed(tasks))
        random.Random(stable_seed(seed, len(out))).shuffle(again)
        out += again
    return out[:count]


def successes(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Successes without repetitions, at most `PER_TASK` of a task. UserError if none has tokens."""
    if played and not any(map(exact, played)):
        raise UserError(
            "the policy gives no token ids, so nothing can be fine-tuned on its rollouts. Change "
            "the setting `policy`."
        )
    by_task: dict[str, dict[tuple[tuple[int, ...], ...], Trajectory]] = {}
    for t in played:
        if t.turns and t.score is not None and t.score.success and t.failure is None and exact(t):
            said = tuple(turn.token_ids for turn in t.turns)
            by_task.setdefault(t.task, {}).setdefault(said, t)
    return [t for of in by_task.values() for t in list(of.values())[:PER_TASK]]


def tune(
    name: str, base: AgentSpec, lab: Lab, settings: TuningSettings, kept: Sequence[Trajectory]
) -> AgentSpec:
    """The base agent with an adapter fine-tuned on the sampled tokens of these episodes."""

    def sequences(context: int) -> list[Tokens]:
        from trace_bench.trainers.tree import stretches

        return stretches(*kept)

    return Tuning(name, base, lab, settings, sequences).run()


@dataclass(frozen=True)
class PromptOnlySettings(AnalysisSettings):
    """`method.*` of `method=prompt_only`: the analysis, with the whole budget."""

    max_capabilities: Positive = 8
    """Most lines of advice in the prompt (the paper's curve has 1 to 16)."""


class PromptOnly(Method):
    """TRACE's analysis without training: lines of advice about what is lacking go into the prompt.
    The whole budget is analysis."""

    def __init__(self, settings: PromptOnlySettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with a guidance section; itself when nothing passes the thresholds."""
        write = CapabilityReport(lab)
        analysis = Analysis(lab, self.settings, write)
        analysis.play(base, tasks, lab.budget_left())
        lines = analysis.advice()
        write(outcome={"prompt": lines, "unspent": lab.budget_left()})
        if not lines:
            lab.log("no capability above the thresholds: the base agent is returned")
            return base
        prompt = "\n".join(filter(None, [base.prompt, *lines]))
        return replace(base, version=f"prompt-{len(lines)}", prompt=prompt)

    def plan(self, run: PlannedRun) -> MethodPlan:
        looking = planned(self.settings, run, run.budget)
        return replace(looking, caveat="its phases are shares of the whole budget")
