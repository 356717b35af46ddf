"""Puts the report together: one HTML file with everything in it.

The data is compressed (gzip, base64) and unpacked by the browser when it is shown. Nothing of it is
ever parsed as HTML, and the page's content security policy forbids every request.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import each_line
from trace_bench.core.text import described
from trace_bench.core.types import Message, Score, Stored, Trajectory, to_json
from trace_bench.report import runs
from trace_bench.report.runs import folder_of
from trace_bench.results.cells import Cell, difference
from trace_bench.results.compare import settings_of
from trace_bench.results.folder import finished, same_agents
from trace_bench.results.groups import environment_code
from trace_bench.results.run import DAMAGE, Run

MODULES = (
    "dom", "data", "charts", "table", "curves", "overview", "run", "tasks", "conversation", "main",
)  # fmt: skip
HELD_OUT, TRAINING = "evaluation_trajectories.jsonl", "trajectories.jsonl"


def build(rows: Sequence[Cell], skipped: Sequence[str], limit: int) -> tuple[str, list[str]]:
    """The report of these rows as HTML, in about `limit` bytes at most if leaving out conversations
    can achieve that, those of training first; and what was left out. UserError without plotly."""
    every = [r.named(f"{row.method}, seed {r.seed}") for row in rows for r in row.runs]
    blocks = {"plotly": _packed(_plotly())}
    talks, heads = [Talks() for _ in every], []
    left_out = _conversations(every, talks, "held-out conversations", HELD_OUT, limit)
    rest = limit - len(blocks["plotly"])
    left_out += _conversations(every, talks, "conversations of training", TRAINING, rest)
    for number, (run, talk) in enumerate(zip(every, talks, strict=True)):
        blocks |= {f"talk-{number}-{i}": part for i, part in enumerate(talk.parts)}
        content, unread = _run(run, talk)
        blocks[f"run-{number}"] = _json(content)
        heads.append(_head(run, content))
        left_out += unread
    compared, remarks = runs.differences(rows)
    blocks["index"] = _json({
        "runs": heads, "rows": [*_rows(rows)], "pairs": compared,
        "remarks": [*remarks, *left_out], "skipped": [*skipped],
    })  # fmt: skip
    title = every[0].label if len(every) == 1 else f"{len(every)} runs"
    return _page(title, blocks), left_out


def _conversations(
    every: Sequence[Run], talks: Sequence[Talks], what: str, name: str, limit: int
) -> list[str]:
    """Adds each run's conversations until all are `limit` characters; returns what was left out."""
    left_out, without = [], []
    for run, talk in zip(every, talks, strict=True):
        try:
            room = limit - sum(one.size for one in talks)
            if not talk.add(folder_of(run) / name, room):
                without.append(run.label)
        except UserError as error:
            left_out.append(f"{run.label}: {what}: {error}")
    if without:
        others = f" and {len(without) - 1} more" if len(without) > 1 else ""
        left_out.append(f"{without[0]}{others}: some {what}, for the size of the file")
    return left_out


def _rows(rows: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """What the page shows of each row; `runs`: the places of its runs, one a seed."""
    first = 0
    for row in rows:
        run = row.runs[0]
        base = row.base if row.shares(row.base) else None
        yield {
            "name": row.method, "runs": [*range(first, first + len(row.runs))],
            "success": to_json(row.interval()) if row.shares(row) else None,
            "base": base and base.value,
            "difference": base and to_json(difference(row, base).interval),
            "suite": run.suite_name, "model": run.settings.get("model.name"),
        }  # fmt: skip
        first += len(row.runs)


def _head(run: Run, content: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a run beside others, from all that it shows of it."""
    summary = content["summary"]
    return {
        "name": run.label,
        "seed": run.seed,
        "success": run.mean if any(s is not None for s in run.success) else None,
        "code": environment_code(run),
        "curves": bool(content["training"] or summary["curve"]),
    }


READ: Mapping[str, tuple[Callable[[Run], Any], Any]] = {
    "tasks": (runs.tasks, {"ids": [], "tags": [], "agents": {}}),
    "capabilities": (runs.capabilities, None),
    "training": (runs.curves, []),
    "same": (lambda run: same_agents(folder_of(run)), {}),
}
"""What is read of a run's files, and what stands for it where they are damaged."""


def _run(run: Run, talks: Talks) -> tuple[dict[str, Any], list[str]]:
    """What the page shows of a run, and what was left out of it."""
    content: dict[str, Any] = {
        "summary": to_json(finished(folder_of(run))), "settings": settings_of(Cell("", 0, (run,))),
        "talks": talks.places, "tools": talks.tools,
    }  # fmt: skip
    left_out = []
    for name, (read, without) in READ.items():
        try:
            content[name] = read(run)
        except (UserError, *DAMAGE) as error:
            content[name] = without
            left_out.append(f"{run.label}: {name}: {described(error)}")
    return content, left_out


def _plotly() -> bytes:
    try:
        version = metadata.version("plotly")
    except metadata.PackageNotFoundError as error:
        raise UserError(
            "the report needs the package plotly. Install it: pip install 'plotly>=6,<7'"
        ) from error
    path = resources.files("plotly") / "package_data" / "plotly.min.js"
    if not path.is_file():
        raise UserError(f"plotly {version} has no plotly.min.js; install plotly>=6,<7")
    return path.read_bytes()


def _json(value: Any) -> str:
    return _packed(json.dumps(value, separators=(",", ":")).encode())


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _page(title: str, blocks: Mapping[str, str]) -> str:
    files = resources.files(__name__)

    def text(name: str) -> str:
        return (files / name).read_text(encoding="utf-8")

    def module(name: str) -> str:
        code = base64.b64encode(text(f"{name}.js").encode()).decode()
        return f"data:text/javascript;base64,{code}"

    imports = json.dumps({"imports": {f"report/{name}": module(name) for name in MODULES}})
    data = "\n".join(
        f'<script type="text/plain" id="data-{name}">{packed}</script>'
        for name, packed in blocks.items()
    )
    values = {
        "title": html.escape(title), "style": text("page.css"), "imports": imports, "data": data,
    }  # fmt: skip
    # At once: a name in a title may hold another mark.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: values[mark[1]], text("page.html"))


# -- the stored conversations of a run, without token ids, tools once ------------------------------

CHUNK = 64
"""Conversations in one compressed part: the browser unpacks one part to show one of them."""


@dataclass
class Talks:
    """Conversations in parts, each compressed as soon as it is full, and their size. `places`:
    {call: {task: [[part, index in the part]]}}; `tools`: each tool once, conversations refer to it
    by its index."""

    parts: list[str] = field(default_factory=list)
    size: int = 0
    places: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # of the tools, by their JSON

    def add(self, path: Path, room: int) -> bool:
        """Adds the episodes of a file of trajectories, if there is such a file, until its parts
        fill `room`; whether all were added. UserError for a damaged file, whose lines before the
        damage are added."""
        most, part = self.size + room, list[dict[str, Any]]()
        try:
            for line in each_line(path, Stored):
                if self.size >= most:
                    return False
                of_task = self.places.setdefault(line.call, {}).setdefault(line.trajectory.task, [])
                of_task.append([len(self.parts), len(part)])
                part.append(self._packed(line.trajectory))
                if len(part) == CHUNK:
                    self._close(part)
        finally:
            self._close(part)
        return True

    def _close(self, part: list[dict[str, Any]]) -> None:
        if part:
            self.parts.append(_json(part))
            self.size += len(self.parts[-1])
            part.clear()

    def _packed(self, played: Trajectory) -> dict[str, Any]:
        return {
            "seed": str(played.seed),
            "agent": played.agent,
            "adapter": played.adapter,
            "tools": [self._tool(t["function"]) for t in played.tools],
            "messages": list(_messages(played)),
            "stop": played.stop.value,
            "failure": to_json(played.failure),
            "score": _score(played.score),
            "tokens": played.tokens,
        }

    def _tool(self, function: Mapping[str, Any]) -> int:
        text = json.dumps(function, sort_keys=True)
        number = self.numbers.setdefault(text, len(self.tools))
        if number == len(self.tools):
            self.tools.append(function)
        return number


def _messages(played: Trajectory) -> Iterator[dict[str, Any]]:
    """The messages in order; the agent's with what is known of the turn."""
    for turn in played.turns:
        yield from map(_message, turn.messages)
        yield {
            **_message(turn.reply),
            "tokens": [len(turn.prompt_ids), len(turn.token_ids)],
            "malformed": turn.malformed,
            "truncated": turn.truncated,
            **({"thoughts": turn.thoughts} if turn.thoughts else {}),
        }
    yield from map(_message, played.closing)


def _message(message: Message) -> dict[str, Any]:
    calls = [c["function"] for c in message.get("tool_calls") or ()]
    return {
        "role": message["role"],
        "content": message.get("content") or "",
        "calls": [[c["name"], c["arguments"]] for c in calls],
    }


def _score(score: Score | None) -> dict[str, Any] | None:
    names = ("success", "similarity", "milestones", "minefields")
    return None if score is None else {name: to_json(getattr(score, name)) for name in names}
