"""Checklists by the role `annotator` for a folder of recordings, into a new folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trace_bench.checklists.annotate import ROLE, question_of, read_annotation, schema_of
from trace_bench.checklists.items import Checklist, to_json
from trace_bench.checklists.talk import turns_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import Lines
from trace_bench.envs.recorded.data import read_split, splits_in
from trace_bench.llm.client import LLMError
from trace_bench.llm.roles import Roles
from trace_bench.llm.structured import Unusable


def annotate(
    source: Path, out: Path, roles: Roles, variants: int, log: Callable[[str], None]
) -> dict[str, int]:
    """Writes the recordings of `source` with `variants` checklists each. Answers are kept beside
    them, so the same command goes on where it was stopped. Returns what was counted."""
    if roles.role(ROLE) is None:
        raise UserError(
            "no model writes checklists. Set llm.annotator.by=endpoint, llm.shared.base_url and "
            "llm.shared.model."
        )
    counts = {"annotated": 0, "left out": 0, "items": 0}
    for split in splits_in(source):
        with Lines(out / f"{split}.jsonl", {"uuid": str}) as lines:
            there = {record["uuid"] for record in lines.existing}
            counts["annotated"] += len(there)
            counts["items"] += sum(_items(record["checklists"]) for record in lines.existing)
            for record in read_split(source, split):
                if record["uuid"] in there:
                    continue
                _, turns = turns_of(record["messages"])
                question, schema = question_of(turns, record["tools"]), schema_of(len(turns))

                def read(text: str, count: int = len(turns)) -> Checklist:
                    try:
                        return read_annotation(text, count)
                    except ValueError as error:
                        raise Unusable(str(error)) from error

                try:
                    found = [
                        roles.usable(ROLE, f"{record['uuid']}/{variant}", question, read, schema)
                        for variant in range(variants)
                    ]
                except LLMError as error:
                    log(f"{record['uuid']} is left out: {error}")
                    counts["left out"] += 1
                    continue
                written = to_json(found)
                lines.append({**record, "checklists": written})
                counts["items"] += _items(written)
                counts["annotated"] += 1
    return counts


def _items(checklists: Sequence[Any]) -> int:
    """The number of items in checklists [variant][turn][item]."""
    return sum(len(turn) for variant in checklists for turn in variant)
