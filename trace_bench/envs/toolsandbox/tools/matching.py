"""How search tools filter rows, and checks that several tools share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trace_bench.envs.toolsandbox.databases import Row, ToolFault

# A POSIX time before 1980 or after 2049 is a wrong unit (milliseconds, days), not a date.
TIMES = (315532800.0, 2524608000.0)
LATITUDES = (-90.0, 90.0)
LONGITUDES = (-180.0, 180.0)


@lru_cache(maxsize=1024)
def _is_e164(number: str) -> bool:
    import phonenumbers

    try:
        parsed = phonenumbers.parse(number, None)
    except phonenumbers.NumberParseException:
        return False
    form = phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)
    return form == number and phonenumbers.is_possible_number(parsed)


def check_phone_number(number: str) -> None:
    """ToolFault InvalidPhoneNumberError unless `number` is E.164 ("+14155550132")."""
    if not _is_e164(number):
        raise ToolFault("InvalidPhoneNumberError", "Not a valid E.164 number")


@lru_cache(maxsize=4096)
def similarity(query: str, text: str) -> float:
    """0 to 100: rapidfuzz's WRatio on lower-cased text without punctuation."""
    from rapidfuzz import fuzz, utils

    return fuzz.WRatio(query, text, processor=utils.default_process)


def search(
    rows: Sequence[Row], criteria: Mapping[str, Any], fuzzy: Mapping[str, float]
) -> list[Row]:
    """Copies of the rows that meet all criteria, the most similar texts first.

    Columns in `fuzzy` are compared by similarity with that threshold, `…_lowerbound` and
    `…_upperbound` bound their column, all others are exact.
    """
    found = [row for row in rows if _passes(row, criteria, fuzzy)]
    texts = [(name, wanted) for name, wanted in criteria.items() if name in fuzzy]
    if texts and len(found) > 1:
        found.sort(key=lambda row: -sum(similarity(wanted, row[name]) for name, wanted in texts))
    return [dict(row) for row in found]


def _passes(row: Row, criteria: Mapping[str, Any], fuzzy: Mapping[str, float]) -> bool:
    for name, wanted in criteria.items():
        if name.endswith("_lowerbound"):
            value = row[name.removesuffix("_lowerbound")]
            ok = value is not None and value >= wanted
        elif name.endswith("_upperbound"):
            value = row[name.removesuffix("_upperbound")]
            ok = value is not None and value <= wanted
        elif name in fuzzy:
            value = row[name]
            ok = value is not None and similarity(wanted, value) >= fuzzy[name]
        else:
            ok = row[name] == wanted
        if not ok:
            return False
    return True


def tidy(value: float, digits: int = 2) -> float:
    """A short number: rounded, four significant digits below 1, whole numbers as integers."""
    if not -1e15 <= value <= 1e15:
        raise ToolFault("ValueError", "Result is out of range")
    short = round(value, digits) if abs(value) >= 1 else float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def require_any(criteria: Mapping[str, Any]) -> None:
    """ToolFault ValueError for a search without criteria or a change of nothing."""
    if not criteria:
        raise ToolFault("ValueError", "Give at least one argument")
