"""A folder to upload to the Hugging Face hub as a dataset.

README.md              the dataset's card: what the run was, what the columns are
data/held_out.parquet  an episode a row, messages and tools in OpenAI's chat format
data/rollouts.parquet  the method's rollouts, likewise
traces/<...>.jsonl     a held-out conversation a file, in the hub's format for sessions
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_text
from trace_bench.core.text import file_name
from trace_bench.results.formats.episodes import Exported, FinishedRun

COLUMNS = {
    "task": "the task's id",
    "group": "the held-out agent or the method's call",
    "purpose": "what the rollout was for",
    "trial": "which trial of the task",
    "attempt": "how often the infrastructure had lost this episode before",
    "messages": "the conversation, OpenAI's chat format",
    "tools": "the tools, OpenAI's format, as JSON",
    "success": "the environment's strict score; null: lost to the infrastructure",
    "similarity": "the environment's own score in [0, 1]",
    "stop": "why the episode ended",
    "error": "what failed, for a lost episode",
    "adapter": "the adapter that acted; null: the base model",
    "tokens": "tokens read and written",
    "needs": "what the task needs, where its suite says so",
}


def write(source: FinishedRun, out: Path) -> None:
    """Writes the dataset. UserError without pyarrow."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(
            "--format hf writes Parquet, which needs pyarrow: pip install '.[hf]'"
        ) from error
    parts: dict[str, list[dict[str, Any]]] = {"held_out": [], "rollouts": []}
    for played in source.episodes():
        parts["held_out" if played.held_out else "rollouts"].append(_row(played, source))
        if played.held_out:
            name = file_name(f"{played.group}/{played.trajectory.task}")
            path = out / "traces" / f"{name}-{played.trial}-{played.attempt}.jsonl"
            lines = "".join(json.dumps(line) + "\n" for line in _session(played, source))
            write_text(path, lines)
    (out / "data").mkdir(exist_ok=True)
    for name, rows in parts.items():
        if rows:
            table = arrow.Table.from_pylist(rows, schema=_schema(arrow))
            parquet.write_table(table, out / "data" / f"{name}.parquet")
    write_text(out / "README.md", _card(source, {n: len(r) for n, r in parts.items() if r}))


def _row(played: Exported, source: FinishedRun) -> dict[str, Any]:
    t = played.trajectory
    return {
        "task": t.task,
        "group": played.group,
        "purpose": played.purpose,
        "trial": played.trial,
        "attempt": played.attempt,
        "messages": [_message(m) for m in t.messages],
        "tools": json.dumps(list(t.tools)),
        "success": None if t.score is None else t.score.success,
        "similarity": None if t.score is None else t.score.similarity,
        "stop": t.stop.value,
        "error": None if t.failure is None else str(t.failure),
        "adapter": t.adapter,
        "tokens": t.tokens,
        "needs": source.tags.get(t.task, []),
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """All messages have the same keys: Parquet's columns have one type."""
    return {
        "role": message["role"],
        "content": message.get("content") or "",
        "name": message.get("name"),
        "tool_call_id": message.get("tool_call_id"),
        "tool_calls": [
            {"id": c["id"], "type": "function", "function": dict(c["function"])}
            for c in message.get("tool_calls") or ()
        ],
    }


def _schema(arrow: Any) -> Any:
    text, whole = arrow.string(), arrow.int64()
    function = arrow.struct([("name", text), ("arguments", text)])
    call = arrow.struct([("id", text), ("type", text), ("function", function)])
    message = arrow.struct(
        [("role", text), ("content", text), ("name", text), ("tool_call_id", text),
         ("tool_calls", arrow.list_(call))]
    )  # fmt: skip
    types = {
        "trial": whole, "attempt": whole, "tokens": whole, "messages": arrow.list_(message),
        "success": arrow.bool_(), "similarity": arrow.float64(), "needs": arrow.list_(text),
    }  # fmt: skip
    return arrow.schema([(name, types.get(name, text)) for name in COLUMNS])


def _session(played: Exported, source: FinishedRun) -> Iterator[dict[str, Any]]:
    t = played.trajectory
    name = f"{source.name}/{played.group}/{t.task}/{played.trial}/{played.attempt}"
    yield {"type": "session", "harness": "trace_bench", "id": name, "name": t.task}
    for message in t.messages:
        yield {"type": "message", "message": message}


def _card(source: FinishedRun, sizes: Mapping[str, int]) -> str:
    s = source.summary
    configs = "".join(
        f"- config_name: {name}\n  data_files: data/{name}.parquet\n" for name in sizes
    )
    counts = ", ".join(f"{count} episodes in {name}" for name, count in sizes.items())
    columns = "\n".join(f"| {name} | {about} |" for name, about in COLUMNS.items())
    return (
        f"---\nconfigs:\n{configs}tags:\n- agent-traces\n- trace_bench\n---\n"
        f"# {s.method} on {source.suite}\n\n"
        f"Episodes of one run of trace_bench: method {s.method}, model {s.model}, budget "
        f"{s.budget} rollouts, seed {s.seed}, held-out split {s.split}, fingerprint "
        f"{s.fingerprint}; {counts}. Lost episodes are rows without a score: leave them out of "
        f"means, do not count them as failures.\n\n| column | what |\n|---|---|\n{columns}\n"
    )
