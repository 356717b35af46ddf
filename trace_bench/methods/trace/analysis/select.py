"""Capability selection: coverage, error rates and contrastive gap over N runs (method, step 1).

Pure arithmetic on labels. With the labelling program every run looks at its own bootstrap resample
of the trajectories; with a language model every run has labels of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trace_bench.core.store import stable_seed
from trace_bench.methods.trace.analysis.vocabulary import Capability, Label
from trace_bench.methods.trace.settings import AnalysisSettings


@dataclass(frozen=True)
class Labelled:
    """One analysis trajectory: did it pass, and its label for every candidate."""

    passed: bool
    labels: Mapping[str, Label]


@dataclass(frozen=True)
class Counts:
    """LACKING and PRESENT among failed (f) and passed (p) trajectories of one run."""

    lacking_f: int
    present_f: int
    lacking_p: int
    present_p: int
    failed: int  # all failed trajectories of the run, NA ones too

    @property
    def support(self) -> int:
        """Labelled (applicable) trajectories."""
        return self.lacking_f + self.present_f + self.lacking_p + self.present_p

    @property
    def coverage(self) -> float:
        return _rate(self.lacking_f, self.failed)

    @property
    def error_failed(self) -> float:
        return _rate(self.lacking_f, self.lacking_f + self.present_f)

    @property
    def error_passed(self) -> float:
        return _rate(self.lacking_p, self.lacking_p + self.present_p)

    @property
    def gap(self) -> float:
        return self.error_failed - self.error_passed


@dataclass(frozen=True)
class Verdict:
    """A candidate's runs and what follows from them."""

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
        """Mean over runs of a property of `Counts`."""
        return sum(getattr(run, quantity) for run in self.runs) / len(self.runs)


def _rate(part: int, whole: int) -> float:
    """0/0 = 0, as published."""
    return part / whole if whole else 0.0


def count(rows: Sequence[Labelled], name: str) -> Counts:
    """Counts of one candidate over one run's trajectories."""
    table = {
        (passed, label): sum(
            1 for r in rows if r.passed is passed and r.labels.get(name, Label.NA) is label
        )
        for passed in (False, True)
        for label in (Label.LACKING, Label.PRESENT)
    }
    return Counts(
        lacking_f=table[False, Label.LACKING],
        present_f=table[False, Label.PRESENT],
        lacking_p=table[True, Label.LACKING],
        present_p=table[True, Label.PRESENT],
        failed=sum(1 for r in rows if not r.passed),
    )


def votes_for(counts: Counts, settings: AnalysisSettings) -> bool:
    """One run's verdict: coverage, gap and support all reach their thresholds."""
    return (
        counts.support >= settings.minimum_support
        and counts.coverage >= settings.coverage
        and counts.gap >= settings.gap
    )


def resamples(rows: Sequence[Labelled], runs: int, seed: int) -> list[list[Labelled]]:
    """`runs` bootstrap resamples (same size, drawn with replacement), the same for each seed."""
    out: list[list[Labelled]] = []
    for run in range(runs):
        rng = random.Random(stable_seed(seed, "trace", "resample", run))
        out.append([rows[rng.randrange(len(rows))] for _ in rows])
    return out


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
    verdicts.sort(key=lambda v: v.name)
    verdicts.sort(key=lambda v: (v.selected, v.mean("gap")), reverse=True)
    return verdicts


def _verdict(
    capability: Capability, runs: Sequence[Counts], settings: AnalysisSettings, keep: int
) -> Verdict:
    votes = sum(votes_for(c, settings) for c in runs)
    selected = votes >= keep
    return Verdict(
        capability=capability,
        runs=tuple(runs),
        votes=votes,
        selected=selected,
        reason="" if selected else _why_not(runs, settings),
    )


def _why_not(runs: Sequence[Counts], settings: AnalysisSettings) -> str:
    """The thresholds that too many runs missed, the most often missed one first."""
    missed = {
        f"support < {settings.minimum_support}": sum(
            c.support < settings.minimum_support for c in runs
        ),
        f"coverage < {settings.coverage:g}": sum(c.coverage < settings.coverage for c in runs),
        f"gap < {settings.gap:g}": sum(c.gap < settings.gap for c in runs),
    }
    named = sorted(((n, why) for why, n in missed.items() if n), key=lambda p: (-p[0], p[1]))
    return ", ".join(f"{why} in {n} of {len(runs)} runs" for n, why in named)


def as_json(verdict: Verdict) -> dict[str, object]:
    """Every number of a verdict, JSON-safe."""
    return {
        "name": verdict.name,
        "description": verdict.capability.description,
        "control": verdict.control,
        "selected": verdict.selected,
        "votes": verdict.votes,
        "reason": verdict.reason,
        "support": verdict.mean("support"),
        "coverage": verdict.mean("coverage"),
        "error_failed": verdict.mean("error_failed"),
        "error_passed": verdict.mean("error_passed"),
        "delta": verdict.mean("gap"),
        "runs": [
            {
                "lacking_failed": c.lacking_f,
                "present_failed": c.present_f,
                "lacking_passed": c.lacking_p,
                "present_passed": c.present_p,
                "failed": c.failed,
                "coverage": c.coverage,
                "error_failed": c.error_failed,
                "error_passed": c.error_passed,
                "delta": c.gap,
            }
            for c in verdict.runs
        ],
    }


def table(verdicts: Sequence[Verdict], settings: AnalysisSettings, keep: int, runs: int) -> str:
    """The selection as a text table: means over the runs, votes and the verdict in words."""
    head = f"{'capability':<36}{'supp':>6}{'Cov':>7}{'ER_f':>7}{'ER_p':>7}{'gap':>7}{'votes':>7}"
    lines = [head + "  verdict"]
    for v in verdicts:
        numbers = "".join(
            f"{v.mean(q):7.2f}" for q in ("coverage", "error_failed", "error_passed", "gap")
        )
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
    return "\n".join(lines)
