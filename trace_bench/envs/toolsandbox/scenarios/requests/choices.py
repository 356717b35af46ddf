"""The random choices that a scenario is made of."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.pools import RELATIONSHIPS, Pool


@dataclass
class Choices:
    """Draws one scenario's wordings, people and words, all from one pool. The order of the draws
    decides what comes out: a new draw in between changes every task after it.

    used: first names that the scenario already has. wording: which clauses were chosen."""

    rng: random.Random
    pool: Pool
    used: set[str] = field(default_factory=set)
    wording: list[str] = field(default_factory=list)

    def clause(self, kind: str, *clauses: str) -> str:
        """One of the clauses that a kind of request can be worded with; which one is noted in
        `wording`."""
        index = self.rng.randrange(len(clauses))
        self.wording.append(f"{kind}.{index}")
        return clauses[index]

    def coin(self) -> bool:
        return bool(self.rng.randrange(2))

    def phone(self) -> str:
        return self.pool.phone(self.rng)

    def content(self) -> str:
        """What a message says."""
        return self.pool.content(self.rng)

    def errand(self) -> str:
        """What a reminder is about."""
        return self.pool.errand(self.rng)

    def ticker(self) -> str:
        return self.pool.ticker(self.rng)

    def row_id(self) -> str:
        """A row's id: eight decimal digits, which a small tokenizer reads in four pieces."""
        return f"{self.rng.randrange(10**8):08d}"

    def contact(self, **fields: Any) -> dict[str, Any]:
        """A contact with a first name that the scenario has not used; `fields` are fixed."""
        for _ in range(100):
            first = self.pool.first(self.rng)
            if first not in self.used:
                break
        self.used.add(first)
        return self.contact_named(f"{first} {self.pool.last(self.rng)}", **fields)

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
