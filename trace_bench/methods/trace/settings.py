"""Every number of TRACE by phase, each with where it comes from.

"published" means the paper or the released repository (arXiv 2604.05336); "ours" means a choice of
this project, with its reason. Rollouts are counted in whole episodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trace_bench.core.errors import UserError


def _share(default: float) -> Any:
    """A part of something."""
    return field(default=default, metadata={"low": 0, "high": 1})


def _temperature(default: float) -> Any:
    return field(default=default, metadata={"low": 0, "high": 2})


def _count(default: int, low: int = 1) -> Any:
    return field(default=default, metadata={"low": low})


@dataclass(frozen=True)
class AnalysisSettings:
    """Analysis rollouts, labels, and the selection of capabilities."""

    analysis_minimum: int = _count(32)
    """Fewest analysis rollouts (ours: below some 30 the rates of rare causes mean nothing)."""
    analysis_temperature: float = _temperature(1.0)
    """Sampling temperature of the analysis (published range 0.7 to 1.0)."""
    runs: int = _count(10)
    """N, labelling runs (published). A program's labels never vary, so each of our runs sees its
    own bootstrap resample of the trajectories: it varies by what happened to be sampled."""
    keep_runs: int = _count(8)
    """K, runs that must select a capability (published)."""
    coverage: float = _share(0.05)
    """rho, lowest share of failed trajectories that lack the capability (published 0.10). With
    many small causes, each behind some 7 % of the failures, 0.10 drops most of what can be
    learned; 0.05 keeps a cause that is seen in about every twentieth failure, and `minimum_support`
    and K of N still keep chance findings out."""
    gap: float = _share(0.20)
    """delta, lowest contrastive gap of the error rates (published)."""
    minimum_runs: int = _count(5)
    """Fewest labelling runs that a selection is made from, when a model's answers cannot be used in
    others; K scales with what is left (ours)."""
    minimum_support: int = _count(5, 0)
    """Fewest labelled (not NA) trajectories of a run (ours: in the release, three labelled
    trajectories can make a gap of 1)."""
    max_capabilities: int = _count(10)
    """Most capabilities that are trained (published: discovery proposes at most 10)."""

    def __post_init__(self) -> None:
        if self.keep_runs > self.runs:
            raise UserError(
                f"method.keep_runs={self.keep_runs} is more than method.runs={self.runs}; "
                f"allowed: 1 to {self.runs}. Change `method.keep_runs`."
            )


@dataclass(frozen=True)
class SynthesisSettings:
    """Training tasks for a capability, and their calibration on the base agent."""

    synthesis: Literal["generate", "select"] = "generate"
    """Where a capability's tasks come from: `generate` takes the suite's generator, or the model in
    the role of the generator; `select` takes the training tasks whose failures lack it, for suites
    without a generator. Then the analysis is the calibration, and no other is run."""
    synthetic_tasks: int = _count(256)
    """Distinct training seeds per capability (ours; published: a fresh seed for every group)."""
    contrast_share: float = _share(0.20)
    """Share of synthetic tasks in which the capability must not be over-used (ours)."""
    calibration_share: float = _share(0.10)
    """Part of the budget that calibration may use beyond one round for each capability (ours)."""
    calibration_groups: int = _count(4)
    """Seeds per calibration round (published 100; ours is what a small budget can pay)."""
    calibration_group_size: int = _count(8, 2)
    """Rollouts per seed (published 16)."""
    calibration_rounds: int = _count(5, 0)
    """Most rounds per capability (published: up to 5 regenerations). 0: none is run, and every
    environment is trained on as it is drawn."""
    calibration_temperature: float = _temperature(1.0)
    """Sampling temperature (published range 0.7 to 1.0; the trainer samples at 1)."""
    band_low: float = _share(0.20)
    """Mean reward and success rate wanted from here ... (published)"""
    band_high: float = _share(0.60)
    """... to here (published)."""
    band_std: float = _share(0.05)
    """Smallest standard deviation of the reward (published)."""
    band_all_success: float = _share(0.20)
    """Largest share of groups that always succeed (published)."""
    band_all_zero: float = _share(0.20)
    """Largest share of groups that never earn anything (published)."""
    band_constant: float = _share(0.50)
    """Largest share of groups with one and the same reward (published; so informative >= 0.5)."""
    generator_rounds: int = _count(5)
    """Most attempts of a model at an environment (published: up to 5 regenerations)."""
    idle_limit: float = _share(0.2)
    """Most that an agent which does nothing may earn in an environment on average (ours)."""
    random_limit: float = _share(0.3)
    """Most that random tool calls may earn on average (ours)."""
    reward: Literal["similarity", "success"] = "similarity"
    """Which number of the tasks' score is the reward."""

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
class RoutingSettings:
    """Which adapter acts."""

    route: Literal[
        "retrieval", "zero_shot", "both", "classifier", "soft", "turn", "gate", "linear", "ties"
    ] = "classifier"
    """How the adapter is chosen: likeness to stored conversations (retrieval), the base model by
    the probability of a letter (zero_shot, published), the base model among those that retrieval
    finds (both, published), or a classifier on the base model's hidden state (ours), which chooses
    one adapter, to which the others are added with a share, or, with soft, weights for all; anew at
    every turn, by what the conversation shows so far (turn, ours); or a soft classifier that is
    then trained with GRPO on the target's training tasks (gate, the current paper's). linear and
    ties merge all adapters into one. The tiny agent cannot be asked for a letter: it knows tool
    conversations and no questions about them. The default follows from results/protocol.md."""
    route_share: float = _share(0.0)
    """zero_shot and both: use the weighted sum of the fewest adapters that have this share of the
    probability (a published variant); 0 uses the likeliest alone (published as final)."""
    route_examples: int = _count(256)
    """Most examples per label and source, of retrieval and of the classifiers (ours; on the
    development split 32 of retrieval's name a needed capability for 38 of 76 tasks, 128 for 42, 256
    for 50)."""
    route_failures: bool = True
    """retrieval, both: whether training tasks that failed for lack of a capability are examples for
    its adapter."""
    route_tools: float = _share(0.7)
    """retrieval, both: weight of the tools at hand in the similarity; 0 compares first messages
    only, as published. That a tool is missing shows in the tools alone: of those 76 tasks 65 go to
    a needed adapter at 0.7, 62 at 0.5, 57 at 0 (ours)."""
    route_top_k: int = _count(5)
    """retrieval, both: neighbours (published retrieval variant)."""
    route_threshold: float = _share(0.35)
    """retrieval, both: smallest cosine of a neighbour (published 0.5, for embeddings; ours is for
    word counts, whose cosines are smaller: at 0.5 the base model gets 27 of those 76 tasks, at 0.35
    it gets 9)."""
    route_others: float = _share(0.35)
    """classifier, soft, turn, gate: a weight g becomes g + route_others (1 - g), so that the other
    adapters' updates count beside the chosen one (ours)."""
    route_l2: float = field(default=1e-3, metadata={"low": 0})
    """classifier, soft, turn, gate: L2 penalty of the logistic regression (ours)."""
    route_weight: float = field(default=0.5, metadata={"low": 0})
    """linear: the weight of every adapter's update (ours)."""
    route_density: float = field(default=0.2, metadata={"low": 0.001, "high": 1})
    """ties: the share of each update's values that is kept (published for TIES)."""
    gate_share: float = _share(0.15)
    """gate: part of the budget for GRPO of the gate; with 0 it stays as it starts (ours)."""
    gate_rate: float = field(default=1e-3, metadata={"low": 0})
    """gate: learning rate of its GRPO, constant (published)."""
    gate_warm: bool = True
    """gate: start from the classifier (published: a warm start on prompts and capabilities), or
    else at zero, which weighs all adapters alike (published as the gate's initialization)."""


@dataclass(frozen=True)
class TraceSettings(RoutingSettings, SynthesisSettings, AnalysisSettings):
    """`method.*` of `method=trace`: the phases' settings, and what the phases share."""

    analysis_share: float = _share(0.10)
    """Part of the budget spent on analysis rollouts (ours; published: 164 rollouts, uncounted)."""
    analysis_ceiling: float = _share(0.25)
    """One rollout per training task is wanted, never more than this part of the budget (ours)."""
    minimum_training: int = _count(96)
    """Fewest training rollouts per capability; a budget that cannot pay this for every selected
    capability trains fewer of them (ours: at 640 rollouts on the development split 96 gave 0.573 on
    average over three seeds, 64 gave 0.547 and 128 gave 0.534)."""
    adapters: Literal["per_capability", "joint"] = "per_capability"
    """One adapter per capability (published), or "joint": one adapter on all selected
    environments with the same budget, used for every task; its own run, with its own ledger."""

    def __post_init__(self) -> None:
        AnalysisSettings.__post_init__(self)
        SynthesisSettings.__post_init__(self)


@dataclass(frozen=True)
class SingleCapabilitySettings(TraceSettings):
    """`method.*` of `method=single_capability`: TRACE's, with one capability."""

    max_capabilities: int = field(default=1, metadata={"low": 1, "high": 1})


@dataclass(frozen=True)
class JointSettings(TraceSettings):
    """`method.*` of `method=joint`: TRACE's, with one adapter."""

    adapters: Literal["joint"] = "joint"
    """No other."""


@dataclass(frozen=True)
class TraceFinishSettings(TraceSettings):
    """`method.*` of `method=trace_finish`: TRACE's, and what comes after it."""

    route: Literal["linear"] = "linear"
    """No other: until the last part begins, all adapters act as the sum that it starts from."""
    finish_share: float = _share(0.25)
    """Part of the budget for GRPO on the target's training tasks (ours)."""
    merge_weight: float = field(default=0.5, metadata={"low": 0})
    """Weight of every adapter's update in the sum (ours: half of each, without a router, was as
    good as a router on the development split in an early trial)."""


@dataclass(frozen=True)
class PromptOnlySettings(AnalysisSettings):
    """`method.*` of `method=prompt_only`: the analysis, with the whole budget."""

    max_capabilities: int = _count(8)
    """Most lines of advice in the prompt (the paper's curve has 1 to 16)."""
