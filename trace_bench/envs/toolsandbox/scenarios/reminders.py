"""Requests about reminders."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trace_bench.envs.toolsandbox.databases import COLUMNS
from trace_bench.envs.toolsandbox.scenarios import lookups
from trace_bench.envs.toolsandbox.scenarios.pools import Choices
from trace_bench.envs.toolsandbox.scenarios.solver import (
    ASK,
    CONVERT,
    GiveUp,
    Request,
    Say,
    Solution,
    Solver,
    Steps,
    answer,
)

REMINDER_TOOLS = (
    "add_reminder", "modify_reminder", "search_reminder", "remove_reminder", *lookups.TIME_TOOLS,
)  # fmt: skip
_WHEN = "When should I remind you?"
_GUESSED_WHEN = {"year": 2026, "month": 1, "day": 1, "hour": 12, "minute": 0}


def remind_at(choices: Choices, missing: str = "") -> Request:
    """A reminder at a date and time. `missing`: "when" or "what" is not given until asked for."""
    errand, when = choices.errand(), lookups.moment(choices)
    date = lookups.spoken_moment(when)

    def solution(solver: Solver) -> Solution:
        what, then = errand, when
        if missing == "what":
            what = yield from solver.ask("What is it about?", "reminder")
        if missing == "when":
            if solver.can(ASK):
                yield Say(_WHEN)  # the user answers with the date that is known here
            else:
                then = _GUESSED_WHEN
        stamp: float = lookups.INVENTED_TIME
        if solver.has("datetime_info_to_timestamp"):
            stamp = yield from lookups.timestamp_of(solver, then)
        yield from solver.call("add_reminder", content=what, reminder_timestamp=stamp)
        return "The reminder is set."

    answers = []
    if missing == "when":
        answers = answer(f"On {date}.", "when", "time")
    elif missing == "what":
        answers = answer(errand, "about", "what")
    kind = f"remind_no_{missing}" if missing else "remind_at"
    clause = choices.clause(kind, errand=errand, date=date)
    return Request(clause, solution, REMINDER_TOOLS, "add_reminder", answers=answers)


def remind_in(choices: Choices, missing: bool = False) -> Request:
    """A reminder some time from now: the clock has to be read and shifted. `missing`: how long
    from now is not given until asked for."""
    errand = choices.errand()
    spoken, shift = lookups.span(choices)

    def solution(solver: Solver) -> Solution:
        if missing and solver.can(ASK):
            yield Say(_WHEN)  # the user answers with the lookups.span that is known here
        stamp: float = lookups.INVENTED_TIME
        if solver.has("get_current_timestamp"):
            stamp = yield from solver.call("get_current_timestamp")
            if solver.can(CONVERT) and (solver.can(ASK) or not missing):
                stamp = yield from solver.call("shift_timestamp", timestamp=stamp, **shift)
        yield from solver.call("add_reminder", content=errand, reminder_timestamp=stamp)
        return "The reminder is set."

    kind = "remind_no_when" if missing else "remind_in"
    clause = choices.clause(kind, errand=errand, spoken=spoken)
    answers = answer(f"In {spoken}.", "when", "time") if missing else []
    return Request(clause, solution, REMINDER_TOOLS, "add_reminder", answers=answers)


def reminder_when(choices: Choices) -> Request:
    """Tell when a reminder is due."""
    errand = choices.errand()

    def solution(solver: Solver) -> Solution:
        solver.need("search_reminder")
        row = yield from _find_reminder(solver, errand)
        stamp = row["reminder_timestamp"]
        info = yield from solver.call("timestamp_to_datetime_info", timestamp=stamp)
        return f"It is on {lookups.spoken_moment(info)}."

    return _about(choices, "reminder_when", solution, "timestamp_to_datetime_info", errand)


def edit_reminder(choices: Choices) -> Request:
    """Change what a reminder is about."""
    errand, new = choices.errand(), choices.errand()

    def solution(solver: Solver) -> Solution:
        row = yield from _find_reminder(solver, errand)
        if row is None:
            yield from _invent_reminder(solver, new)
        else:
            yield from solver.call("modify_reminder", reminder_id=row["reminder_id"], content=new)
        return "The reminder is changed."

    return _about(choices, "edit_reminder", solution, "modify_reminder", errand, new=new)


def postpone(choices: Choices) -> Request:
    """Move a reminder to a later time, which is that much after the old one."""
    errand = choices.errand()
    spoken, shift = lookups.span(choices)

    def solution(solver: Solver) -> Solution:
        row = yield from _find_reminder(solver, errand)
        if row is None:
            yield from _invent_reminder(solver, errand)
            return "The reminder is changed."
        stamp, identity = row["reminder_timestamp"], row["reminder_id"]
        if solver.can(CONVERT):
            stamp = yield from solver.call("shift_timestamp", timestamp=stamp, **shift)
        yield from solver.call("modify_reminder", reminder_id=identity, reminder_timestamp=stamp)
        return "The reminder is changed."

    return _about(choices, "postpone", solution, "modify_reminder", errand, spoken=spoken)


def remove_reminder(choices: Choices) -> Request:
    errand = choices.errand()

    def solution(solver: Solver) -> Solution:
        solver.need("search_reminder")  # no id could be invented
        row = yield from _find_reminder(solver, errand)
        yield from solver.call("remove_reminder", reminder_id=row["reminder_id"])
        return "The reminder is removed."

    return _about(choices, "remove_reminder", solution, "remove_reminder", errand)


def _about(
    choices: Choices, kind: str, solution: Any, main_tool: str, errand: str, **words: str
) -> Request:
    """A request about a reminder that is there."""
    clause = choices.clause(kind, errand=errand, **words)
    reminder = {
        **COLUMNS["REMINDER"],
        "reminder_id": choices.row_id(),
        "content": errand,
        "reminder_timestamp": int(datetime(**lookups.moment(choices), tzinfo=UTC).timestamp()),
    }
    invented = (main_tool, "add_reminder") if main_tool == "modify_reminder" else ()
    return Request(
        clause, solution, REMINDER_TOOLS, main_tool, reminders=[reminder], invented_tools=invented
    )


def _find_reminder(solver: Solver, errand: str) -> Steps:
    """The row of a reminder. Without the tool that finds it the solver declines or, lacking this
    capability, goes on with None."""
    if not solver.has("search_reminder"):
        return None
    rows = yield from solver.call("search_reminder", content=errand)
    if not rows:
        raise GiveUp("Sorry, I found no reminder.")
    return rows[0]


def _invent_reminder(solver: Solver, content: str) -> Steps:
    yield from solver.call(
        "add_reminder", content=content, reminder_timestamp=lookups.INVENTED_TIME
    )
