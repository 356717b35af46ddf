"""Checks of the token ids and log-probabilities that a server claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_bench.core.limits import Unreadable

LARGEST_ID = 2**24  # no vocabulary has as many tokens
LEAST_LOGPROB = -1000.0  # a token with less is never sampled; vLLM writes -9999 for minus infinity


def check_ids(ids: Any, whose: str, most: int) -> None:
    """Raises Unreadable unless it is a list of at most `most` token ids (or there is none)."""
    if ids is None:
        return
    if not isinstance(ids, list):
        raise Unreadable(f"the token ids of {whose} are {type(ids).__name__}, not a list")
    if len(ids) > most:
        raise Unreadable(f"{len(ids)} token ids for {whose}, which can have at most {most}")
    for token in ids:
        if type(token) is not int or not 0 <= token < LARGEST_ID:
            raise Unreadable(f"{str(token)[:40]!r} in {whose} is not the id of a token")


def check_logprobs(logprobs: Sequence[Any]) -> None:
    """Raises Unreadable unless all are numbers, none above zero (but for rounding) and none too low
    to be sampled."""
    for value in logprobs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not LEAST_LOGPROB <= value <= 1e-3:
            raise Unreadable(f"{str(value)[:40]} is not the log-probability of a sampled token")
