"""Who gets how many rollouts. Everything is charged: analysis, calibration and training; but for
`accounting=paper`, where the first two are free (`free`), and all of the budget is training.

Because the phases are shares of the whole budget, a checkpoint of a large run is not what a run
with the smaller budget would give: TRACE's curve is made of separate runs.
"""

from __future__ import annotations

from trace_bench.core.errors import UserError
from trace_bench.methods.trace.settings import TraceSettings


def minimum(settings: TraceSettings, free: bool = False) -> int:
    """The smallest sensible budget: the fewest analysis rollouts (of however many training tasks:
    few are run several times, of many a sample), then one calibration round and the least
    training for one capability."""
    return (0 if free else settings.analysis_minimum) + per_capability(settings, free)


def per_capability(settings: TraceSettings, free: bool = False) -> int:
    """What one more capability costs at least: a calibration round and the least training."""
    return (0 if free else settings.calibration_round) + settings.minimum_training


def check_budget(
    budget: int, settings: TraceSettings, free: bool = False, name: str = "trace"
) -> None:
    """Raises UserError with every phase's need when `budget` is below `minimum`. `name`: of the
    method."""
    need = minimum(settings, free)
    if budget >= need:
        return
    if free:
        raise UserError(
            f"budget={budget} is too small for method={name}, which needs at least {need} rollouts "
            "to train one adapter (method.minimum_training). Raise `budget` or lower it."
        )
    calibration = (
        f"calibration {settings.calibration_round} (method.calibration_groups x "
        "method.calibration_group_size), "
    )
    raise UserError(
        f"budget={budget} is too small for method={name}, which needs at least {need} "
        f"rollouts: analysis {settings.analysis_minimum} (method.analysis_minimum), "
        f"{calibration if settings.calibration_round else ''}training {settings.minimum_training} "
        f"(method.minimum_training). Raise `budget` or lower one of these."
    )


def analysis_rollouts(
    budget: int, settings: TraceSettings, n_train: int, free: bool = False
) -> int:
    """Analysis rollouts: the share, or one per training task if the ceiling allows, and never so
    many that a single capability could not be calibrated and trained any more."""
    share = int(settings.analysis_share * budget)
    each_once = min(n_train, int(settings.analysis_ceiling * budget))
    wanted = max(settings.analysis_minimum, share, each_once)
    return wanted if free else min(wanted, budget - per_capability(settings))


def affordable(left: int, settings: TraceSettings, free: bool = False) -> int:
    """How many capabilities `left` rollouts can calibrate once and train."""
    return min(settings.max_capabilities, left // per_capability(settings, free))


def calibration_pool(
    budget: int, left: int, capabilities: int, settings: TraceSettings, free: bool = False
) -> int:
    """Rollouts that calibration may use in all: its share of the budget, but at least one round
    for every capability, and never the least training of any of them."""
    if not settings.calibration_round:
        return 0
    first = capabilities * settings.calibration_round
    wanted = max(first, int(settings.calibration_share * budget))
    return wanted if free else min(wanted, left - capabilities * settings.minimum_training)


def next_share(left: int, jobs: int) -> int:
    """Rollouts for the first of so many jobs still to come, in equal parts; what a job leaves
    unspent thus goes to those after it, and the last one gets all that is left."""
    return left // jobs
