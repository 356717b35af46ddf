"""Runs while they go on: one page that is written again every few seconds and loads itself again.

It is made from the files of unfinished run folders, of which any may be missing, short of a part
of its last line, or damaged, and shows all text as text.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import CONFIG, SUMMARY
from trace_bench.core.store import each_line, parse_line, whole_lines, write_text
from trace_bench.core.summary import read_settings
from trace_bench.core.types import CHARGED, Entry, Outcome, Stored, grouped
from trace_bench.results.places import run_folders
from trace_bench.results.statistics import mean

T = TypeVar("T")
LATEST = 3  # conversations
GAP = 20.0  # seconds between two runs of a sweep, whose program starts and loads its model
LONGEST = 4_000  # characters of a message
TALKS = ("trajectories.jsonl", "evaluation_trajectories.jsonl")
COSTS = (
    "run", "budget", "rollouts", "uncharged", "tokens", "tokens of roles", "evaluations", "latest",
)  # fmt: skip
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">{again}
<title>Unfinished runs</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse}}td,th{{padding:.1rem .8rem .1rem 0;text-align:left}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.5rem}}
svg{{width:100%;height:8rem;border:1px solid #8885}}</style>
<h1>Unfinished runs</h1><p>As of {now}.</p>"""


def follow(places: Sequence[Path], out: Path, every: float) -> None:
    """Writes the page of the unfinished runs at or below `places` to `out` until none is left, for
    `GAP` seconds: a sweep starts its runs one after the other. After Ctrl-C the page stays as it
    was last, and no longer loads itself."""
    seen = -math.inf
    try:
        while (folders := unfinished(places)) or time.monotonic() - seen < GAP:
            if folders:
                seen = time.monotonic()
                with suppress(FileNotFoundError):  # a file, or all of a folder, is removed just now
                    write_text(out, page(folders, every))
            time.sleep(every)
    except KeyboardInterrupt:
        write_text(out, page(unfinished(places), None))
        raise


def unfinished(places: Sequence[Path]) -> list[Path]:
    folders = (folder for place in places for folder in run_folders(place, []))
    return [folder for folder in dict.fromkeys(folders) if not (folder / SUMMARY).is_file()]


def page(folders: Sequence[Path], every: float | None) -> str:
    """The runs as they are now. `every`: seconds after which a browser loads the page again."""
    again = "" if every is None else f'<meta http-equiv="refresh" content="{max(1, round(every))}">'
    runs = [_run(folder) for folder in folders]
    return "\n".join((
        HEAD.format(again=again, now=time.strftime("%H:%M:%S")),
        _table(COSTS, [costs for costs, _ in runs]),
        *(part for _, parts in runs for part in parts),
    ))  # fmt: skip


def _run(folder: Path) -> tuple[Sequence[Any], Sequence[str]]:
    """A run's row of `COSTS`, and its part of the page."""
    said: list[str] = []
    config: Mapping[str, Any] = {}
    try:
        config = read_settings(folder / CONFIG)
    except UserError as error:
        said.append(str(error))
    ledger = _read(folder / "ledger.jsonl", Entry, said)
    held_out = _read(folder / "evaluation.jsonl", Outcome, said)
    curve = _by(_last(_read(folder / "curve.jsonl", Outcome, said)), lambda o: o.agent)
    metrics = _read(folder / "metrics.jsonl", dict, said)
    answers = _read(folder / "llm.jsonl", dict, said)
    names = (config.get(group) for group in ("method", "env"))
    title = " on ".join(str(n.get("name")) for n in names if isinstance(n, Mapping))
    title = f"{title or 'run'}, seed {config.get('seed')}: {folder}"
    counted = CHARGED.get(str(config.get("accounting")), CHARGED["strict"])
    spent = sum(entry.purpose in counted for entry in ledger)
    counts = [row.get(key) for row in answers for key in ("prompt_tokens", "completion_tokens")]
    costs = (
        title, config.get("budget"), spent, len(ledger) - spent, sum(e.tokens for e in ledger),
        sum(n for n in counts if isinstance(n, int)), len(held_out), _latest_episode(folder),
    )  # fmt: skip
    parts = [
        f"<h2>{escape(title)}</h2>",
        *_section("Held-out tasks", "agent", _by(_last(held_out), lambda o: o.agent)),
        *_section("Curve on the development tasks", "point", curve),
        _chart("success", [row[2] for row in curve]),
        *_section("Rollouts by purpose", "purpose", _by(ledger, lambda e: e.purpose.value)),
        *_training(metrics),
        *_talks(folder),
        *(f"<p>{escape(text)}</p>" for text in said),
    ]
    return costs, parts


def _read(path: Path, kind: type[T], said: list[str]) -> list[T]:
    """The lines before a damaged one, of which it is said why."""
    values: list[T] = []
    try:
        values.extend(each_line(path, kind))
    except UserError as error:
        said.append(str(error))
    return values


def _latest_episode(folder: Path) -> str:
    """The file of episodes that was written last, the run's own or a yardstick's, and when."""
    names = ("ledger.jsonl", "evaluation.jsonl", "curve.jsonl")
    paths = [p for name in names for p in (folder / name, *folder.glob(f"*/{name}"))]
    there = [(p.stat().st_mtime, p) for p in paths if p.is_file()]
    if not there:
        return "none"
    changed, path = max(there)
    return f"{path.relative_to(folder)}, {max(0.0, time.time() - changed):.0f} s ago"


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
        yield f"<h3>{title}</h3>{_table((what, 'episodes', 'success', 'similarity'), rows)}"


def _training(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [row for row in metrics if {"loss", "reward"} & row.keys()]
    if rows:
        yield "<h3>Training</h3>"
        yield from (_chart(name, [row.get(name) for row in rows]) for name in ("reward", "loss"))
        names = ("adapter", "iteration", "step", "reward", "success", "loss", "kl")
        yield _table(names, [[row.get(name) for name in names] for row in rows[-12:]])


def _talks(folder: Path) -> Iterator[str]:
    paths = [p for name in TALKS if (p := folder / name).is_file()]
    for path in sorted(paths, key=lambda p: p.stat().st_mtime)[-1:]:
        yield "<h3>The latest conversations</h3>"
        for number, _, line in reversed(deque(whole_lines(path), maxlen=LATEST)):
            with suppress(UserError):  # a damaged line is left out
                stored = parse_line(line, path, number, Stored)
                score = stored.trajectory.score
                reached = "lost" if score is None else f"similarity {score.similarity:.2f}"
                yield f"<h4>{escape(f'{stored.trajectory.task}: {stored.call}, {reached}')}</h4>"
                yield f"<pre>{''.join(map(_message, stored.trajectory.messages))}</pre>"


def _message(message: Mapping[str, Any]) -> str:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = "".join(f"\n  calls {f.get('name')}({f.get('arguments')})" for f in functions)
    text = f"{message.get('role')}: {message.get('content') or ''}"
    return escape(f"{text[:LONGEST]}{calls[:LONGEST]}\n")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return f"<td>{'' if value is None else escape(text)}</td>"

    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
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
