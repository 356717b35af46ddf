"""Capabilities: the words for them, and which of them an agent lacks.

The vocabulary is what discovery proposes candidates from without a model; nothing in it names a
tool or a benchmark. Controls are skills that nearly every episode uses or that do not decide
success: a sound selection leaves them out, and a report shows that it did.

The selection is arithmetic on labels: coverage, error rates and contrastive gap over N runs. With
the labelling program every run has its own bootstrap resample of the trajectories, with a language
model its own labels.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from trace_bench.core.errors import not_allowed
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Meta, Natural, Positive, Share, Task, Trajectory


@dataclass(frozen=True)
class AnalysisSettings:
    """Analysis rollouts, labels, and the selection of capabilities."""

    analysis_minimum: Positive = 32
    """Fewest analysis rollouts (ours: below some 30 the rates of rare causes mean nothing)."""
    analysis_temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    """Sampling temperature of the analysis and of calibration (published range 0.7 to 1.0; trainers
    sample at 1)."""
    runs: Positive = 10
    """N, labelling runs (published). A program's labels never vary, so each of our runs sees its
    own bootstrap resample of the trajectories: it varies by what happened to be sampled."""
    keep_runs: Positive = 8
    """K, runs that must select a capability (published)."""
    coverage: Share = 0.05
    """rho, lowest share of failed trajectories that lack the capability (published 0.10). With
    many small causes, each behind some 7 % of the failures, 0.10 drops most of what can be
    learned; 0.05 keeps a cause that is seen in about every twentieth failure, and `minimum_support`
    and K of N still keep chance findings out."""
    gap: Share = 0.20
    """delta, lowest contrastive gap of the error rates (published)."""
    minimum_support: Natural = 5
    """Fewest labelled (not NA) trajectories of a run (ours: in the release, three labelled
    trajectories can make a gap of 1)."""
    max_capabilities: Positive = 10
    """Most capabilities that are trained (published: discovery proposes at most 10)."""

    def __post_init__(self) -> None:
        if self.keep_runs > self.runs:
            raise not_allowed("method.keep_runs", self.keep_runs, f"1 to method.runs={self.runs}")


class Label(StrEnum):
    """What one trajectory says about one capability. When unsure: PRESENT (published rule)."""

    NA = "NA"  # the situation that needs the capability did not come up
    PRESENT = "PRESENT"
    LACKING = "LACKING"


@dataclass(frozen=True)
class Capability:
    """A candidate, in words that a person (or a routing prompt) can use."""

    name: str
    description: str
    advice: str = ""  # the same as one line of guidance to an agent; none for controls
    control: bool = False


VOCABULARY: tuple[Capability, ...] = (
    Capability(
        "recovers_from_errors",
        "When a tool call fails for a reason that can be put right, puts it right and repeats "
        "the call instead of giving up.",
        "When a tool fails, fix the cause and retry.",
    ),
    Capability(
        "checks_preconditions",
        "Looks at the state of things before changing them, and acts only if the condition holds.",
        "Check every condition before you act.",
    ),
    Capability(
        "asks_when_information_is_missing",
        "Asks the user for what the request leaves out instead of making it up.",
        "Ask when something is missing.",
    ),
    Capability(
        "disambiguates",
        "When several records match, finds out which one is meant before acting on it.",
        "Ask which one is meant when several match.",
    ),
    Capability(
        "completes_all_parts",
        "Does every part of a request and every follow-up, not only the first.",
        "Do every part of the request.",
    ),
    Capability(
        "takes_exact_arguments_from_results",
        "Copies identifiers and numbers exactly from earlier tool results into later calls.",
        "Copy ids and numbers exactly from results.",
    ),
    Capability(
        "converts_values",
        "Turns the user's wording into the form a tool expects: formats, units, dates.",
        "Convert values to what the tool needs.",
    ),
    Capability(
        "declines_when_impossible",
        "Says so when the tools at hand cannot do what is asked, instead of trying something else.",
        "Decline when a tool is missing.",
    ),
    Capability(
        "tells_the_user",
        "Ends with a message that gives the user the result that was asked for.",
        "Tell the user what came out.",
    ),
    Capability("uses_tools_at_all", "Calls a tool when the task needs one.", control=True),
    Capability(
        "well_formed_tool_calls",
        "Writes tool calls that can be read and that name existing tools.",
        control=True,
    ),
    Capability("closes_conversation", "Ends its work with a message to the user.", control=True),
    Capability("stays_within_turn_limit", "Finishes before the turns run out.", control=True),
)


@dataclass
class Analysed:
    """One analysis rollout; `labels` is None when it, or the replay of its reference, was lost."""

    task: Task
    trajectory: Trajectory
    labels: dict[str, Label] | None = None

    @property
    def scored(self) -> bool:
        return self.trajectory.score is not None and self.trajectory.failure is None

    @property
    def passed(self) -> bool:
        return self.trajectory.score is not None and self.trajectory.score.success


@dataclass(frozen=True)
class Labelled:
    passed: bool
    labels: Mapping[str, Label]


@dataclass(frozen=True)
class Counts:
    """LACKING and PRESENT among failed and passed trajectories of one run."""

    lacking_failed: int
    present_failed: int
    lacking_passed: int
    present_passed: int
    failed: int  # all failed trajectories of the run, NA ones too

    @property
    def support(self) -> int:
        """Labelled (applicable) trajectories."""
        return self.lacking_failed + self.present_failed + self.lacking_passed + self.present_passed

    @property
    def coverage(self) -> float:
        return _rate(self.lacking_failed, self.failed)

    @property
    def error_failed(self) -> float:
        return _rate(self.lacking_failed, self.lacking_failed + self.present_failed)

    @property
    def error_passed(self) -> float:
        return _rate(self.lacking_passed, self.lacking_passed + self.present_passed)

    @property
    def gap(self) -> float:
        return self.error_failed - self.error_passed


@dataclass(frozen=True)
class Verdict:
    capability: Capability
    runs: tuple[Counts, ...]
    votes: int
    selected: bool
    reason: str

    @property
    def name(self) -> str:
        return self.capability.name

    @property
    def control(self) -> bool:
        return self.capability.control

    def mean(self, quantity: str) -> float:
        return sum(getattr(run, quantity) for run in self.runs) / len(self.runs)


NUMBERS = ("coverage", "error_failed", "error_passed", "gap")
"""The properties of `Counts` that a report has."""


def _rate(part: int, whole: int) -> float:
    """0/0 = 0, as published."""
    return part / whole if whole else 0.0


def count(rows: Sequence[Labelled], name: str) -> Counts:
    seen = Counter((row.passed, row.labels.get(name, Label.NA)) for row in rows)
    return Counts(
        lacking_failed=seen[False, Label.LACKING],
        present_failed=seen[False, Label.PRESENT],
        lacking_passed=seen[True, Label.LACKING],
        present_passed=seen[True, Label.PRESENT],
        failed=sum(not row.passed for row in rows),
    )


def missed(counts: Counts, s: AnalysisSettings) -> list[str]:
    """The thresholds that one run does not reach; it votes for a capability if there is none."""
    wanted = {"support": s.minimum_support, "coverage": s.coverage, "gap": s.gap}
    return [f"{k} < {least:g}" for k, least in wanted.items() if getattr(counts, k) < least]


def resamples(rows: Sequence[Labelled], runs: int, seed: int) -> list[list[Labelled]]:
    """`runs` bootstrap resamples (same size, drawn with replacement), the same for each seed."""
    drawn = [random.Random(stable_seed(seed, "trace", "resample", run)) for run in range(runs)]
    return [[rows[rng.randrange(len(rows))] for _ in rows] for rng in drawn]


def select(
    runs: Sequence[Sequence[Labelled]],
    candidates: Sequence[Capability],
    settings: AnalysisSettings,
    keep: int,
) -> list[Verdict]:
    """Verdicts on all candidates: the selected ones first, in training order, then the rest, each
    by mean gap. `runs`: for each labelling run its labelled trajectories (there may be none: then
    nothing is selected); `keep`: how many runs must select a capability."""
    verdicts = [_verdict(c, [count(r, c.name) for r in runs], settings, keep) for c in candidates]
    return sorted(verdicts, key=lambda v: (not v.selected, -v.mean("gap"), v.name))


def _verdict(
    capability: Capability, runs: Sequence[Counts], settings: AnalysisSettings, keep: int
) -> Verdict:
    """`reason`: the thresholds that too many runs missed, the most often missed one first."""
    misses = [missed(counts, settings) for counts in runs]
    votes = misses.count([])
    counted = Counter(why for run in misses for why in run)
    named = sorted(counted.items(), key=lambda p: (-p[1], p[0]))
    why = ", ".join(f"{why} in {n} of {len(misses)} runs" for why, n in named)
    selected = votes >= keep
    return Verdict(capability, tuple(runs), votes, selected, "" if selected else why)


def as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "name": verdict.name,
        "description": verdict.capability.description,
        "control": verdict.control,
        "selected": verdict.selected,
        "votes": verdict.votes,
        "reason": verdict.reason,
        "support": verdict.mean("support"),
        **{name: verdict.mean(name) for name in NUMBERS},
        "runs": [{**vars(c), **{name: getattr(c, name) for name in NUMBERS}} for c in verdict.runs],
    }


def table(verdicts: Sequence[Verdict], settings: AnalysisSettings, keep: int, runs: int) -> str:
    """The selection as a text table: means over the runs, votes and the verdict in words."""
    head = f"{'capability':<36}{'supp':>6}{'Cov':>7}{'ER_f':>7}{'ER_p':>7}{'gap':>7}{'votes':>7}"
    lines = [head + "  verdict"]
    for v in verdicts:
        numbers = "".join(f"{v.mean(name):7.2f}" for name in NUMBERS)
        verdict = "selected" if v.selected else v.reason
        kind = " (control)" if v.control else ""
        lines.append(
            f"{v.name + kind:<36}{v.mean('support'):6.1f}{numbers}"
            f"{v.votes:>4}/{len(v.runs):<2}  {verdict}"
        )
    lines.append(
        f"thresholds: Cov >= {settings.coverage:g}, gap >= {settings.gap:g}, support >= "
        f"{settings.minimum_support}, at least {keep} of {runs} runs"
    )
    lines.append(
        "supp: episodes that need the capability; Cov: share of failed episodes that lack it; "
        "ER_f, ER_p: share that lacks it of the failed and of the passed ones that need it; gap: "
        "ER_f - ER_p; votes: runs of the analysis that select it"
    )
    return "\n".join(lines)
