"""A run while it goes on: a page that is written again every few seconds and loads itself again.

It is made from the files of an unfinished run folder, of which any may be missing, short of a part
of its last line, or damaged, and shows all text as text.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core.decode import Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import CONFIG, SUMMARY
from trace_bench.core.store import each_line, plain_file, write_text
from trace_bench.core.summary import read_settings
from trace_bench.core.types import CHARGED, Entry, Outcome, Stored, grouped
from trace_bench.results.statistics import mean

T = TypeVar("T")
LATEST = 3  # conversations
TAIL = 4_000_000  # bytes at the end of a file of conversations, in which the latest are looked for
LONGEST = 4_000  # characters of a message
TALKS = ("trajectories.jsonl", "evaluation_trajectories.jsonl")
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">{again}<title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse}}td,th{{padding:.1rem .8rem .1rem 0;text-align:left}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.5rem}}
svg{{width:100%;height:8rem;border:1px solid #8885}}progress{{width:100%}}</style>"""


def follow(folder: Path, out: Path, every: float) -> None:
    """Writes the page of a run to `out` until its summary is there. Raises UserError for a folder
    without a run, also where it is removed meanwhile. After Ctrl-C the page stays as it was last,
    and no longer loads itself."""
    try:
        while True:
            if not (folder / CONFIG).is_file():
                raise UserError(f"{folder} has no run (no {CONFIG}). Name the folder of a run.")
            if (folder / SUMMARY).is_file():
                return
            with suppress(FileNotFoundError):  # a file, or all of the folder, is removed just now
                write_text(out, page(folder, every))
            time.sleep(every)
    except KeyboardInterrupt:
        write_text(out, page(folder, None))
        raise


def page(folder: Path, every: float | None) -> str:
    """The run as it is now. `every`: seconds after which a browser loads the page again."""
    said: list[str] = []
    config: Mapping[str, Any] = {}
    with _saying(said):
        config = read_settings(folder / CONFIG)
    ledger = _read(folder / "ledger.jsonl", Entry, said)
    held_out = _read(folder / "evaluation.jsonl", Outcome, said)
    points = _read(folder / "curve.jsonl", Outcome, said)
    curve = _by(_last(points), lambda o: o.agent)
    metrics = _read(folder / "metrics.jsonl", dict, said)
    names = (config.get(group) for group in ("method", "env"))
    title = " on ".join(str(n.get("name")) for n in names if isinstance(n, Mapping)) or folder.name
    budget = config.get("budget")
    counted = CHARGED.get(str(config.get("accounting")), CHARGED["strict"])
    spent = sum(entry.purpose in counted for entry in ledger)
    free = f", and {len(ledger) - spent} uncharged" if spent < len(ledger) else ""
    again = "" if every is None else f'<meta http-equiv="refresh" content="{max(1, round(every))}">'
    parts = [
        HEAD.format(again=again, title=escape(title)),
        f"<h1>{escape(title)}</h1><p>{escape(str(folder))}, as of {time.strftime('%H:%M:%S')}. "
        f"<strong>{escape(_phase(folder))}</strong></p>",
        f'<progress value="{spent}" max="{int(budget)}"></progress>'
        if isinstance(budget, int) and budget > 0
        else "",
        f"<p>{spent} rollouts, of a budget of {escape(str(budget))}{free}; "
        "evaluations follow the last one</p>",
        *_section("Held-out tasks", "agent", _by(_last(held_out), lambda o: o.agent)),
        *_section("Curve on the development tasks", "point", curve),
        _chart("success", [row[2] for row in curve]),
        *_section("Rollouts by purpose", "purpose", _by(ledger, lambda e: e.purpose.value)),
        *_training(metrics),
        *_talks(folder),
        *(f"<p>{escape(text)}</p>" for text in said),
    ]
    return "\n".join(parts)


@contextmanager
def _saying(said: list[str]) -> Iterator[None]:
    """What cannot be read in the block is said."""
    try:
        yield
    except (UserError, OSError) as error:
        said.append(str(error))


def _read(path: Path, kind: type[T], said: list[str]) -> list[T]:
    """The lines before a damaged one."""
    values: list[T] = []
    with _saying(said):
        values.extend(each_line(path, kind))
    return values


def _phase(folder: Path) -> str:
    """What the file that was written last tells: the call or the agent of its last line."""
    names = ("ledger.jsonl", "evaluation.jsonl", "curve.jsonl")
    paths = [place / name for place in (folder, *folder.glob("*/")) for name in names]
    there = [(p.stat().st_mtime_ns, p) for p in paths if p.is_file()]
    if not there:
        return "It starts."
    changed, path = max(there)
    last = next(iter(_latest(path, dict, 1)), {})
    what = str(last.get("call") or f"evaluation of {last.get('agent')}")
    whose = "" if path.parent == folder else f" of {path.parent.name}"
    ago = max(0.0, time.time() - changed / 1e9)
    return f"Its last episode was of {what}{whose}, {ago:.0f} s ago."


def _latest(path: Path, kind: type[T], count: int) -> list[T]:
    """The last lines at the end of a file that are whole and can be read, the last one first."""
    values: list[T] = []
    with suppress(UserError, OSError), plain_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        for line in reversed(file.read().split(b"\n")[:-1]):
            with suppress(Unreadable):
                values.append(decode(line, kind))
            if len(values) == count:
                break
    return values


def _last(lines: Iterable[Outcome]) -> Iterable[Outcome]:
    """Each episode once: an episode that was lost is played again, and has a line of each try."""
    return {(o.agent, o.task, o.trial): o for o in lines}.values()


def _by(lines: Iterable[Any], key: Any) -> list[tuple[Any, ...]]:
    """(group, episodes, mean success, mean similarity) in order; lost episodes are in no mean."""
    rows = []
    for name, some in grouped(lines, key).items():
        scores = [o.score if isinstance(o, Outcome) else o for o in some]
        figures = [s for s in scores if s is not None and s.similarity is not None]
        columns = [[s.success for s in figures], [s.similarity for s in figures]]
        rows.append((name, len(some), *(mean(column) if column else None for column in columns)))
    return rows


def _section(title: str, what: str, rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    if rows:
        yield f"<h2>{title}</h2>{_table((what, 'episodes', 'success', 'similarity'), rows)}"


def _training(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [row for row in metrics if {"loss", "reward"} & row.keys()]
    if not rows:
        return
    yield "<h2>Training</h2>"
    for name in ("reward", "loss"):
        yield _chart(name, [row.get(name) for row in rows])
    names = ("adapter", "iteration", "step", "reward", "success", "loss", "kl")
    columns = [name for name in names if any(name in row for row in rows)]
    yield _table(columns, [[row.get(name) for name in columns] for row in rows[-12:]])


def _talks(folder: Path) -> Iterator[str]:
    paths = [p for name in TALKS if (p := folder / name).is_file()]
    for path in sorted(paths, key=lambda p: p.stat().st_mtime_ns)[-1:]:
        yield "<h2>The latest conversations</h2>"
        for stored in _latest(path, Stored, LATEST):
            played = stored.trajectory
            score = "lost" if played.score is None else f"similarity {played.score.similarity:.2f}"
            yield f"<h3>{escape(f'{played.task}: {stored.call}, {score}')}</h3><pre>"
            yield from map(_message, played.messages)
            yield "</pre>"


def _message(message: Mapping[str, Any]) -> str:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = "".join(f"\n  calls {f.get('name')}({f.get('arguments')})" for f in functions)
    text = f"{message.get('role')}: {message.get('content') or ''}"
    return escape(f"{text[:LONGEST]}{calls[:LONGEST]}\n")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [[f"{v:.4g}" if isinstance(v, float) else v for v in row] for row in rows]
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if v is None else escape(str(v))}</td>" for v in row) + "</tr>"
        for row in cells
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{body}</table>"


def _chart(name: str, values: Sequence[Any]) -> str:
    """A line through the values that are finite numbers; nothing for fewer than two."""
    points = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if len(points) < 2:
        return ""
    low, high = min(points), max(points)
    step, scale = 100 / (len(points) - 1), 36 / ((high - low) or 1)
    line = " ".join(f"{i * step:.2f},{38 - (v - low) * scale:.2f}" for i, v in enumerate(points))
    return (
        f"<p>{name}, {low:.4g} to {high:.4g}</p>"
        '<svg viewBox="0 0 100 40" preserveAspectRatio="none"><polyline fill="none" stroke="#36c" '
        f'vector-effect="non-scaling-stroke" points="{line}"/></svg>'
    )
