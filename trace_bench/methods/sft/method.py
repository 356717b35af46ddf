"""Supervised fine-tuning on demonstrations: a LoRA adapter without any rollout.

The idea of training on a broad collection of demonstrations (the paper's baseline from the Agent
Data Protocol). By default these are general ones of the mixture that the tiny agent knows already,
in which capabilities are lacking as often as in life; so little is to be expected of them, and a
gain of a method over this one is not a gain from demonstrations alone. The budget stays unspent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trace_bench.core.protocols import (
    FineTunes,
    Lab,
    Method,
    MethodPlan,
    Need,
    PlannedRun,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.sft.settings import SftSettings
from trace_bench.methods.tuning import HERE, PAGE, Tuning

MARK = "demonstrations from method.data, whose rollouts no budget here has paid for"

if TYPE_CHECKING:
    from trace_bench.trainers.tree import Tokens


class Sft(Method):
    """`protocols.Method`. The training tasks are only looked at to see whether demonstrations of
    others (`method.data`) fit the suite."""

    def __init__(self, settings: SftSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `sft`, used for every task; it goes on from the adapter
        that the base agent has, if any, and demonstrations are read under its prompt."""
        from trace_bench.methods.sft.tokens import demonstrations

        def sequences(context: int) -> list[Tokens]:
            return demonstrations(base, tasks, self.settings, seed, context, lab)

        seed = stable_seed(lab.seed, "sft")
        return Tuning("sft", base, lab, self.settings, {}, sequences).run()

    def plan(self, run: PlannedRun) -> MethodPlan:
        need = Need("trainer", FineTunes, PAGE, HERE)
        marks = () if self.settings.data is None else (MARK,)
        return MethodPlan(
            needs=(need,),
            adapters=1,
            trains=True,
            demonstrations=self.settings.demonstrations,
            marks=marks,
        )
