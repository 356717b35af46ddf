"""A model that judges what the benchmark asserts about a conversation in natural language. The
benchmark's own evaluator does the same with a model and a wording of its own.

Among the statements is a control that is not true of any conversation. A judge that affirms it says
yes to everything, and the episode is lost to it; it is not asked again, since a complaint would
tell it which statement is the control.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.checklists.model_judge import LONGEST, cut, entries_in, verdicts_on
from trace_bench.core.chat import ask_until, opening_of
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Boundary, Message

PROMPT_VERSION = "2"  # of the texts below; recorded in every run
TRIES = 3  # answers before the episode counts as lost
_WHY = 300  # characters of a reason, where the server holds the judge to them
_SYSTEM = (
    "You check the work of a customer service agent. You are shown a conversation with its tool "
    "calls, and numbered statements about it. Decide for each statement by itself whether it is "
    "true of the agent in this conversation. Answer with one JSON object and nothing else: "
    '{"verdicts": [{"statement": 1, "why": "one sentence", "true": false}]}, with one entry for '
    "each statement, in their order."
)


def judge(ask: Ask, statements: Sequence[str], talk: Sequence[Message]) -> dict[str, bool]:
    """For each statement whether it holds, by the role `judge`. Raises EpisodeError if the model
    cannot be reached or gives no usable answer: such an episode has no score."""
    said = transcript(talk)
    control, place = _control(said, statements)
    stated = [*statements[:place], control, *statements[place:]]
    listed = "\n".join(f"{n}. {text}" for n, text in enumerate(stated, 1))
    question = f"Conversation:\n{said}\n\nStatements:\n{listed}"

    def read(answer: str) -> dict[str, bool]:
        verdicts = _verdicts(answer, len(stated))
        if verdicts.pop(place):
            raise EpisodeError(
                Boundary.JUDGE.value, "the judge affirms a statement that is never true"
            )
        return dict(zip(statements, verdicts, strict=True))

    why = {"why": {"type": "string", "maxLength": _WHY}, "true": {"type": "boolean"}}
    schema = verdicts_on("statement", len(stated), why)
    asked = opening_of(_SYSTEM, question)
    return ask_until(ask, "judge", asked, schema, read, tries=TRIES, longest=LONGEST)


def _control(said: str, statements: Sequence[str]) -> tuple[str, int]:
    """The control statement and its place; both follow from the question."""
    text = "\n".join([said, *statements])
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    place = int(digest[10:18], 16) % (len(statements) + 1)
    return f"The agent tells the user the reference number {digest[:10]}.", place


def _verdicts(answer: str, count: int) -> list[bool]:
    """The verdicts in their order. Raises ValueError for anything else."""
    verdicts = [entry.get("true") for entry in entries_in(answer, "statement", count)]
    if not all(isinstance(verdict, bool) for verdict in verdicts):
        raise ValueError("a verdict's `true` is neither true nor false")
    return [verdict is True for verdict in verdicts]


def transcript(talk: Sequence[Message]) -> str:
    """The conversation as lines of text, tool calls and their results included."""
    return "\n".join(line for message in talk for line in _lines(message))


def _lines(message: Mapping[str, Any]) -> list[str]:
    role = {"assistant": "agent", "tool": "tool result"}.get(message["role"], message["role"])
    content = message.get("content")
    lines = [f"{role}: {cut(content)}"] if isinstance(content, str) and content else []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            called = f"{function.get('name')}({function.get('arguments')})"
            lines.append(f"{role} calls {cut(called)}")
    return lines
