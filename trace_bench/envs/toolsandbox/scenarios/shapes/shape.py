"""What a scenario shape is."""

from __future__ import annotations

from dataclasses import dataclass

from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.request import Kind, Turns

SINGLE, MULTIPLE, TURNS, INSUFFICIENT = (
    "single_tool_call",
    "multiple_tool_calls",
    "multiple_user_turns",
    "insufficient_information",
)


@dataclass(frozen=True)
class Shape:
    """kinds: the requests, in order; all in the user's first message, but in the category TURNS
    each in a message of its own. withheld: tools that the agent does not get. settings: states of
    the phone at the start, over those that the requests ask for."""

    name: str
    category: str
    kinds: tuple[Kind, ...]
    withheld: tuple[str, ...] = ()
    settings: tuple[tuple[str, bool], ...] = ()

    def draw(self, choices: Choices) -> Turns:
        """The requests of every turn of the user, drawn at random."""
        requests = [kind(choices) for kind in self.kinds]
        return [[request] for request in requests] if self.category == TURNS else [requests]
