"""Puts the report together: one HTML file with everything in it.

The data is compressed (gzip, base64) and unpacked by the browser when it is shown. Nothing of it is
ever parsed as HTML, and the page's content security policy forbids every request.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from trace_bench.core.alike import same_agents
from trace_bench.core.errors import UserError
from trace_bench.report import runs
from trace_bench.report.runs import Run, Runs
from trace_bench.report.talks import Talks
from trace_bench.results.compare import environment_code

SUMMARY = (
    "method", "env", "suite", "suite_name", "suite_data", "split", "train_split", "dev_split",
    "protocol", "accounting", "policy", "model", "experiment", "seed", "budget", "rollouts",
    "score", "base_score", "difference", "table", "routing", "routing_dev", "llm", "health",
    "curve", "curve_caveat", "capabilities", "adapters", "wall_s", "versions", "git", "fingerprint",
)  # fmt: skip
MODULES = ("dom", "data", "charts", "table", "overview", "run", "tasks", "conversation", "main")


@dataclass(frozen=True)
class Made:
    """The page, and what was left out of it in words."""

    html: str
    left_out: tuple[str, ...]


def build(found: Runs, limit: int, plotly: Path | None = None) -> Made:
    """The report of these runs, in at most about `limit` bytes if leaving out conversations of
    training can achieve that. The charts are drawn by the build of plotly.js in the file `plotly`,
    or by the one in the Python package. UserError without either."""
    blocks = {"plotly": _packed(_plotly() if plotly is None else _other(plotly))}
    talks, left_out = [Talks() for _ in found.runs], []
    for number, (run, own) in enumerate(zip(found.runs, talks, strict=True)):
        try:
            own.add(run.folder / "evaluation_trajectories.jsonl")
        except UserError as error:
            left_out.append(f"{run.name}: held-out conversations: {error}")
        blocks |= _parts(number, own, 0)
    left_out += _training(found.runs, talks, blocks, limit)
    for number, (run, own) in enumerate(zip(found.runs, talks, strict=True)):
        blocks[f"run-{number}"] = _json(_run(run, own))
    compared, remark = runs.differences(found.runs)
    index = {
        "runs": [_head(run) for run in found.runs],
        "pairs": compared,
        "remarks": [text for text in (remark, *left_out) if text],
        "skipped": list(found.skipped),
    }
    blocks["index"] = _json(index)
    title = found.runs[0].name if len(found.runs) == 1 else f"{len(found.runs)} runs"
    return Made(_page(title, blocks), tuple(left_out))


def _training(
    found: Sequence[Run], talks: Sequence[Talks], blocks: dict[str, str], limit: int
) -> list[str]:
    """Adds the conversations of training as long as there is room; says which have none."""
    left_out = []
    size = sum(map(len, blocks.values()))
    for number, (run, own) in enumerate(zip(found, talks, strict=True)):
        both = own.copy()
        try:
            both.add(run.folder / "trajectories.jsonl")
        except UserError as error:
            left_out.append(f"{run.name}: conversations of training: {error}")
            continue
        extra = _parts(number, both, len(own.parts))
        size += sum(map(len, extra.values()))
        if size > limit:
            size -= sum(map(len, extra.values()))
            left_out.append(f"{run.name}: conversations of training, for the size of the file")
            continue
        own.parts, own.places, own.tools = both.parts, both.places, both.tools
        blocks |= extra
    return left_out


def _parts(number: int, talks: Talks, start: int) -> dict[str, str]:
    return {f"talk-{number}-{i}": _json(p) for i, p in enumerate(talks.parts) if i >= start}


def _head(run: Run) -> dict[str, Any]:
    """What the overview needs of a run."""
    keys = ("method", "env", "suite", "suite_name", "split", "model", "seed", "budget", "score",
            "base_score", "difference")  # fmt: skip
    own = {"name": run.name, "folder": str(run.folder), "code": environment_code(run.record)}
    return own | {k: run.summary.get(k) for k in keys}


def _run(run: Run, talks: Talks) -> dict[str, Any]:
    return {
        "summary": {k: run.summary[k] for k in SUMMARY if k in run.summary},
        "settings": dict(run.settings),
        "tasks": runs.tasks(run),
        "capabilities": runs.capabilities(run),
        "training": runs.curves(run),
        "talks": talks.places,
        "same": same_agents(run.folder),
        "tools": talks.tools,
    }


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


def _other(path: Path) -> bytes:
    """A build of plotly.js, which says in its first lines that it is one."""
    try:
        code = path.read_bytes()
    except OSError as error:
        raise UserError(f"--plotly {path} cannot be read: {error.strerror}.") from error
    if b"plotly.js" not in code[:500] or b"MIT" not in code[:500]:
        raise UserError(
            f"--plotly {path} is no build of plotly.js: its first lines hold neither its name nor "
            "its licence. Give a file such as plotly-basic.min.js, or leave --plotly out."
        )
    return code


def _json(value: Any) -> str:
    return _packed(json.dumps(value, separators=(",", ":")).encode())


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _page(title: str, blocks: Mapping[str, str]) -> str:
    own = resources.files(__name__)

    def text(name: str) -> str:
        return (own / name).read_text(encoding="utf-8")

    def module(name: str) -> str:
        code = base64.b64encode(text(f"{name}.js").encode()).decode()
        return f"data:text/javascript;base64,{code}"

    imports = json.dumps({"imports": {f"report/{name}": module(name) for name in MODULES}})
    data = "\n".join(
        f'<script type="text/plain" id="data-{name}">{packed}</script>'
        for name, packed in blocks.items()
    )
    page = text("page.html")
    for mark, value in (
        ("{{title}}", html.escape(title)),
        ("{{style}}", text("page.css")),
        ("{{imports}}", imports),
        ("{{data}}", data),
    ):
        page = page.replace(mark, value, 1)
    return page
