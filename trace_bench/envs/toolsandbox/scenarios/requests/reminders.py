"""Requests about reminders."""

from __future__ import annotations

import datetime as dt
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.pools import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.lookups import (
    INVENTED_TIME,
    TIME_TOOLS,
    moment,
    span,
    spoken_info,
    spoken_moment,
    timestamp_of,
)
from trace_bench.envs.toolsandbox.scenarios.solver import (
    ASK,
    CONVERT,
    DECLINE,
    DECLINED,
    GiveUp,
    Request,
    Say,
    Solution,
    Solver,
    Steps,
    ask_user,
    call_tool,
)

REMINDER_TOOLS = (
    "add_reminder",
    "modify_reminder",
    "search_reminder",
    "remove_reminder",
    *TIME_TOOLS,
)
_WHEN = "When should I remind you?"
_GUESSED_WHEN = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.UTC)


def remind_at(choices: Choices, missing: str = "") -> Request:
    """A reminder at a date and time. `missing`: "when" or "what" is not given until asked for."""
    errand, when = choices.errand(), moment(choices)
    date = spoken_moment(when)

    def solution(solver: Solver) -> Solution:
        solver.need("add_reminder")
        what, then = errand, when
        if missing == "what":
            what = yield from ask_user(solver, "What is it about?", "reminder")
        if missing == "when":
            if solver.can(ASK):
                yield Say(_WHEN)  # the user answers with the date that is known here
            else:
                then = _GUESSED_WHEN
        if "datetime_info_to_timestamp" in solver.tools:
            stamp = yield from timestamp_of(solver, then)
        elif solver.can(DECLINE):
            raise GiveUp(DECLINED)
        else:
            stamp = INVENTED_TIME
        arguments = {"content": what, "reminder_timestamp": stamp}
        yield from call_tool(solver, "add_reminder", arguments)
        return "The reminder is set."

    answers = []
    if missing == "when":
        clause = _clause_without_time(choices, errand)
        answers = [{"keywords": ["when", "time"], "reply": f"On {date}."}]
    elif missing == "what":
        clause = choices.clause(
            "remind_no_what", f"remind me on {date}", f"set a reminder on {date}",
            f"add a reminder for {date}", f"make a reminder for {date}",
        )  # fmt: skip
        answers = [{"keywords": ["about", "what"], "reply": errand}]
    else:
        clause = choices.clause(
            "remind_at", f"remind me to {errand} on {date}", f"on {date} remind me to {errand}",
            f"set a reminder to {errand} on {date}", f"add a reminder for {date} to {errand}",
        )  # fmt: skip
    return Request(clause, solution, REMINDER_TOOLS, "add_reminder", answers=answers)


def remind_in(choices: Choices, missing: bool = False) -> Request:
    """A reminder some time from now: the clock has to be read and shifted. `missing`: how long
    from now is not given until asked for."""
    errand = choices.errand()
    spoken, shift = span(choices)

    def solution(solver: Solver) -> Solution:
        solver.need("add_reminder")
        if missing and solver.can(ASK):
            yield Say(_WHEN)  # the user answers with the span that is known here
        if "get_current_timestamp" not in solver.tools:
            if solver.can(DECLINE):
                raise GiveUp(DECLINED)
            stamp = INVENTED_TIME
        else:
            stamp = yield from call_tool(solver, "get_current_timestamp", {})
            if solver.can(CONVERT) and (solver.can(ASK) or not missing):
                shifted = {"timestamp": stamp, **shift}
                stamp = yield from call_tool(solver, "shift_timestamp", shifted)
        arguments = {"content": errand, "reminder_timestamp": stamp}
        yield from call_tool(solver, "add_reminder", arguments)
        return "The reminder is set."

    if missing:
        clause = _clause_without_time(choices, errand)
    else:
        clause = choices.clause(
            "remind_in", f"remind me to {errand} in {spoken}", f"in {spoken} remind me to {errand}",
            f"set a reminder to {errand} in {spoken}", f"add a reminder in {spoken} to {errand}",
        )  # fmt: skip
    answers = [{"keywords": ["when", "time"], "reply": f"In {spoken}."}] if missing else []
    return Request(clause, solution, REMINDER_TOOLS, "add_reminder", answers=answers)


def _clause_without_time(choices: Choices, errand: str) -> str:
    return choices.clause(
        "remind_no_when", f"remind me to {errand}", f"set a reminder to {errand}",
        f"add a reminder to {errand}", f"make a reminder: {errand}",
    )  # fmt: skip


def reminder_when(choices: Choices) -> Request:
    """Tell when a reminder is due."""
    errand = choices.errand()

    def solution(solver: Solver) -> Solution:
        solver.need("search_reminder")
        row = yield from _find_reminder(solver, errand)
        arguments = {"timestamp": row["reminder_timestamp"]}
        info = yield from call_tool(solver, "timestamp_to_datetime_info", arguments)
        return f"It is on {spoken_info(info)}."

    clause = choices.clause(
        "reminder_when", f"tell me when I have to {errand}", f"look up when I must {errand}",
        f"find the time of my reminder to {errand}", f"say when my reminder to {errand} is",
    )  # fmt: skip
    return Request(
        clause, solution, REMINDER_TOOLS, "timestamp_to_datetime_info",
        reminders=[_reminder(choices, errand)],
    )  # fmt: skip


def edit_reminder(choices: Choices) -> Request:
    """Change what a reminder is about."""
    errand, new = choices.errand(), choices.errand()

    def solution(solver: Solver) -> Solution:
        solver.need("modify_reminder")
        row = yield from _find_reminder(solver, errand)
        if row is None:
            yield from _invent_reminder(solver, new)
        else:
            arguments = {"reminder_id": row["reminder_id"], "content": new}
            yield from call_tool(solver, "modify_reminder", arguments)
        return "The reminder is changed."

    clause = choices.clause(
        "edit_reminder", f"change my reminder to {errand} into {new}",
        f"make my reminder to {errand} say {new}", f"edit the reminder to {errand}: {new}",
        f"replace the reminder to {errand} by {new}",
    )  # fmt: skip
    return _change(choices, clause, solution, errand)


def postpone(choices: Choices) -> Request:
    """Move a reminder to a later time, which is that much after the old one."""
    errand = choices.errand()
    spoken, shift = span(choices)

    def solution(solver: Solver) -> Solution:
        solver.need("modify_reminder")
        row = yield from _find_reminder(solver, errand)
        if row is None:
            yield from _invent_reminder(solver, errand)
            return "The reminder is changed."
        stamp = row["reminder_timestamp"]
        if solver.can(CONVERT):
            shifted = {"timestamp": stamp, **shift}
            stamp = yield from call_tool(solver, "shift_timestamp", shifted)
        arguments = {"reminder_id": row["reminder_id"], "reminder_timestamp": stamp}
        yield from call_tool(solver, "modify_reminder", arguments)
        return "The reminder is changed."

    clause = choices.clause(
        "postpone", f"postpone my reminder to {errand} by {spoken}",
        f"move the reminder to {errand} {spoken} later",
        f"delay the reminder to {errand} by {spoken}",
        f"push my reminder to {errand} back {spoken}",
    )  # fmt: skip
    return _change(choices, clause, solution, errand)


def remove_reminder(choices: Choices) -> Request:
    errand = choices.errand()

    def solution(solver: Solver) -> Solution:
        solver.need("remove_reminder", "search_reminder")  # no id could be invented
        row = yield from _find_reminder(solver, errand)
        yield from call_tool(solver, "remove_reminder", {"reminder_id": row["reminder_id"]})
        return "The reminder is removed."

    clause = choices.clause(
        "remove_reminder", f"remove my reminder to {errand}", f"delete the reminder to {errand}",
        f"cancel my reminder to {errand}", f"drop the reminder to {errand}",
    )  # fmt: skip
    return Request(
        clause, solution, REMINDER_TOOLS, "remove_reminder",
        reminders=[_reminder(choices, errand)],
    )  # fmt: skip


def _change(choices: Choices, clause: str, solution: Any, errand: str) -> Request:
    return Request(
        clause, solution, REMINDER_TOOLS, "modify_reminder",
        reminders=[_reminder(choices, errand)],
        invented_tools=("modify_reminder", "add_reminder"),
    )  # fmt: skip


def _reminder(choices: Choices, errand: str) -> dict[str, Any]:
    return {
        "reminder_id": choices.row_id(),
        "content": errand,
        "creation_timestamp": 0,  # set when the scenario knows its clock
        "reminder_timestamp": int(moment(choices).timestamp()),
        "latitude": None,
        "longitude": None,
    }


def _find_reminder(solver: Solver, errand: str) -> Steps:
    """The row of a reminder. Without the tool that finds it the solver declines or, lacking this
    capability, goes on with None."""
    if "search_reminder" not in solver.tools:
        if solver.can(DECLINE):
            raise GiveUp(DECLINED)
        return None
    rows = yield from call_tool(solver, "search_reminder", {"content": errand})
    if not rows:
        raise GiveUp("Sorry, I found no reminder.")
    return rows[0]


def _invent_reminder(solver: Solver, content: str) -> Steps:
    arguments = {"content": content, "reminder_timestamp": INVENTED_TIME}
    yield from call_tool(solver, "add_reminder", arguments)
