"""The general vocabulary of capabilities from which discovery proposes candidates.

Nothing here names a tool or a benchmark. Controls are skills that nearly every episode uses or
that do not decide success: a sound selection leaves them out, and a report shows that it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Label(StrEnum):
    """What one trajectory says about one capability. When unsure: PRESENT (published rule)."""

    NA = "NA"  # the situation that needs the capability did not come up
    PRESENT = "PRESENT"
    LACKING = "LACKING"


@dataclass(frozen=True)
class Capability:
    """A candidate, in words that a person (or a routing prompt) can use."""

    name: str
    description: str
    advice: str = ""  # the same as one line of guidance to an agent; none for controls
    control: bool = False


VOCABULARY: tuple[Capability, ...] = (
    Capability(
        "recovers_from_errors",
        "When a tool call fails for a reason that can be put right, puts it right and repeats "
        "the call instead of giving up.",
        "When a tool fails, fix the cause and retry.",
    ),
    Capability(
        "checks_preconditions",
        "Looks at the state of things before changing them, and acts only if the condition holds.",
        "Check every condition before you act.",
    ),
    Capability(
        "asks_when_information_is_missing",
        "Asks the user for what the request leaves out instead of making it up.",
        "Ask when something is missing.",
    ),
    Capability(
        "disambiguates",
        "When several records match, finds out which one is meant before acting on it.",
        "Ask which one is meant when several match.",
    ),
    Capability(
        "completes_all_parts",
        "Does every part of a request and every follow-up, not only the first.",
        "Do every part of the request.",
    ),
    Capability(
        "takes_exact_arguments_from_results",
        "Copies identifiers and numbers exactly from earlier tool results into later calls.",
        "Copy ids and numbers exactly from results.",
    ),
    Capability(
        "converts_values",
        "Turns the user's wording into the form a tool expects: formats, units, dates.",
        "Convert values to what the tool needs.",
    ),
    Capability(
        "declines_when_impossible",
        "Says so when the tools at hand cannot do what is asked, instead of trying something else.",
        "Decline when a tool is missing.",
    ),
    Capability(
        "tells_the_user",
        "Ends with a message that gives the user the result that was asked for.",
        "Tell the user what came out.",
    ),
    Capability("uses_tools_at_all", "Calls a tool when the task needs one.", control=True),
    Capability(
        "well_formed_tool_calls",
        "Writes tool calls that can be read and that name existing tools.",
        control=True,
    ),
    Capability("closes_conversation", "Ends its work with a message to the user.", control=True),
    Capability("stays_within_turn_limit", "Finishes before the turns run out.", control=True),
)

BY_NAME: dict[str, Capability] = {c.name: c for c in VOCABULARY}
