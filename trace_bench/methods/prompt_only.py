"""The analysis without training: what the agent lacks becomes lines of its prompt.

The whole budget is analysis, so the capabilities are chosen on as many rollouts as other methods
train on. The paper's curve of this name adds 1 to 16 descriptions to the prompt; here each is a
selected capability's line of advice (the analyst's description where a model is the analyst), at
most `method.max_capabilities` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, PlannedRun
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.looking.analysis import Analysis, CapabilityReport, planned
from trace_bench.methods.looking.capabilities import AnalysisSettings


@dataclass(frozen=True)
class PromptOnlySettings(AnalysisSettings):
    """`method.*` of `method=prompt_only`: the analysis, with the whole budget."""

    max_capabilities: int = field(default=8, metadata=number(1))
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
        least = self.settings.analysis_minimum
        if run.budget < least:
            raise UserError(
                f"budget={run.budget} is too small for method=prompt_only, which needs at "
                f"least {least} analysis rollouts (method.analysis_minimum). Raise `budget`."
            )
        looking = planned(self.settings, run, run.budget)
        return replace(looking, caveat="its phases are shares of the whole budget")
