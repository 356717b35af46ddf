"""The analysis without training: what the agent lacks becomes lines of its prompt.

The whole budget is analysis, so the capabilities are chosen on as many rollouts as other methods
train on. The paper's curve of this name adds 1 to 16 descriptions to the prompt; here each is a
selected capability's line of advice (the analyst's description where a model is the analyst), at
most `method.max_capabilities` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.trace.analysis.phase import Analysis
from trace_bench.methods.trace.plan import CAVEAT, label_needs, label_questions
from trace_bench.methods.trace.settings import PromptOnlySettings


class PromptOnly(Method):
    """`protocols.Method`. Settings: those of TRACE's analysis."""

    def __init__(self, settings: PromptOnlySettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with a guidance section; itself when nothing passes the thresholds."""
        report: dict[str, Any] = {}

        def write(**parts: Any) -> None:
            report.update(parts)
            lab.write("capabilities.json", report)

        analysis = Analysis(lab, self.settings, write)
        analysis.play(base, tasks, lab.budget_left())
        chosen = [v.capability for v in analysis.choose(()) if v.selected and not v.control]
        lines = [c.advice or c.description for c in chosen[: self.settings.max_capabilities]]
        write(outcome={"prompt": lines, "unspent": lab.budget_left()})
        if not lines:
            lab.log("no capability above the thresholds: the base agent is returned")
            return base
        prompt = "\n".join(filter(None, [base.prompt, *lines]))
        return replace(base, version=f"prompt-{len(lines)}", prompt=prompt)

    def plan(self, run: PlannedRun) -> MethodPlan:
        """The whole budget is analysis. UserError when it is too small."""
        least = self.settings.analysis_minimum
        if run.budget < least:
            raise UserError(
                f"budget={run.budget} is too small for method=prompt_only, which needs at "
                f"least {least} analysis rollouts (method.analysis_minimum). Raise `budget`."
            )
        return MethodPlan(
            phases=(Phase("analysis", run.budget),),
            needs=label_needs(run),
            questions=label_questions(self.settings, run, run.budget),
            caveat=CAVEAT,
        )
