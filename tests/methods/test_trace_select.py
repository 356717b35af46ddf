"""Selection: counts, rates, gap, votes and order against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from trace_bench.methods.looking import capabilities
from trace_bench.methods.looking.capabilities import AnalysisSettings, Label, Labelled, count

NA, PRESENT, LACKING = Label.NA, Label.PRESENT, Label.LACKING
NAME = "disambiguates"


def rows(*groups: tuple[int, bool, Label], name: str = NAME) -> list[Labelled]:
    return [Labelled(passed, {name: label}) for n, passed, label in groups for _ in range(n)]


# 10 failed: 3 lack it, 1 has it, 6 NA. 8 passed: 1 lacks it, 4 have it, 3 NA.
SAMPLE = rows(
    (3, False, LACKING), (1, False, PRESENT), (6, False, NA),
    (1, True, LACKING), (4, True, PRESENT), (3, True, NA),
)  # fmt: skip


def choose(
    labelled: list[Labelled], names: list[str], settings: AnalysisSettings, seed: int
) -> list[capabilities.Verdict]:
    """As the analysis selects from a program's labels."""
    runs = capabilities.resamples(labelled, settings.runs, seed)
    by_name = {c.name: c for c in capabilities.VOCABULARY}
    chosen = [by_name[name] for name in names]
    return capabilities.select(runs, chosen, settings, settings.keep_runs)


def test_counts_and_rates_by_hand() -> None:
    counts = count(SAMPLE, NAME)
    assert counts == capabilities.Counts(
        lacking_failed=3, present_failed=1, lacking_passed=1, present_passed=4, failed=10
    )
    assert counts.support == 9
    assert counts.coverage == pytest.approx(0.3)  # of all failed ones, NA included
    assert counts.error_failed == pytest.approx(0.75)  # NA left out
    assert counts.error_passed == pytest.approx(0.2)
    assert counts.gap == pytest.approx(0.55)
    empty = count([], NAME)
    assert (empty.coverage, empty.error_failed, empty.gap, empty.support) == (0, 0, 0, 0)


THRESHOLDS = [
    ({}, True),
    ({"coverage": 0.31}, False),
    ({"coverage": 0.30}, True),  # at the threshold
    ({"gap": 0.56}, False),
    ({"minimum_support": 10}, False),
    ({"minimum_support": 9}, True),
]


@pytest.mark.parametrize(("changed", "want"), THRESHOLDS)
def test_a_run_needs_all_three_thresholds(changed: dict, want: bool) -> None:
    assert (not capabilities.missed(count(SAMPLE, NAME), AnalysisSettings(**changed))) is want


def test_three_trajectories_make_no_capability() -> None:
    """The release selects on these; minimum support keeps them out."""
    few = rows((3, False, LACKING), (3, True, NA))
    assert count(few, NAME).gap == 1.0
    assert not choose(few, [NAME], AnalysisSettings(), seed=0)[0].selected
    assert choose(few, [NAME], AnalysisSettings(minimum_support=0), seed=0)[0].selected


def test_resamples_are_seeded_and_of_equal_size() -> None:
    one, two, other = (capabilities.resamples(SAMPLE, 10, seed) for seed in (1, 1, 2))
    assert one == two != other
    assert all(len(run) == len(SAMPLE) for run in one)
    assert len({tuple(count(run, NAME).__dict__.values()) for run in one}) > 1


def two_causes() -> list[Labelled]:
    """completes_all_parts: behind 20 failures of 40, gap 0.5; disambiguates: behind 10, gap 1."""
    wide, sharp = "completes_all_parts", NAME
    return [
        *(Labelled(False, {wide: LACKING, sharp: NA}) for _ in range(20)),
        *(Labelled(False, {wide: NA, sharp: LACKING}) for _ in range(10)),
        *(Labelled(False, {wide: NA, sharp: NA}) for _ in range(10)),
        *(Labelled(True, {wide: LACKING, sharp: PRESENT}) for _ in range(10)),
        *(Labelled(True, {wide: PRESENT, sharp: PRESENT}) for _ in range(10)),
    ]


def test_order_is_by_gap() -> None:
    names = ["completes_all_parts", NAME, "tells_the_user"]
    by_gap = choose(two_causes(), names, AnalysisSettings(), seed=0)
    assert [v.name for v in by_gap] == [NAME, "completes_all_parts", "tells_the_user"]
    assert [v.selected for v in by_gap] == [True, True, False]


def test_every_number_is_kept_and_printed() -> None:
    settings = AnalysisSettings()
    verdicts = choose(two_causes(), [NAME, "closes_conversation"], settings, seed=0)
    kept: dict[str, Any] = dict(capabilities.as_json(verdicts[0]))
    assert kept["name"] == NAME and kept["selected"] is True and len(kept["runs"]) == 10
    assert kept["gap"] == pytest.approx(sum(run["gap"] for run in kept["runs"]) / 10)
    assert [v.votes for v in verdicts] == [10, 0]
    text = capabilities.table(verdicts, settings, 8, 10)
    assert "10/10" in text and "(control)" in text and "support < 5 in 10 of 10 runs" in text
