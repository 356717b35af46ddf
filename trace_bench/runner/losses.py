"""The limit on lost episodes: a call of which too many are lost stops the run.

An episode is lost when the infrastructure fails (environment, sandbox, policy, user). Nothing can
be learned or measured from a call that is mostly lost, so going on would spend the budget on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.core.errors import UserError
from trace_bench.core.types import Boundary, Failure, Task
from trace_bench.play.steps import Faults
from trace_bench.play.suites import GENERATED

_OF_PROGRAM = (Boundary.ENVIRONMENT, Boundary.SANDBOX)
AGAIN = "Remove the cause and run the same command again: the lost episodes are run again."
NOT_AGAIN = "The training has learned from what is left of them: change the setting `run_dir`."


def counts(task: Task, failure: Failure | None) -> bool:
    """Whether an episode counts as lost. One that a generated environment fails does not: that is
    a finding about the environment, and the methods that use such environments drop them."""
    if failure is None:
        return False
    return not (task.env.startswith(GENERATED) and failure.boundary in _OF_PROGRAM)


def too_many(lost: int, total: int, share: float) -> bool:
    """Whether more than this share of the episodes is lost."""
    return lost > share * total


def check(
    what: str,
    lost: Sequence[str],
    total: int,
    share: float,
    faults: Faults | None = None,
    remedy: str = AGAIN,
) -> None:
    """Raises UserError if too many of the `total` episodes are lost. `lost`: the cause of each, in
    the order in which they ended."""
    if not too_many(len(lost), total, share):
        return
    where = faults.where if faults is not None else ""
    raise UserError(
        f"{what}: {len(lost)} of {total} episodes were lost, more than max_lost={share:g} allows. "
        f"The first: {lost[0]}.{where} {remedy} To accept such losses, change the setting "
        "`max_lost`."
    )
