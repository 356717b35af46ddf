"""Scenarios from a folder in the AgentWorldModel format, for `method=untargeted`.

    gen_tasks.jsonl                {"scenario", "tasks": [text, ...]}
    gen_db.jsonl                   {"scenario", "db_schema": {"tables": [{"ddl", "indexes"}]}}
    gen_sample.jsonl               {"scenario", "sample_data": {"tables": [{"insert_statements"}]}}
    gen_spec.jsonl                 {"scenario", "api_spec": {"api_groups": [{"endpoints": [...]}]}}
    gen_envs.jsonl                 {"scenario", "full_code": a FastAPI program}
    gen_verifier.pure_code.jsonl   {"scenario", "task_idx", "verification": {"code"}}

One scenario a line, one task of one in the last file. The files are read once and not kept.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines

TASKS, VERIFIERS = "gen_tasks.jsonl", "gen_verifier.pure_code.jsonl"
PARTS = {
    "db_schema": ("gen_db.jsonl", "db_schema"),
    "sample_data": ("gen_sample.jsonl", "sample_data"),
    "api_spec": ("gen_spec.jsonl", "api_spec"),
    "code": ("gen_envs.jsonl", "full_code"),
}
LONGEST = 64 * 2**20  # bytes of a line
MOST = 12 * 2**20  # characters that one worker is sent


def read(folder: str, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` scenarios, drawn with the seed, each whole. Raises UserError for a folder without the
    files, and when fewer whole scenarios are there."""
    place = Path(folder)
    names = sorted(str(line["scenario"]) for line in _lines(place / TASKS))
    random.Random(seed).shuffle(names)
    chosen: dict[str, dict[str, Any]] = {n: {"name": n, "verifiers": {}} for n in names}
    for line in _lines(place / TASKS):
        chosen[str(line["scenario"])]["tasks"] = line.get("tasks")
    for key, (file, inside) in PARTS.items():
        for line in _lines(place / file):
            if (found := chosen.get(str(line["scenario"]))) is not None:
                found[key] = line.get(inside)
    for line in _lines(place / VERIFIERS):
        code = (line.get("verification") or {}).get("code")
        found = chosen.get(str(line["scenario"]))
        if found is not None and code and str(line.get("task_idx", "")).isdigit():
            found["verifiers"][str(line["task_idx"])] = code
    whole = [s for s in map(_usable, chosen.values()) if s is not None]
    if len(whole) < count:
        raise UserError(
            f"method.environments={folder} has {len(whole)} whole scenarios; asked for: {count}. "
            "Change `method.scenarios`."
        )
    drawn = whole[:count]
    if (size := len(json.dumps(drawn))) > MOST:
        raise UserError(
            f"method.scenarios={count} are {size} characters; allowed: {MOST}. Ask for fewer."
        )
    return drawn


def _usable(scenario: dict[str, Any]) -> dict[str, Any] | None:
    """The scenario without tasks that cannot be verified; None when a part is missing."""
    tasks = scenario.get("tasks")
    if not isinstance(tasks, list) or not all(scenario.get(key) for key in PARTS):
        return None
    verifiers = {n: code for n, code in scenario["verifiers"].items() if int(n) < len(tasks)}
    return {**scenario, "verifiers": verifiers} if verifiers else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise UserError(
            f"method.environments={path.parent} has no {path.name}; needed: a folder in the "
            f"AgentWorldModel format, with {TASKS}, {VERIFIERS} and "
            f"{', '.join(file for file, _ in PARTS.values())}. Change `method.environments`."
        )
    for number, text in bounded_lines(path, LONGEST, "Change `method.environments`."):
        try:
            line = json.loads(text)
            line["scenario"] = line.get("scenario") or line["name"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number} is no scenario: {type(error).__name__}: {error}."
            ) from error
        yield line
