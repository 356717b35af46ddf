"""What writes GEPA's prompts, and the memory's lines: a program in the place of the reflecting LLM,
or a language model.

Both read conversations with their feedback, and nothing else: neither a task's reference nor what
the task was made to test. The program finds symptoms by simple patterns and can only write lines
from a fixed pool (`POOL`): general advice that helps, does nothing or harms, each with the symptoms
in a failed conversation that would make a reader think of it.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from trace_bench.core.chat import opening_of
from trace_bench.core.protocols import Lab
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec
from trace_bench.llm.roles import Unusable, read_block

Record = Mapping[str, Any]  # {"Conversation": str, "Feedback": str, "Score": float}


def symptoms(conversation: str) -> frozenset[str]:
    """What a reader would notice in one conversation, as `looking.evidence.as_text` writes it."""
    lines = [line.partition(": ")[::2] for line in conversation.splitlines()]
    heard, said, calls, results = (
        [text for kind, text in lines if kind == wanted]
        for wanted in ("user", "agent", "call", "result")
    )
    request = " ".join(heard).lower()
    failed = [i for i, r in enumerate(results) if re.match(r"\w*Error: ", r)]
    seen = {
        ERROR: bool(failed),
        GAVE_UP: bool(failed) and failed[-1] == len(results) - 1,
        NO_CALL: not calls,
        NO_QUESTION: not any("?" in text for text in said),
        SEVERAL: any(r.count("}, {") for r in results),
        PARTS: len(heard) > 1 or bool(re.search(r"\b(and|then|also)\b", request)),
        CONDITION: bool(re.search(r"\b(if|unless|in case|only when)\b", request)),
        VALUES: bool(re.search(r"\d", request)),
        UNTOLD: bool(said) and len(said[-1].split()) < 4,
        ANY: True,
    }
    return frozenset(name for name, there in seen.items() if there)


def under(base: AgentSpec, prompt: str, kind: str) -> AgentSpec:
    """The base agent under a prompt, which its version names."""
    if prompt == base.prompt:
        return base
    digest = hashlib.sha256(prompt.encode()).hexdigest()[:8]
    return replace(base, version=f"{kind}-{digest}", prompt=prompt)


class ProgramReflector:
    """Proposes the next prompt: one line more, one line less, or one line exchanged, drawn by the
    seed, the prompt and the conversations shown."""

    def __init__(self, lines: int, seed: int) -> None:
        self.lines, self.seed = lines, seed

    def __call__(self, prompt: str, records: Sequence[Record]) -> str:
        talks = [str(r["Conversation"]) for r in records]
        rng = random.Random(stable_seed(self.seed, "reflect", prompt, *talks))
        now = prompt.splitlines()
        failed = [r for r in records if float(r["Score"]) < 1.0] or list(records)
        noticed = [symptoms(str(r["Conversation"])) for r in failed]
        weights = {
            line: 1 + 3 * sum(len(signs & seen - {ANY}) for seen in noticed)
            for line, signs in POOL.items()
            if line not in now
        }
        new = rng.choices(list(weights), list(weights.values()))[0]
        move = rng.random()
        if now and (len(now) >= self.lines or move < 0.2):
            now[rng.randrange(len(now))] = new
        elif now and move < 0.3:
            del now[rng.randrange(len(now))]
        else:
            now.append(new)
        return "\n".join(now)


# -- what the program writes from -------------------------------------------------------------

ERROR = "a tool failed"
GAVE_UP = "the agent gave up after a failure"
NO_CALL = "no tool was called"
NO_QUESTION = "the user was asked nothing"
SEVERAL = "a search found several records"
PARTS = "the request has several parts"
CONDITION = "the request has a condition"
VALUES = "the request has numbers or units"
UNTOLD = "the last message says little"
ANY = "anything"


POOL: Mapping[str, Set[str]] = {
    "When a tool fails, fix the cause and retry.": {ERROR, GAVE_UP},
    "Try every tool twice.": {ERROR},
    "Report errors to the user at once.": {ERROR},
    "Check every condition before you act.": {CONDITION},
    "Look at the settings before anything else.": {CONDITION, ERROR},
    "Ask when something is missing.": {NO_QUESTION, VALUES},
    "Ask which one is meant when several match.": {NO_QUESTION, SEVERAL},
    "Confirm with the user before you change anything.": {NO_QUESTION},
    "Never ask the user anything.": {ANY},
    "Do every part of the request.": {PARTS},
    "Make a plan before you start.": {PARTS, CONDITION},
    "Work through the request one sentence at a time.": {PARTS},
    "Convert values to what the tool needs.": {VALUES},
    "Copy numbers exactly as the user wrote them.": {VALUES},
    "Use the full name of a unit.": {VALUES},
    "Decline when a tool is missing.": {NO_CALL, ERROR, NO_QUESTION},
    "Always call at least one tool.": {NO_CALL},
    "Use as few tools as possible.": {ANY},
    "Use the ids that a search gives you.": {SEVERAL, ERROR},
    "Take the first match of a search.": {SEVERAL},
    "Tell the user what came out.": {UNTOLD},
    "Repeat the request in your answer.": {UNTOLD},
    "Be polite.": {ANY},
    "Be brief.": {ANY},
    "Answer in English.": {ANY},
    "Think step by step.": {ANY},
    "Double-check your work.": {ANY},
    "Use simple words.": {ANY},
}
"""Lines of guidance, each with the symptoms that speak for it."""


# -- a language model -------------------------------------------------------------------------

ROLE = "reflector"
MOST = 300  # characters of a line
RULES = """\
You improve the instructions of an agent that works with tools. You see its present instructions and
some of its conversations with what came of them. Find out what it does wrong and write better
instructions: general rules for any such task, nothing about these tasks alone, at most {lines}
lines of one sentence each.
Answer with all the new instructions in one block between ``` lines."""


class ModelReflector:
    """Names its questions by their order, so that a resumed run is given the same answers."""

    def __init__(self, lab: Lab, lines: int) -> None:
        self._lab, self._lines = lab, lines
        self._asked = 0

    def __call__(self, prompt: str, records: Sequence[Record]) -> str:
        """The next prompt, one instruction a line. Raises LLMError when none can be used."""
        limit = self._lab.prompt_limit(ROLE)
        assert limit is not None, "no model plays the reflector"
        rules = RULES.format(lines=self._lines)
        now = prompt or "(none)"
        each = max(200, (limit - len(rules) - len(now)) // max(1, len(records)) - 100)
        talks = "\n\n".join(f"-- {r['Feedback']}\n{str(r['Conversation'])[:each]}" for r in records)
        question = opening_of(rules, f"Present instructions:\n{now}\n\n{talks}")
        self._asked += 1
        return self._lab.ask(ROLE, f"proposal/{self._asked:04d}", question, self._read)

    def retract(self) -> None:
        """Forgets the last answer, so that the same command asks again."""
        self._lab.retract(ROLE, f"proposal/{self._asked:04d}/")

    def _read(self, answer: str) -> str:
        lines = [line.strip(" -*\t") for line in read_block(answer).splitlines()]
        lines = [line for line in lines if line]
        if not lines or len(lines) > self._lines:
            raise Unusable(f"it has {len(lines)} lines; allowed: 1 to {self._lines}.")
        if long := [line for line in lines if len(line) > MOST]:
            raise Unusable(f"a line has {len(long[0])} characters; allowed: {MOST}.")
        return "\n".join(lines)
