"""Every number of TRACE by phase, each with where it comes from; and who gets how many
rollouts (`Budget`).

"published" means the paper or the released repository (arXiv 2604.05336); "ours" means a choice of
this project, with its reason. Those of calibration that nobody has varied stand in calibrate.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from trace_bench.core.checked import at_servers
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Phase, Trainer
from trace_bench.core.types import Meta, Natural, Positive, Share
from trace_bench.methods.looking.capabilities import AnalysisSettings
from trace_bench.methods.making import REWARD, TaskSettings
from trace_bench.policies.routing.classifier import Classifier, Gate, Soft
from trace_bench.policies.routing.router import Linear
from trace_bench.policies.routing.zero_shot import ZeroShot

JOINT: Final = "joint"
CALIBRATION_SHARE = 0.10  # of the budget, for rounds beyond one for each capability (ours)
AnyRoute = Classifier | Soft | Gate | ZeroShot | Linear


@dataclass(frozen=True)
class TraceSettings(TaskSettings, AnalysisSettings):
    """`method.*` of `method=trace`."""

    analysis_share: Share = 0.10
    """Part of the budget spent on analysis rollouts (ours; published: 164 rollouts, uncounted)."""
    synthesis: Literal["generate", "select"] = "generate"
    """Where a capability's tasks come from: `generate` takes the suite's generator, or the model in
    the role of the generator; `select` takes the training tasks whose failures lack it, for suites
    without a generator. Then the analysis is the calibration, and no other is run."""
    calibration_groups: Positive = 4
    """Seeds per calibration round (published 100; ours is what a small budget can pay)."""
    calibration_group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts per seed (published 16)."""
    calibration_rounds: Natural = 5
    """Most rounds per capability (published: up to 5 regenerations). 0: none is run, and every
    environment is trained on as it is drawn."""
    bands: bool = True
    """Whether calibration's numbers have to lie in the published bands; without, they are measured
    only (for rehearsals)."""
    minimum_training: Positive = 96
    """Fewest training rollouts per capability; a budget that cannot pay this for every selected
    capability trains fewer of them (ours: at 640 rollouts on the development split 96 gave 0.573 on
    average over three seeds, 64 gave 0.547 and 128 gave 0.534)."""
    route: AnyRoute = field(default_factory=Classifier, metadata=at_servers({"name": "zero_shot"}))
    """Which adapter acts: a name, and that route's own settings. null: classifier, or,
    where servers generate the turns, which show no hidden states, the published zero_shot."""
    adapters: Literal["per_capability", "joint"] = "per_capability"
    """One adapter per capability (published), or "joint": one adapter on all selected
    environments with the same budget, used for every task; its own run, with its own ledger."""
    reward: Literal["similarity", "success"] = "similarity"
    """Which number of the score is the reward on the target's own training tasks."""
    finish: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Part of the budget for the last step, GRPO on the target's own training tasks from the sum of
    the adapters, or from the joint one (ours; 0: none, as published)."""

    def __post_init__(self) -> None:
        AnalysisSettings.__post_init__(self)
        if self.in_context and self.synthesis == "select":
            raise UserError(
                f"method.in_context={self.in_context} is for made tasks, and "
                "method.synthesis=select makes none. Set `method.in_context` to 0."
            )
        if self.finish and not self.joint and not isinstance(self.route, Linear):
            raise UserError(
                f"method.finish={self.finish} trains one adapter, the sum of all, and "
                f"method.route={self.route.name} chooses between several. Set method.route=linear "
                "or method.adapters=joint."
            )

    @property
    def adapter_reward(self) -> str:
        """On the tasks that the adapters are trained on."""
        return self.reward if self.synthesis == "select" else REWARD

    @property
    def calibration_round(self) -> int:
        """Rollouts of one calibration round of one capability; 0 where none is run."""
        if self.synthesis == "select" or not self.calibration_rounds:
            return 0
        return self.calibration_groups * self.calibration_group_size

    @property
    def weight(self) -> float:
        """Of each adapter in the sum that the target finishes; one for everything acts whole."""
        return self.route.weight if isinstance(self.route, Linear) and not self.joint else 1.0

    @property
    def joint(self) -> bool:
        return self.adapters == JOINT


@dataclass(frozen=True)
class Budget:
    """The rollouts of one fit, in whole episodes: analysis, calibration and training are all
    charged. `total`: all of them. `free`: the budget pays for training only (accounting=paper)."""

    settings: TraceSettings
    total: int
    free: bool = False

    @property
    def finish(self) -> int:
        """Rollouts that are kept for the target's own tasks."""
        return int(self.settings.finish * self.total)

    @property
    def gate(self) -> int:
        """Rollouts that are kept for the gate."""
        if self.settings.joint or not isinstance(self.settings.route, Gate):
            return 0
        return int(self.settings.route.share * self.total)

    @property
    def adapters(self) -> int:
        """Rollouts of all that comes before these."""
        return self.total - self.gate - self.finish

    @property
    def each(self) -> int:
        """What one more capability costs at least: a calibration round and the least training."""
        return self._charged(self.settings.calibration_round) + self.settings.minimum_training

    def left(self, lab: Lab) -> int:
        """Of a run, before the gate's and the target's."""
        return lab.budget_left() - self.gate - self.finish

    def looking(self, tasks: int) -> int:
        """Analysis rollouts: the share, or one per training task up to a quarter of the budget, and
        never so many that a single capability could not be calibrated and trained any more."""
        settings = self.settings
        share = int(settings.analysis_share * self.adapters)
        each_once = min(tasks, int(0.25 * self.adapters))
        wanted = max(settings.analysis_minimum, share, each_once)
        return wanted if self.free else min(wanted, self.adapters - self.each)

    def after_looking(self, tasks: int) -> int:
        return self.adapters - self._charged(self.looking(tasks))

    def capabilities(self, left: int) -> int:
        """How many capabilities `left` rollouts can calibrate once and train."""
        return min(self.settings.max_capabilities, left // self.each)

    def calibration(self, left: int, capabilities: int) -> int:
        """Rollouts that calibration may use in all: its share of the budget, but at least one round
        for every capability, and never the least training of any of them."""
        settings = self.settings
        if not settings.calibration_round:
            return 0
        first = capabilities * settings.calibration_round
        wanted = max(first, int(CALIBRATION_SHARE * self.adapters))
        return wanted if self.free else min(wanted, left - capabilities * settings.minimum_training)

    def _charged(self, rollouts: int) -> int:
        return 0 if self.free else rollouts

    def training(self, trainer: Trainer, left: int) -> Phase:
        """Training of the adapters, where one capability is calibrated at least. Raises UserError
        if the trainer needs more than an adapter is sure to have of `left`."""
        least, named = self.settings.minimum_training, "method.minimum_training"
        if left >= self.each:  # else the run refuses the budget
            most = self.capabilities(left)
            rollouts = left - self._charged(self.calibration(left, most))
            try:
                trainer.plan_training(
                    rollouts if self.settings.joint else rollouts // most, "one adapter", ()
                )
            except UserError as error:
                raise UserError(f"{error} Or raise `{named}`.") from error
        rollouts = left - self._charged(self.settings.calibration_round)
        return Phase("training", rollouts, True, True, least, named)
