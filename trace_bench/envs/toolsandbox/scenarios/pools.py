"""Pools: the words that scenarios are made of, disjoint between the splits.

People, nouns, phone numbers and stock tickers of one pool never occur in another. Units,
currencies, holidays and settings are closed classes that every pool shares. The pool `demo` feeds
the demonstrations that the tiny agent is trained on, `synthetic` the synthetic training tasks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from trace_bench.envs.toolsandbox.tools.search import data

POOLS = ("demo", "train", "dev", "test", "synthetic")
# Shares of every list, in tenths: demonstrations need variety, the small splits do not.
_TENTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"demo": (0, 1, 2, 3), "train": (4,), "dev": (5,), "test": (6, 7), "synthetic": (8, 9)}
)

RELATIONSHIPS = ("boss", "brother", "sister", "friend", "doctor", "neighbor", "coach", "cousin")
CURRENCIES = ("EUR", "GBP", "JPY", "CAD", "AUD", "CHF")
AREA_CODES = ("212", "305", "312", "415", "503", "602", "617", "702", "713", "808")

# Pairs (from, to) of words that people use and the units library knows.
UNITS = (
    ("pound", "kilogram"),
    ("kilogram", "pound"),
    ("mile", "kilometer"),
    ("kilometer", "mile"),
    ("inch", "centimeter"),
    ("foot", "meter"),
    ("meter", "foot"),
    ("gallon", "liter"),
    ("liter", "gallon"),
    ("ounce", "gram"),
)


def tenths(pool: str) -> tuple[int, ...]:
    """The tenths of every list that belong to a pool."""
    return _TENTHS[pool]


def share(items: Sequence[str], pool: str) -> tuple[str, ...]:
    """The items of a pool, in order."""
    return tuple(item for index, item in enumerate(items) if index % 10 in _TENTHS[pool])


@lru_cache(maxsize=32)
def _words(kind: str, pool: str) -> tuple[str, ...]:
    """A pool's share of the words of a kind."""
    return share(data("words")[kind], pool)


@lru_cache(maxsize=len(POOLS))
def _tickers(pool: str) -> tuple[str, ...]:
    return share(sorted(row["symbol"] for row in data("stocks")), pool)


class Pool:
    """Draws the words of one pool. Subclassed by the demonstrations, which also invent words."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._first, self._last = _words("first", name), _words("last", name)
        self._nouns, self._adjectives = _words("noun", name), _words("adjective", name)

    def first(self, rng: random.Random) -> str:
        return rng.choice(self._first)

    def last(self, rng: random.Random) -> str:
        return rng.choice(self._last)

    def noun(self, rng: random.Random) -> str:
        return rng.choice(self._nouns)

    def adjective(self, rng: random.Random) -> str:
        return rng.choice(self._adjectives)

    def ticker(self, rng: random.Random) -> str:
        """A stock symbol that the frozen data set knows."""
        return rng.choice(_tickers(self.name))

    def phone(self, rng: random.Random) -> str:
        """A fictional number in E.164 form; its last digit but one is of the pool's tenths."""
        tail = rng.randrange(10) + 10 * rng.choice(_TENTHS[self.name])
        return f"+1{rng.choice(AREA_CODES)}55501{tail:02d}"

    def content(self, rng: random.Random) -> str:
        """What a message says."""
        noun, other, adjective = self.noun(rng), self.noun(rng), self.adjective(rng)
        form = rng.randrange(5)
        if form == 0:
            return f"the {adjective} {noun} is ready"
        if form == 1:
            return f"bring the {noun} and the {other}"
        if form == 2:
            return f"I have the {adjective} {noun}"
        if form == 3:
            return f"we need {noun} and {other}"
        return f"the {noun} is {adjective}"

    def errand(self, rng: random.Random) -> str:
        """What a reminder is about."""
        verb = rng.choice(("buy", "fix", "clean", "return", "collect", "order"))
        noun, adjective = self.noun(rng), self.adjective(rng)
        return f"{verb} the {adjective} {noun}" if rng.random() < 0.5 else f"{verb} the {noun}"
