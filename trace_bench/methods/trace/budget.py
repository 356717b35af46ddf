"""Step 3: who gets how many rollouts.

Rollouts are counted in whole episodes. Analysis, calibration and training are all charged; with
`accounting=paper` the first two are free, and all of the budget is training. TRACE's curve is made
of separate runs, since the phases are shares of the whole budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import FineTunes, Lab, Trainer
from trace_bench.methods.trace.settings import TraceSettings


@dataclass(frozen=True)
class Budget:
    """The rollouts of one fit. `total`: all of them. `free`: the budget pays for training only.
    `later`: the run's rollouts that are left for what comes after the fit; not in `total`."""

    settings: TraceSettings
    total: int
    free: bool = False
    later: int = 0

    @property
    def gate(self) -> int:
        """Rollouts that are kept for GRPO of the gate."""
        return 0 if self.settings.joint else int(self.settings.route.trained * self.total)

    @property
    def adapters(self) -> int:
        """Rollouts of all that comes before the gate."""
        return self.total - self.gate

    @property
    def each(self) -> int:
        """What one more capability costs at least: a calibration round and the least training."""
        return self._charged(self.settings.calibration_round) + self.settings.minimum_training

    @property
    def least(self) -> int:
        """The smallest sensible `adapters`: the fewest analysis rollouts (of however many training
        tasks: few are run several times, of many a sample), then one capability."""
        return self._charged(self.settings.analysis_minimum) + self.each

    # -- what is left of it in a run ----------------------------------------------------------

    def left(self, lab: Lab) -> int:
        """Before the gate's."""
        return self.unspent(lab) - self.gate

    def unspent(self, lab: Lab) -> int:
        return lab.budget_left() - self.later

    # -- the shares ---------------------------------------------------------------------------

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
        wanted = max(first, int(settings.calibration_share * self.adapters))
        return wanted if self.free else min(wanted, left - capabilities * settings.minimum_training)

    def training(self, left: int) -> int:
        """Most rollouts of training: one capability is calibrated at least."""
        return left - self._charged(self.settings.calibration_round)

    def _charged(self, rollouts: int) -> int:
        return 0 if self.free else rollouts

    # -- whether it is enough -----------------------------------------------------------------

    def check(self, trainer: Trainer) -> None:
        """Raises UserError if the gate's part pays for no iteration or leaves too little, and with
        every phase's need when the budget is too small for one capability."""
        settings = self.settings
        if self.gate and isinstance(trainer, FineTunes):
            least = min(2, trainer.settings.groups) * trainer.settings.group_size
            if self.gate < least or self.adapters < self.least:
                raise UserError(
                    f"method.route.share={settings.route.trained} of budget={self.total} is "
                    f"{self.gate} rollouts for the gate, which needs at least {least}, and leaves "
                    f"{self.adapters} for the adapters, which need at least {self.least}. Raise "
                    "`budget` or change `method.route.share`; with 0 the gate stays as it starts."
                )
        if self.adapters >= self.least:
            return
        if self.free:
            raise UserError(
                f"budget={self.adapters} is too small for method=trace, which needs at least "
                f"{self.least} rollouts to train one adapter (method.minimum_training). Raise "
                "`budget` or lower it."
            )
        calibration = (
            f"calibration {settings.calibration_round} (method.calibration_groups x "
            "method.calibration_group_size), "
        )
        raise UserError(
            f"budget={self.adapters} is too small for method=trace, which needs at least "
            f"{self.least} rollouts: analysis {settings.analysis_minimum} "
            f"(method.analysis_minimum), {calibration if settings.calibration_round else ''}"
            f"training {settings.minimum_training} (method.minimum_training). Raise `budget` or "
            "lower one of these."
        )
