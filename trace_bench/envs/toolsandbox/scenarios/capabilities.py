"""The nine capabilities that a task may need. A method finds out which of them an agent lacks, and
trains it on synthetic tasks for one of them.
"""

CAPABILITIES = (
    "recovers_from_errors",
    "checks_preconditions",
    "asks_when_information_is_missing",
    "disambiguates",
    "completes_all_parts",
    "takes_exact_arguments_from_results",
    "converts_values",
    "declines_when_impossible",
    "tells_the_user",
)
RECOVER, CHECK, ASK, DISAMBIGUATE, COMPLETE, EXACT, CONVERT, DECLINE, TELL = CAPABILITIES
