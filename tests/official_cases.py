"""What the official ToolSandbox gives the episodes of envs/scorer_cases.py.

    PYTHON tests/official_cases.py CHECKOUT [--write]

CHECKOUT is a checkout of github.com/apple/ToolSandbox (commit 165848b), PYTHON an interpreter with
the packages of containers/toolsandbox/requirements.txt. Every episode is written into the official
package's own databases, its milestones and minefields become the official package's, and its
evaluation gives the score. Compares with tests/envs/official_cases.json, exit status 1 where that
has other scores; with --write, writes that file.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "envs"))
from scorer_cases import cases, digest  # noqa: E402

TABLE = HERE / "envs" / "official_cases.json"


def official_score(case: dict[str, Any]) -> float:
    from tool_sandbox.common import evaluation as e

    found = e.Evaluation(
        e.MilestoneMatcher(
            [e.Milestone(*_milestone(m)) for m in case["milestones"]], _pairs(case["edges"])
        ),
        e.MilestoneMatcher(
            [e.Minefield(*_milestone(m)) for m in case["minefields"]],
            _pairs(case["minefield_edges"]),
        ),
    ).evaluate(_context(case), max_turn_count=30)
    return float(found.similarity)


def _pairs(edges: Any) -> Any:
    return None if edges is None else [tuple(edge) for edge in edges]


def _context(case: dict[str, Any]) -> Any:
    from tool_sandbox.common.execution_context import ExecutionContext

    context = ExecutionContext()
    known: dict[str, Any] = {}
    for sender, recipient, content, state, trace in case["log"]:
        for database, rows in case["states"][state].items():
            if known.get(database) != rows:  # part of the message that comes next
                context.update_database(database, _frame(database, rows))
                known[database] = rows
        line = {"sender": sender, "recipient": recipient, "content": content}
        if trace is not None:
            line["tool_trace"] = [json.dumps({"tool_name": trace["name"], **_rest(trace)})]
        context.add_to_database("SANDBOX", [line])
    return context


def _rest(trace: dict[str, Any]) -> dict[str, Any]:
    return {"arguments": trace["arguments"], "result": None}


def _frame(database: str, rows: list[dict[str, Any]]) -> Any:
    import polars as pl
    from tool_sandbox.common.execution_context import ExecutionContext

    schema = ExecutionContext.dbs_schemas[database]
    if rows:
        schema = {k: v for k, v in schema.items() if k in rows[0]}
    return pl.DataFrame(rows, schema=schema)


def _milestone(milestone: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Constraints with the guards among them, and no guards that the package adds by itself."""
    from tool_sandbox.common import evaluation as e

    constraints = [_constraint(c) for c in milestone["constraints"]]
    for guard in milestone["guards"]:
        guard = {"database": guard, "since": None} if isinstance(guard, str) else guard
        since = -1 if guard["since"] is None else guard["since"]
        constraints.append(e.SnapshotConstraint(guard["database"], e.guardrail_similarity, since))
    return constraints, []


def _constraint(wanted: dict[str, Any]) -> Any:
    import polars as pl
    from tool_sandbox.common import evaluation as e

    database, kind, measures = wanted["database"], wanted["kind"], wanted.get("measures") or {}
    if kind == "tool_trace":
        options = [{"tool_name": r["name"], "arguments": r["arguments"]} for r in wanted["rows"]]
        target = pl.DataFrame({"tool_trace": [json.dumps(options)]})
        match = functools.partial(
            e.column_tool_trace_exact_match_similarity,
            atol_dict={name: measure["tolerance"] for name, measure in measures.items()},
        )
        given = {"tool_trace": match}
        return e.SnapshotConstraint(database, e.snapshot_similarity, None, target, given)
    kinds = {
        "snapshot": e.snapshot_similarity,
        "added": e.addition_similarity,
        "removed": e.removal_similarity,
        "updated": e.update_similarity,
    }
    since = None if kind == "snapshot" else wanted.get("since")
    reference = -1 if since is None and kind != "snapshot" else since
    if database == "SANDBOX":
        target = pl.DataFrame(wanted["rows"])
    else:
        target = _frame(database, wanted["rows"])
    exact = dict.fromkeys(measures, e.column_exact_match_similarity)
    return e.SnapshotConstraint(database, kinds[kind], reference, target, exact)


def main() -> int:
    sys.path.insert(0, sys.argv[1])
    made = cases()
    scores = {case["name"]: round(official_score(case), 6) for case in made}
    found = {"cases": digest(made), "scores": scores}
    partial = sum(0 < value < 1 for value in scores.values())
    print(f"{len(scores)} cases, {partial} with a score between 0 and 1")
    if sys.argv[2:] == ["--write"]:
        TABLE.write_text(json.dumps(found, indent=0) + "\n")
        return 0
    known = json.loads(TABLE.read_text())
    for name in known["scores"].keys() | scores.keys():
        if abs(known["scores"].get(name, -1) - scores.get(name, -2)) > 2e-6:
            print(f"{name}: {known['scores'].get(name)} in the table, {scores.get(name)} now")
            return 1
    return 0 if known["cases"] == found["cases"] else 1


if __name__ == "__main__":
    sys.exit(main())
