"""A prompt's gain moved into the weights: context distillation of what `prompt_only` finds.

A part of the budget is the analysis of `prompt_only`, whose lines of advice go into the prompt. The
rest are rollouts with that prompt on the training tasks; an adapter is fine-tuned on those that
succeed as if the prompt had not been there (Askell et al. 2021, arXiv 2112.00861, section 2.1; with
the agent's own successes as in P2O, arXiv 2603.21877). The successes of the analysis, which had no
prompt, are trained on too: they are paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    FineTunes,
    Lab,
    Method,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Purpose, Task, Trajectory
from trace_bench.methods.looking.analysis import Analysis, Report, planned
from trace_bench.methods.prompt_only import PromptOnlySettings
from trace_bench.methods.rft import in_turn, successes, tune
from trace_bench.methods.tuning import HERE, PAGE, TuningSettings, tuner
from trace_bench.play.steps import without_guidance


@dataclass(frozen=True)
class DistillSettings(TuningSettings, PromptOnlySettings):
    """`method.*` of `method=distill`: those of the analysis, and these, of which none was searched
    for."""

    analysis_share: float = field(default=0.25, metadata={"low": 0, "high": 1})
    """Part of the budget that is analysis, at least `analysis_minimum`."""
    per_task: int = field(default=4, metadata={"low": 1})
    """Most distinct successes of a task that are trained on."""
    epochs: int = field(default=4, metadata={"low": 1})
    """Passes over them."""
    batch: int = field(default=16, metadata={"low": 1})
    """Conversations in one optimizer step."""
    learning_rate: float = field(default=0.003, metadata={"low": 0})
    """At the first step, as with trainer=local; it falls linearly to 0."""

    def analysis(self, budget: int) -> int:
        """Rollouts of the analysis."""
        return max(self.analysis_minimum, int(self.analysis_share * budget))


class Distill(Method):
    """The gain of prompt_only moved into the weights: rollouts with its prompt, and an adapter
    fine-tuned on those that succeed, without it."""

    def __init__(self, settings: DistillSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with one adapter and the prompt that it came with; the base agent itself
        when nothing passes the thresholds, or nothing succeeded."""
        tuner(lab)
        budget, write = lab.budget_left(), Report(lab)
        analysis = Analysis(lab, self.settings, write)
        analysis.play(base, tasks, self.settings.analysis(budget))
        lines = analysis.advice()
        write(outcome={"prompt": lines, "unspent": 0 if lines else lab.budget_left()})
        if not lines:
            left = lab.budget_left()
            lab.log(f"no capability above the thresholds; {left} of {budget} rollouts unspent")
            return base
        advised = "\n".join(filter(None, (base.prompt, *lines)))
        played = lab.rollouts(
            "distill",
            replace(base, version=f"{base.version}+prompt-{len(lines)}", prompt=advised),
            in_turn(tasks, lab.budget_left(), stable_seed(lab.seed, "distill")),
            purpose=Purpose.TRAINING,
        )
        seen = [e.trajectory for e in analysis.episodes]
        taught = plain(successes(played, self.settings.per_task), base, advised)
        kept = [*successes(seen, self.settings.per_task), *taught]
        lab.log(f"distill: {len(kept)} successes are kept, {len(taught)} of them with the prompt")
        return tune("distill", base, lab, self.settings, kept) if kept else base

    def plan(self, run: PlannedRun) -> MethodPlan:
        """UserError when nothing is left after the analysis."""
        looks = self.settings.analysis(run.budget)
        if looks >= run.budget:
            raise UserError(
                f"budget={run.budget} is too small for method=distill: the analysis takes {looks} "
                "(method.analysis_minimum, method.analysis_share), and rollouts with its prompt "
                "come after it. Raise `budget`."
            )
        tuning = MethodPlan(
            phases=(Phase("training", run.budget - looks, most=True),),
            needs=(Need("trainer", FineTunes, PAGE, HERE),),
            adapters=1,
            trains=True,
            caveat="its phases are shares of the whole budget",
        )
        return planned(self.settings, run, looks).then(tuning)


def plain(played: Sequence[Trajectory], base: AgentSpec, advised: str) -> list[Trajectory]:
    """The episodes of the agent whose prompt is `advised` as if they had been run with the
    prompt of `base`: only the tokens of the first prompt change."""
    from trace_bench.play.steps import with_guidance
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.local import load_tokenizer

    chat = Chat(load_tokenizer(base.model), base.model)
    out: list[Trajectory] = []
    for t in played:
        first = t.turns[0]
        messages = with_guidance(without_guidance(first.messages, advised), base.prompt)
        opened = replace(first, messages=messages, prompt_ids=chat.first(messages, t.tools))
        out.append(replace(t, turns=(opened, *t.turns[1:])))
    return out
