"""A folder to upload to the Hugging Face hub as a dataset.

README.md              the dataset's card: what the run was, what the columns are
data/held_out.parquet  an episode a row, messages and tools in OpenAI's chat format
data/rollouts.parquet  the method's rollouts, likewise
traces/<...>.jsonl     a held-out conversation a file, in the hub's format for sessions
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_text
from trace_bench.core.text import file_name
from trace_bench.results.formats.episodes import Exported, FinishedRun

COLUMNS: Mapping[str, tuple[str, str, Callable[[Exported, FinishedRun], Any]]] = {
    "task": ("the task's id", "string", lambda e, _: e.trajectory.task),
    "group": ("the held-out agent or the method's call", "string", lambda e, _: e.group),
    "purpose": ("what the rollout was for", "string", lambda e, _: e.purpose),
    "trial": ("which trial of the task", "int64", lambda e, _: e.trial),
    "attempt": ("how often the infrastructure had lost this episode before", "int64",
                lambda e, _: e.attempt),
    "messages": ("the conversation, OpenAI's chat format", "messages",
                 lambda e, _: [_message(m) for m in e.trajectory.messages]),
    "tools": ("the tools, OpenAI's format, as JSON", "string",
              lambda e, _: json.dumps(list(e.trajectory.tools))),
    "success": ("the environment's strict score; null: lost to the infrastructure", "bool",
                lambda e, _: getattr(e.trajectory.score, "success", None)),
    "similarity": ("the environment's own score in [0, 1]", "float64",
                   lambda e, _: getattr(e.trajectory.score, "similarity", None)),
    "stop": ("why the episode ended", "string", lambda e, _: e.trajectory.stop.value),
    "error": ("what failed, for a lost episode", "string",
              lambda e, _: str(e.trajectory.failure) if e.trajectory.failure else None),
    "adapter": ("the adapter that acted; null: the base model", "string",
                lambda e, _: e.trajectory.adapter),
    "tokens": ("tokens read and written", "int64", lambda e, _: e.trajectory.tokens),
    "needs": ("what the task needs, where its suite says so", "words",
              lambda e, source: source.tags.get(e.trajectory.task, [])),
}  # fmt: skip
"""By name: what it is, its type, and its value."""


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
        row = {name: value(played, source) for name, (_, _, value) in COLUMNS.items()}
        parts["held_out" if played.held_out else "rollouts"].append(row)
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
    text = arrow.string()
    function = arrow.struct([("name", text), ("arguments", text)])
    call = arrow.struct([("id", text), ("type", text), ("function", function)])
    message = arrow.struct(
        [("role", text), ("content", text), ("name", text), ("tool_call_id", text),
         ("tool_calls", arrow.list_(call))]
    )  # fmt: skip
    lists = {"messages": arrow.list_(message), "words": arrow.list_(text)}
    return arrow.schema([(name, lists.get(kind, kind)) for name, (_, kind, _) in COLUMNS.items()])


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
    columns = "\n".join(f"| {name} | {about} |" for name, (about, *_) in COLUMNS.items())
    return (
        f"---\nconfigs:\n{configs}tags:\n- agent-traces\n- trace_bench\n---\n"
        f"# {s.method} on {source.suite}\n\n"
        f"Episodes of one run of trace_bench: method {s.method}, model {s.model}, budget "
        f"{s.budget} rollouts, seed {s.seed}, held-out split {s.split}, fingerprint "
        f"{s.fingerprint}; {counts}. Lost episodes are rows without a score: leave them out of "
        f"means, do not count them as failures.\n\n| column | what |\n|---|---|\n{columns}\n"
    )
