"""How messages of the user are worded. A wording is an opener, a clause for each request, and a
closer; every combination belongs to exactly one pool, so that no split shares a wording with
another or with the demonstrations.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from trace_bench.envs.toolsandbox.scenarios.pools import tenths

OPENERS = (
    "",
    "please ",
    "can you ",
    "could you ",
    "hey, ",
    "I need you to ",
    "I want you to ",
    "would you ",
    "quick, ",
    "now ",
    "help me: ",
    "okay, ",
)
CLOSERS = ("", " please", " for me", " thanks", " right away", " when you can", " if you can")
JOINERS = (" and ", " and then ", ", and also ", ", then ")


def belongs(pool: str, wording: str) -> bool:
    """Whether a wording (opener, clauses and closer by name) is one of the pool's."""
    tenth = int.from_bytes(hashlib.sha256(wording.encode()).digest()[:4], "big") % 10
    return tenth in tenths(pool)


def sentence(rng: random.Random, clauses: Sequence[str]) -> tuple[str, str]:
    """One message of the user out of the clauses of its requests, and the name of its frame (opener
    and closer)."""
    opener, closer = rng.randrange(len(OPENERS)), rng.randrange(len(CLOSERS))
    text = OPENERS[opener] + clauses[0]
    for clause in clauses[1:]:
        text += rng.choice(JOINERS) + clause
    return text[0].upper() + text[1:] + CLOSERS[closer] + ".", f"{opener}/{closer}"
