"""Every number of TRACE by phase, each with where it comes from.

"published" means the paper or the released repository (arXiv 2604.05336); "ours" means a choice of
this project, with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.methods.looking.capabilities import AnalysisSettings
from trace_bench.methods.making import TaskSettings
from trace_bench.methods.trace.routing import AnyRoute, Classifier

JOINT: Final = "joint"


@dataclass(frozen=True)
class SynthesisSettings(TaskSettings):
    """Training tasks for a capability, and their calibration on the base agent."""

    synthesis: Literal["generate", "select"] = "generate"
    """Where a capability's tasks come from: `generate` takes the suite's generator, or the model in
    the role of the generator; `select` takes the training tasks whose failures lack it, for suites
    without a generator. Then the analysis is the calibration, and no other is run."""
    calibration_share: float = field(default=0.10, metadata=number(0, 1))
    """Part of the budget that calibration may use beyond one round for each capability (ours)."""
    calibration_groups: int = field(default=4, metadata=number(1))
    """Seeds per calibration round (published 100; ours is what a small budget can pay)."""
    calibration_group_size: int = field(default=8, metadata=number(2))
    """Rollouts per seed (published 16)."""
    calibration_rounds: int = field(default=5, metadata=number(0))
    """Most rounds per capability (published: up to 5 regenerations). 0: none is run, and every
    environment is trained on as it is drawn."""
    calibration_temperature: float = field(default=1.0, metadata=number(0, 2))
    """Sampling temperature (published range 0.7 to 1.0; the trainer samples at 1)."""
    band_low: float = field(default=0.20, metadata=number(0, 1))
    """Mean reward and success rate wanted from here ... (published)"""
    band_high: float = field(default=0.60, metadata=number(0, 1))
    """... to here (published)."""
    band_std: float = field(default=0.05, metadata=number(0, 1))
    """Smallest standard deviation of the reward (published)."""
    band_all_success: float = field(default=0.20, metadata=number(0, 1))
    """Largest share of groups that always succeed (published)."""
    band_all_zero: float = field(default=0.20, metadata=number(0, 1))
    """Largest share of groups that never earn anything (published)."""
    band_constant: float = field(default=0.50, metadata=number(0, 1))
    """Largest share of groups with one and the same reward (published; so informative >= 0.5)."""
    generator_rounds: int = field(default=5, metadata=number(1))
    """Most attempts of a model at an environment (published: up to 5 regenerations)."""

    @property
    def calibration_round(self) -> int:
        """Rollouts of one calibration round of one capability; 0 where none is run."""
        if self.synthesis == "select" or not self.calibration_rounds:
            return 0
        return self.calibration_groups * self.calibration_group_size

    def __post_init__(self) -> None:
        if self.band_low > self.band_high:
            raise UserError(
                f"method.band_low={self.band_low} is above method.band_high={self.band_high}. "
                "Change `method.band_low`."
            )


@dataclass(frozen=True)
class TraceSettings(SynthesisSettings, AnalysisSettings):
    """`method.*` of `method=trace`: the phases' settings, and what the phases share."""

    analysis_share: float = field(default=0.10, metadata=number(0, 1))
    """Part of the budget spent on analysis rollouts (ours; published: 164 rollouts, uncounted)."""
    minimum_training: int = field(default=96, metadata=number(1))
    """Fewest training rollouts per capability; a budget that cannot pay this for every selected
    capability trains fewer of them (ours: at 640 rollouts on the development split 96 gave 0.573 on
    average over three seeds, 64 gave 0.547 and 128 gave 0.534)."""
    route: AnyRoute = field(default_factory=Classifier)
    """Which adapter acts: a name, and that route's own settings (routing.py)."""
    adapters: Literal["per_capability", "joint"] = "per_capability"
    """One adapter per capability (published), or "joint": one adapter on all selected
    environments with the same budget, used for every task; its own run, with its own ledger."""

    def __post_init__(self) -> None:
        AnalysisSettings.__post_init__(self)
        SynthesisSettings.__post_init__(self)

    @property
    def joint(self) -> bool:
        return self.adapters == JOINT
