"""Every number of TRACE, each with where it comes from.

"published" means the paper or the released repository (arXiv 2604.05336); "ours" means a choice of
this project, with its reason. Rollouts are counted in whole episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trace_bench.core.errors import UserError, unknown

CHOICES: dict[str, tuple[str, ...]] = {
    "order_by": ("delta", "coverage"),
    "split": ("equal", "by_coverage"),
    "adapters": ("per_capability", "joint"),
    "reward": ("similarity", "success"),
    "route": ("retrieval", "zero_shot", "both"),
}


@dataclass(frozen=True)
class TraceSettings:
    """`method.*` of `method=trace`. `of` checks types and ranges once, at the edge."""

    # -- analysis ---------------------------------------------------------------------------
    analysis_share: float = 0.10
    """Part of the budget spent on analysis rollouts (ours; published: 164 rollouts, uncounted)."""
    analysis_ceiling: float = 0.25
    """One rollout per training task is wanted, never more than this part of the budget (ours)."""
    analysis_minimum: int = 32
    """Fewest analysis rollouts (ours: below some 30 the rates of rare causes mean nothing)."""
    analysis_temperature: float = 1.0
    """Sampling temperature of the analysis (published range 0.7 to 1.0)."""

    # -- selection --------------------------------------------------------------------------
    runs: int = 10
    """N, labelling runs (published). A program's labels never vary, so each of our runs sees its
    own bootstrap resample of the trajectories: it varies by what happened to be sampled."""
    keep_runs: int = 8
    """K, runs that must select a capability (published)."""
    coverage: float = 0.05
    """rho, lowest share of failed trajectories that lack the capability (published 0.10). With
    many small causes, each behind some 7 % of the failures, 0.10 drops most of what can be
    learned; 0.05 keeps a cause that is seen in about every twentieth failure, and `minimum_support`
    and K of N still keep chance findings out."""
    gap: float = 0.20
    """delta, lowest contrastive gap of the error rates (published)."""
    minimum_runs: int = 5
    """Fewest labelling runs that a selection is made from, when a model's answers cannot be used in
    others; K scales with what is left (ours)."""
    minimum_support: int = 5
    """Fewest labelled (not NA) trajectories of a run (ours: in the release, three labelled
    trajectories can make a gap of 1)."""
    order_by: str = "delta"
    """Which capability comes first: largest mean gap (published) or largest mean coverage."""
    max_capabilities: int = 10
    """Most capabilities that are trained (published: discovery proposes at most 10)."""

    # -- synthetic tasks and calibration ----------------------------------------------------
    synthetic_tasks: int = 256
    """Distinct training seeds per capability (ours; published: a fresh seed for every group)."""
    contrast_share: float = 0.20
    """Share of synthetic tasks in which the capability must not be over-used (ours)."""
    calibration_share: float = 0.10
    """Part of the budget that calibration may use beyond one round for each capability (ours)."""
    calibration_groups: int = 4
    """Seeds per calibration round (published 100; ours is what a small budget can pay)."""
    calibration_group_size: int = 8
    """Rollouts per seed (published 16)."""
    calibration_rounds: int = 5
    """Most rounds per capability (published: up to 5 regenerations)."""
    calibration_temperature: float = 1.0
    """Sampling temperature (published range 0.7 to 1.0; the trainer samples at 1)."""
    band_low: float = 0.20
    """Mean reward and success rate wanted from here ... (published)"""
    band_high: float = 0.60
    """... to here (published)."""
    band_std: float = 0.05
    """Smallest standard deviation of the reward (published)."""
    band_all_success: float = 0.20
    """Largest share of groups that always succeed (published)."""
    band_all_zero: float = 0.20
    """Largest share of groups that never earn anything (published)."""
    band_constant: float = 0.50
    """Largest share of groups with one and the same reward (published; so informative >= 0.5)."""

    generator_rounds: int = 5
    """Most attempts of a model at an environment (published: up to 5 regenerations)."""
    idle_limit: float = 0.2
    """Most that an agent which does nothing may earn in an environment on average (ours)."""
    random_limit: float = 0.3
    """Most that random tool calls may earn on average (ours)."""

    # -- training ---------------------------------------------------------------------------
    minimum_training: int = 96
    """Fewest training rollouts per capability; a budget that cannot pay this for every selected
    capability trains fewer of them (ours: at 640 rollouts on the development split 96 gave 0.573 on
    average over three seeds, 64 gave 0.547 and 128 gave 0.534)."""
    split: str = "equal"
    """How the rest of the budget is split: equal parts, or in proportion to mean coverage."""
    adapters: str = "per_capability"
    """One adapter per capability (published), or "joint": one adapter on all selected
    environments with the same budget, used for every task; its own run, with its own ledger."""
    reward: str = "similarity"
    """Which number of the synthetic tasks' score is the reward."""

    # -- routing ----------------------------------------------------------------------------
    route: str = "retrieval"
    """Who chooses the adapter: likeness to stored conversations, the base model by the probability
    of a letter (published), or the base model among those that retrieval finds (published). The
    tiny agent can only be routed by retrieval: it knows tool conversations and no questions about
    them."""
    route_share: float = 0.0
    """zero_shot and both: play the weighted sum of the fewest adapters that have this share of the
    probability (a published variant); 0 plays the likeliest alone (published as final)."""
    route_examples: int = 256
    """Most retrieval examples per label and source (ours; on the development split 32 of them name
    a needed capability for 38 of 76 tasks, 128 for 42, 256 for 50)."""
    route_contrast: bool = False
    """Whether contrast cases are examples for the base model (ours: no. An adapter is trained on
    them too and solves them, so all they do is draw tasks away from it: on the development split,
    with all seven adapters, 50 of those 76 tasks go to a needed one with them and 57 without)."""
    route_failures: bool = True
    """Whether training tasks that failed for lack of a capability are examples for its adapter."""
    route_tools: float = 0.7
    """Weight of the tools at hand in the similarity; 0 compares first messages only, as published.
    That a tool is missing shows in the tools alone: of those 76 tasks 65 go to a needed adapter at
    0.7, 62 at 0.5, 57 at 0 (ours)."""
    route_top_k: int = 5
    """Neighbours (published retrieval variant)."""
    route_threshold: float = 0.35
    """Smallest cosine of a neighbour (published 0.5, for embeddings; ours is for word counts, whose
    cosines are smaller: at 0.5 the base model gets 27 of those 76 tasks, at 0.35 it gets 9)."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TraceSettings:
        """Settings from the validated configuration; keys that are not ours are refused.

        Raises UserError naming the key, what was given and what is allowed. The key `name` (the
        method's own) is skipped.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        given = {k: v for k, v in values.items() if k != "name"}
        for key in given:
            if key not in fields:
                raise unknown("setting of method=trace", key, sorted(fields), f"method.{key}")
        settings = cls(**given)
        for name in fields:
            _check(name, getattr(settings, name))
        if settings.keep_runs > settings.runs:
            raise UserError(
                f"method.keep_runs={settings.keep_runs} is more than method.runs={settings.runs}; "
                f"allowed: 1 to {settings.runs}. Change `method.keep_runs`."
            )
        if settings.band_low > settings.band_high:
            raise UserError(
                f"method.band_low={settings.band_low} is above method.band_high="
                f"{settings.band_high}. Change `method.band_low`."
            )
        return settings

    @property
    def calibration_round(self) -> int:
        """Rollouts of one calibration round of one capability."""
        return self.calibration_groups * self.calibration_group_size


def _check(name: str, value: object) -> None:
    """Type and range of one setting, by the type of its default."""
    default = TraceSettings.__dataclass_fields__[name].default
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise unknown(f"method.{name}", value, CHOICES[name], f"method.{name}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
    elif isinstance(default, int):
        low = 0 if name == "minimum_support" else 2 if name == "calibration_group_size" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise _wrong(name, value, f"a whole number from {low}")
    elif isinstance(default, float):
        high = 2.0 if name.endswith("temperature") else 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
            raise _wrong(name, value, f"a number from 0 to {high:g}")


def _wrong(name: str, value: object, allowed: str) -> UserError:
    return UserError(f"method.{name}={value!r}; allowed: {allowed}. Change `method.{name}`.")
