"""Scores an episode with the package's own checks, turn by turn.

The agent's calls and the answer's are replayed on two fresh worlds. After each turn in which calls
are due, the states must be equal and the answer's results must be among all of the agent's so far.
The package stops at the first turn that fails; here all turns are checked, and `similarity` is the
share of those that pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trace_bench.core.types import Milestone, Score
from trace_bench.envs.bfcl.world import Call, World, parse

Checker = Literal["official", "strict"]
Turns = Sequence[Sequence[Sequence[Call]]]  # turns of steps of calls

CUT_OFF = "multi_turn:force_terminated"
EMPTY = "multi_turn:empty_turn_model_response"
STATE = "multi_turn:instance_state_mismatch"
NOT_DUE = "multi_turn:irrelevance_error:decoder_success"


def score(entry: Mapping[str, Any], played: Turns, checker: Checker) -> Score:
    """The score of the turns that were reached; fewer than the entry has fail it. A turn in which
    no call is due counts only with `strict`, where it must have none."""
    errors: dict[int, str] = {}
    counted: list[int] = []
    ours, theirs = World(entry), World(entry)
    results: list[str] = []
    for number, sources in enumerate(entry["answers"]):
        steps = played[number] if number < len(played) else ()
        calls = [call for step in steps for call in step]
        results += [ours.call(call) for call in calls]
        wanted = [theirs.call(parse(source)) for source in sources]
        if wanted or checker == "strict":
            counted.append(number)
        if number >= len(played):
            fault = CUT_OFF
        elif not wanted:
            fault = NOT_DUE if calls else ""
        elif not calls:
            fault = EMPTY
        else:
            fault = _mismatch(ours, theirs, results, wanted, number)
        if fault:
            errors[number] = fault
    failed = [number for number in counted if number in errors]
    cut_off = len(played) < len(entry["answers"])
    details = {
        "error": CUT_OFF if cut_off else errors[failed[0]] if failed else None,
        "turns": {str(number + 1): error for number, error in errors.items()},
        "checked_turns": len(counted),
    }
    milestones = tuple(
        Milestone(f"turn {number + 1}", float(number not in errors), number not in errors)
        for number in counted
    )
    share = 1.0 - len(failed) / len(counted)
    return Score(share, not failed and not cut_off, details, milestones)


def _mismatch(
    ours: World, theirs: World, results: list[str], wanted: list[str], number: int
) -> str:
    """The package's name of the first difference; "" if there is none."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (
        response_checker,
        state_checker,
    )

    try:
        found = state_checker(ours.instances, theirs.instances)
    except RecursionError:  # a folder that was moved into itself
        return STATE
    if found["valid"]:
        found = response_checker(results, wanted, number)
    return "" if found["valid"] else str(found["error_type"])
