"""Does our scoring agree with the official ToolSandbox's? Plays the same tool calls in both worlds.

    PYTHON tests/official_scores.py CHECKOUT

CHECKOUT is a checkout of github.com/apple/ToolSandbox, PYTHON an interpreter with the packages of
containers/toolsandbox/requirements.txt. Official scenarios whose milestones our task format can
express are translated into it (databases, milestones, order, guards), and each is played in five
ways in both: as its milestones want it, in other words, words only, nothing, and with the calls of
its minefields first. Exit status 1 when any similarity differs by more than 1e-6, or fewer than 20
scenarios could be compared.

None of the scenarios that can be translated has a minefield. Minefields, guards, references and the
corners of the scoring are compared by official_cases.py, on episodes made for that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import Message, Step, Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.settings.registry import find
from trace_bench.settings.schema import EnvSettings

DATABASES = ("SETTING", "CONTACT", "MESSAGING", "REMINDER")
TEXTS = ("sender", "recipient", "content")
SETTERS = {
    "wifi": "set_wifi_status",
    "cellular": "set_cellular_service_status",
    "location_service": "set_location_service_status",
    "low_battery_mode": "set_low_battery_mode_status",
}
LEAST = 20


class Inexpressible(Exception):
    """The scenario uses something that our task format does not have."""


def translate(stage: Any, name: str) -> tuple[dict[str, Any], list[Message], str, list[Message]]:
    """Our task data, the calls that its milestones want, the words, the calls of its minefields."""
    scenario = stage.scenarios[name]
    start = _start(scenario.starting_context)
    matcher, mines = scenario.evaluation.milestone_matcher, scenario.evaluation.minefield_matcher
    milestones = [_milestone(m) for m in matcher.milestones]
    minefields = [_milestone(m) for m in mines.milestones]
    rows = scenario.starting_context.get_database(
        "SANDBOX", get_all_history_snapshots=True
    ).to_dicts()
    opening = [r["content"] for r in rows if (r["sender"], r["recipient"]) == ("USER", "AGENT")]
    data = {
        "now": 1718186400.0,  # stage.CLOCK
        "start": start,
        "tools": [t for t in scenario.starting_context.tool_allow_list if t != "end_conversation"],
        "system": "You are a phone assistant.",
        "user": {"opening": opening[-1], "answers": [], "followups": [], "fallback": "?"},
        "milestones": milestones,
        "edges": [list(edge) for edge in matcher.edge_list or []],
        "minefields": minefields,
        "minefield_edges": [list(edge) for edge in mines.edge_list or []],
        "max_messages": scenario.max_messages,
    }
    calls, words = _wanted(milestones, start)
    bad, _ = _wanted(minefields, start)
    return data, calls, words or "Sorry, I cannot do that", bad


def _start(context: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for database in DATABASES:
        rows = context.get_database(database).to_dicts()
        out[database] = rows[0] if database == "SETTING" else rows
    return out


def _milestone(milestone: Any) -> dict[str, Any]:
    from tool_sandbox.common import evaluation as e

    kinds = {
        e.snapshot_similarity: "snapshot",
        e.addition_similarity: "added",
        e.removal_similarity: "removed",
        e.update_similarity: "updated",
    }
    constraints, guards = [], []
    for c in milestone.snapshot_constraints:
        database, reference = str(c.database_namespace), c.reference_milestone_node_index
        since = None if reference in (None, -1) else reference
        if c.snapshot_constraint is e.guardrail_similarity:
            guards.append({"database": database, "since": since})
            continue
        if c.snapshot_constraint not in kinds:
            raise Inexpressible("values taken from tool traces")
        rows = c.target_dataframe.to_dicts()
        if database == "SANDBOX" and any("tool_trace" in row for row in rows):
            constraints.append(_trace(rows, c))
            continue
        if database == "SANDBOX" and any(set(row) - set(TEXTS) for row in rows):
            raise Inexpressible("columns of the message log")
        defaults = e._default_dbs_column_similarities[c.database_namespace]
        given = c.column_similarity_measure or {}
        if any(given[k] is not defaults[k] for k in rows[0] if k in given):
            raise Inexpressible("measures of its own")
        kind = kinds[c.snapshot_constraint]
        constraints.append({"database": database, "kind": kind, "rows": rows, "since": since})
    return {"constraints": constraints, "guards": guards}


def _trace(rows: list[dict[str, Any]], constraint: Any) -> dict[str, Any]:
    """A call that must be made, with the arguments that matter."""
    if (
        constraint.column_similarity_measure
        and "tool_trace" in constraint.column_similarity_measure
    ):
        from tool_sandbox.common import evaluation as e

        defaults = e._default_dbs_column_similarities[constraint.database_namespace]
        if constraint.column_similarity_measure["tool_trace"] is not defaults["tool_trace"]:
            raise Inexpressible("measures of its own")
    out = []
    for row in rows:
        if set(row) - {"sender", "recipient", "tool_trace"}:
            raise Inexpressible("a call and what was said")
        found = json.loads(row["tool_trace"])
        if not isinstance(found, dict):
            raise Inexpressible("alternative calls")
        out.append({"name": found["tool_name"], "arguments": found["arguments"]})
    return {"database": "SANDBOX", "kind": "tool_trace", "rows": out}


def _wanted(
    milestones: list[dict[str, Any]], start: Mapping[str, Any]
) -> tuple[list[Message], str]:
    """Calls that bring about what the milestones describe, in their order."""
    calls: list[Message] = []
    words = ""
    for milestone in milestones:
        for c in milestone["constraints"]:
            for row in c["rows"]:
                if c["kind"] == "tool_trace":
                    calls.append(call_message(row["name"], row["arguments"]))
                elif c["database"] == "SANDBOX":
                    if (row.get("sender"), row.get("recipient")) != ("AGENT", "USER") or words:
                        raise Inexpressible("more than one thing said")
                    words = row["content"]
                else:
                    calls += _bring_about(c["database"], c["kind"], row, start)
    return calls, words


def _bring_about(
    database: str, kind: str, row: Mapping[str, Any], start: Mapping[str, Any]
) -> list[Message]:
    given = {k: v for k, v in row.items() if v is not None}
    if (database, kind) == ("SETTING", "snapshot"):
        changed = {k: v for k, v in given.items() if k in SETTERS and start["SETTING"][k] != v}
        return [call_message(SETTERS[k], {"on": v}) for k, v in changed.items()]
    if (database, kind) == ("CONTACT", "added"):
        return [call_message("add_contact", {k: given[k] for k in ("name", "phone_number")})]
    if kind == "removed" and database in ("CONTACT", "REMINDER"):
        key = "person_id" if database == "CONTACT" else "reminder_id"
        tool = "remove_contact" if database == "CONTACT" else "remove_reminder"
        found = [r for r in start[database] if all(r[k] == v for k, v in given.items())]
        return [call_message(tool, {key: r[key]}) for r in found[:1]]
    if (database, kind) == ("MESSAGING", "added"):
        return [
            call_message(
                "send_message_with_phone_number",
                {"phone_number": given["recipient_phone_number"], "content": given["content"]},
            )
        ]
    if (database, kind) == ("REMINDER", "added"):
        allowed = ("content", "reminder_timestamp", "latitude", "longitude")
        return [call_message("add_reminder", {k: v for k, v in given.items() if k in allowed})]
    if (database, kind) == ("CONTACT", "updated") and "person_id" in given:
        (old,) = [r for r in start["CONTACT"] if r["person_id"] == given["person_id"]]
        new = {k: v for k, v in given.items() if k == "person_id" or old[k] != v}
        return [call_message("modify_contact", new)]
    raise Inexpressible(f"{kind} in {database}")


def similarity(env: Any, task: Task, actions: list[Message]) -> float:
    step: Step = env.reset(task)
    for action in actions:
        if not step.done:
            step = env.step(action)
    return float(env.score().similarity)


def main() -> int:
    chosen = EnvSettings("toolsandbox", options={"source": sys.argv[1]}, suite="official")
    official: Any = find("env", chosen, "official").make(RunContext())
    compared, differ = 0, 0
    why: dict[str, int] = {}
    for task in official.tasks("base"):
        name = task.data["scenario"]
        try:
            data, calls, words, bad = translate(official._stage, name)
        except Inexpressible as error:
            why[str(error)] = why.get(str(error), 0) + 1
            continue
        compared += 1
        said, other = map(text_message, (words, f"Well, {words.split()[0]} is what I did"))
        for label, actions in (
            ("as wanted", [*calls, said]),
            ("in other words", [*calls, other]),
            ("words only", [said]),
            ("nothing", [text_message("")]),
            ("a minefield", [*bad, *calls, said]),
        ):
            ours = similarity(ToolSandboxEnv(), Task(name, "toolsandbox", "x", 0, data), actions)
            theirs = similarity(official.make(), task, actions)
            mark = "" if abs(ours - theirs) < 1e-6 else "   DIFFERS"
            differ += bool(mark)
            print(f"{name:60} {label:15} official {theirs:.6f} ours {ours:.6f}{mark}")
    print(f"{compared} scenarios compared in 5 ways, {differ} differences")
    print("not compared: " + ", ".join(f"{n} for {reason}" for reason, n in sorted(why.items())))
    return 1 if differ or compared < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
