"""General advice to an agent that works with tools: what the program reflector writes prompts from.

The lines are what one would write for any such agent, right or not for this one; each has the
symptoms in a failed conversation that would make a reader think of it. Which lines an agent
understands is for the rollouts to find out.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Advice:
    """A line of guidance and the symptoms that speak for it."""

    line: str
    symptoms: frozenset[str]


def _advice(line: str, *symptoms: str) -> Advice:
    return Advice(line, frozenset(symptoms))


POOL = (
    _advice("When a tool fails, fix the cause and retry.", ERROR, GAVE_UP),
    _advice("Try every tool twice.", ERROR),
    _advice("Report errors to the user at once.", ERROR),
    _advice("Check every condition before you act.", CONDITION),
    _advice("Look at the settings before anything else.", CONDITION, ERROR),
    _advice("Ask when something is missing.", NO_QUESTION, VALUES),
    _advice("Ask which one is meant when several match.", NO_QUESTION, SEVERAL),
    _advice("Confirm with the user before you change anything.", NO_QUESTION),
    _advice("Never ask the user anything.", ANY),
    _advice("Do every part of the request.", PARTS),
    _advice("Make a plan before you start.", PARTS, CONDITION),
    _advice("Work through the request one sentence at a time.", PARTS),
    _advice("Convert values to what the tool needs.", VALUES),
    _advice("Copy numbers exactly as the user wrote them.", VALUES),
    _advice("Use the full name of a unit.", VALUES),
    _advice("Decline when a tool is missing.", NO_CALL, ERROR, NO_QUESTION),
    _advice("Always call at least one tool.", NO_CALL),
    _advice("Use as few tools as possible.", ANY),
    _advice("Use the ids that a search gives you.", SEVERAL, ERROR),
    _advice("Take the first match of a search.", SEVERAL),
    _advice("Tell the user what came out.", UNTOLD),
    _advice("Repeat the request in your answer.", UNTOLD),
    _advice("Be polite.", ANY),
    _advice("Be brief.", ANY),
    _advice("Answer in English.", ANY),
    _advice("Think step by step.", ANY),
    _advice("Double-check your work.", ANY),
    _advice("Use simple words.", ANY),
)
