"""A language model as GEPA's reflector. It is shown what the program reflector reads: the prompt,
and the conversations of the minibatch with their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.protocols import Lab
from trace_bench.core.types import Message
from trace_bench.llm.structured import Unusable, read_block

ROLE = "reflector"
MOST = 300  # characters of a line
RULES = """\
You improve the instructions of an agent that works with tools. You see its present instructions and
some of its conversations with what came of them. Find out what it does wrong and write better
instructions: general rules for any such task, nothing about these tasks alone, at most {lines}
lines of one sentence each.
Answer with all the new instructions in one block between ``` lines."""


class ModelReflector:
    """Implements `gepa.adapter.Reflector`. Questions are named by their order, so that a resumed
    run is given the same answers."""

    def __init__(self, lab: Lab, lines: int) -> None:
        self._lab, self._lines = lab, lines
        self._asked = 0

    def __call__(self, prompt: str, records: Sequence[Mapping[str, Any]]) -> str:
        """The next prompt, one instruction a line. Raises LLMError when none can be used."""
        self._asked += 1
        return self._lab.ask(
            ROLE, f"proposal/{self._asked:04d}", self._question(prompt, records), self._read
        )

    def retract(self) -> None:
        """Forgets the last answer, so that the same command asks again."""
        self._lab.retract(ROLE, f"proposal/{self._asked:04d}/")

    def _question(self, prompt: str, records: Sequence[Mapping[str, Any]]) -> list[Message]:
        limit = self._lab.prompt_limit(ROLE)
        assert limit is not None, "no model plays the reflector"
        rules = RULES.format(lines=self._lines)
        now = prompt or "(none)"
        each = max(200, (limit - len(rules) - len(now)) // max(1, len(records)) - 100)
        shown = "\n\n".join(f"-- {r['Feedback']}\n{str(r['Conversation'])[:each]}" for r in records)
        return [
            {"role": "system", "content": rules},
            {"role": "user", "content": f"Present instructions:\n{now}\n\n{shown}"},
        ]

    def _read(self, answer: str) -> str:
        lines = [line.strip(" -*\t") for line in read_block(answer).splitlines()]
        lines = [line for line in lines if line]
        if not lines or len(lines) > self._lines:
            raise Unusable(f"it has {len(lines)} lines; allowed: 1 to {self._lines}.")
        if long := [line for line in lines if len(line) > MOST]:
            raise Unusable(f"a line has {len(long[0])} characters; allowed: {MOST}.")
        return "\n".join(lines)
