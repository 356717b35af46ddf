"""Pools: the words and wordings that scenarios are made of, disjoint between the splits.

People, nouns, phone numbers and stock tickers of one pool never occur in another. Units,
currencies, holidays and settings are closed classes that every pool shares. The pool `demo` feeds
the demonstrations that the tiny agent is trained on, `synthetic` the synthetic training tasks. A
wording is an opener, a clause for each request, and a closer; every combination belongs to exactly
one pool.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from trace_bench.envs.toolsandbox.tools.search import data

POOLS = ("demo", "train", "dev", "test", "synthetic")
# Shares of every list, in tenths: demonstrations need variety, the small splits do not.
_TENTHS: Mapping[str, tuple[int, ...]] = {
    "demo": (0, 1, 2, 3),
    "train": (4,),
    "dev": (5,),
    "test": (6, 7),
    "synthetic": (8, 9),
}

RELATIONSHIPS = ("boss", "brother", "sister", "friend", "doctor", "neighbor", "coach", "cousin")
CURRENCIES = ("EUR", "GBP", "JPY", "CAD", "AUD", "CHF")
AREA_CODES = ("212", "305", "312", "415", "503", "602", "617", "702", "713", "808")

# Pairs (from, to) of words that people use and the units library knows.
UNITS = (
    ("pound", "kilogram"), ("kilogram", "pound"), ("mile", "kilometer"), ("kilometer", "mile"),
    ("inch", "centimeter"), ("foot", "meter"), ("meter", "foot"), ("gallon", "liter"),
    ("liter", "gallon"), ("ounce", "gram"),
)  # fmt: skip


@lru_cache(maxsize=32)
def _words(kind: str, pool: str) -> tuple[str, ...]:
    """A pool's words, in order. Tickers are the stock symbols that the frozen data set knows."""
    tickers = kind == "ticker"
    words = sorted(row["symbol"] for row in data("stocks")) if tickers else data("words")[kind]
    return tuple(word for index, word in enumerate(words) if index % 10 in _TENTHS[pool])


class Words:
    """Draws the words of one pool. Subclassed by the demonstrations, which also invent words."""

    def __init__(self, name: str) -> None:
        self.name = name

    def draw(self, kind: str, rng: random.Random) -> str:
        """A word. `kind`: first or last (names), noun, adjective, or ticker."""
        return rng.choice(_words(kind, self.name))


@dataclass
class Choices:
    """Draws one scenario's wordings, people and words, all from one pool. The order of the draws
    decides what comes out: a new draw in between changes every task after it.

    used: first names that the scenario already has. wording: which clauses were chosen."""

    rng: random.Random
    pool: Words
    used: set[str] = field(default_factory=set)
    wording: list[str] = field(default_factory=list)

    def clause(self, kind: str, /, **words: Any) -> str:
        """One of the clauses that a kind of request can be worded with (data/clauses.json), with
        these words in it; which one is noted in `wording`."""
        clauses = data("clauses")[kind]
        index = self.rng.randrange(len(clauses))
        self.wording.append(f"{kind}.{index}")
        return str(clauses[index].format(**words))

    def coin(self) -> bool:
        return bool(self.rng.randrange(2))

    def phone(self) -> str:
        """A fictional number in E.164 form; its last digit but one is of the pool's tenths."""
        tail = self.rng.randrange(10) + 10 * self.rng.choice(_TENTHS[self.pool.name])
        return f"+1{self.rng.choice(AREA_CODES)}55501{tail:02d}"

    def content(self) -> str:
        """What a message says."""
        noun, other, adjective = self.word("noun"), self.word("noun"), self.word("adjective")
        forms = (
            f"the {adjective} {noun} is ready",
            f"bring the {noun} and the {other}",
            f"I have the {adjective} {noun}",
            f"we need {noun} and {other}",
            f"the {noun} is {adjective}",
        )
        return forms[self.rng.randrange(5)]

    def errand(self) -> str:
        verb = self.rng.choice(("buy", "fix", "clean", "return", "collect", "order"))
        noun, adjective = self.word("noun"), self.word("adjective")
        plain = self.rng.random() >= 0.5
        return f"{verb} the {noun}" if plain else f"{verb} the {adjective} {noun}"

    def word(self, kind: str) -> str:
        return self.pool.draw(kind, self.rng)

    def row_id(self) -> str:
        """A row's id: eight decimal digits, which a small tokenizer reads in four pieces."""
        return f"{self.rng.randrange(10**8):08d}"

    def contact(self, **fields: Any) -> dict[str, Any]:
        """A contact with a first name that the scenario has not used; `fields` are fixed."""
        for _ in range(100):
            first = self.word("first")
            if first not in self.used:
                break
        self.used.add(first)
        return self.contact_named(f"{first} {self.word('last')}", **fields)

    def contact_named(self, name: str, **fields: Any) -> dict[str, Any]:
        """A contact of that name; `fields` are fixed."""
        return {
            "person_id": self.row_id(),
            "name": name,
            "phone_number": self.phone(),
            "relationship": self.rng.choice((None, *RELATIONSHIPS)),
            "is_self": False,
            **fields,
        }


OPENERS = (
    "", "please ", "can you ", "could you ", "hey, ", "I need you to ", "I want you to ",
    "would you ", "quick, ", "now ", "help me: ", "okay, ",
)  # fmt: skip
CLOSERS = ("", " please", " for me", " thanks", " right away", " when you can", " if you can")
JOINERS = (" and ", " and then ", ", and also ", ", then ")


def belongs(pool: str, wording: str) -> bool:
    """Whether a wording (opener, clauses and closer by name) is one of the pool's."""
    tenth = int.from_bytes(hashlib.sha256(wording.encode()).digest()[:4], "big") % 10
    return tenth in _TENTHS[pool]


def sentence(rng: random.Random, clauses: Sequence[str]) -> tuple[str, str]:
    """One message of the user out of its requests' clauses, and its frame (opener and closer)."""
    opener, closer = rng.randrange(len(OPENERS)), rng.randrange(len(CLOSERS))
    text = OPENERS[opener] + clauses[0]
    for clause in clauses[1:]:
        text += rng.choice(JOINERS) + clause
    return text[0].upper() + text[1:] + CLOSERS[closer] + ".", f"{opener}/{closer}"
