"""`python -m trace_bench.show <run folder> [task] [number]`: read a run's trajectories.

Without a task, lists the run's tasks; with one, prints an episode as readable text: messages, tool
calls, results, milestones hit and missed, and the labels of the analysis.

    show RUN --failed --agent final           the held-out tasks that the final agent did not solve
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_if_there
from trace_bench.core.text import visible
from trace_bench.core.types import Message, Stored, Trajectory, grouped
from trace_bench.results.folder import Episode, episodes_in, same_agents
from trace_bench.results.places import damage

FILES = ("trajectories.jsonl", "evaluation_trajectories.jsonl")
WIDTH = 100


@command()
def main(argv: Sequence[str]) -> int:
    parser = parser_of("show", __doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("task", nargs="?", help="a task's id or the end of it")
    parser.add_argument("number", nargs="?", help="which of its episodes")
    parser.add_argument("--agent", help="only of this held-out agent, or of calls that begin so")
    parser.add_argument("--failed", action="store_true", help="only episodes without success")
    options = parser.parse_intermixed_args(argv)
    with damage(options.run):
        print(visible(_text(options)), flush=True)
    return 0


def _text(options: argparse.Namespace) -> str:
    folder: Path = options.run
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give the folder that a run printed last.")
    episodes = [e for name in FILES for e in episodes_in(folder / name)]
    if not episodes:
        raise UserError(f"{folder} holds no trajectories ({', '.join(FILES)}).")
    calls = _calls(episodes)
    if options.agent is not None:
        episodes = _of_agent(folder, episodes, options.agent)
    if options.failed:
        scores = ((e, e.score) for e in episodes)
        episodes = [e for e, score in scores if score is not None and not score.success]
    if not episodes:
        raise UserError(f"no such episode; episodes were run for: {_few(calls)}.")
    if options.task is None:
        return listing(episodes)
    episodes = of_task(episodes, options.task)
    last = len(episodes) - 1
    number = str(last) if options.number is None else options.number
    if not number.isdecimal() or int(number) > last:
        raise UserError(f"no episode {number!r} of this task; there are 0 to {last}.")
    episode = episodes[int(number)].read()
    text = render(episode, _labels(folder).get((episode.call, episode.index), {}))
    if last:
        text += f"\n\nepisode {number} of 0 to {last} of this task; add a number to see another:\n"
        text += "\n".join(_line(i, e) for i, e in enumerate(episodes))
    return text


def listing(episodes: Sequence[Episode]) -> str:
    """One line per task: episodes, mean similarity, successes, and the calls that ran it."""
    by_task = grouped(episodes, lambda episode: episode.task)
    width = min(max(map(len, by_task)), WIDTH)
    lines = [f"{'task':<{width}}  episodes  success  similarity  run for"]
    for task, group in sorted(by_task.items()):
        scores = [e.score for e in group if e.score is not None]
        mean = sum(s.similarity for s in scores) / len(scores) if scores else float("nan")
        wins = sum(s.success for s in scores)
        calls = _few(_calls(group), 3)
        lines.append(f"{task:<{width}}  {len(group):8d}  {wins:7d}  {mean:10.2f}  {calls}")
    return "\n".join(lines)


def of_task(episodes: Sequence[Episode], name: str) -> list[Episode]:
    """The episodes of the one task with this id or this end of an id. Raises UserError."""
    tasks = sorted({e.task for e in episodes})
    named = [name] if name in tasks else [t for t in tasks if t.endswith("/" + name)]
    if not named:
        near = [t for t in tasks if name in t] or tasks
        raise UserError(f"no episode of a task {name!r} in this run; there are: {_few(near)}.")
    if len(named) > 1:
        raise UserError(f"{name!r} is the end of {len(named)} tasks: {_few(named)}. Give more.")
    return [e for e in episodes if e.task == named[0]]


def _of_agent(folder: Path, episodes: Sequence[Episode], agent: str) -> list[Episode]:
    """Those of the held-out agent, or of the one that it equals, and of calls that begin so."""
    same = same_agents(folder).get(agent)
    for calls in ((agent, f"evaluation/{agent}"), (f"evaluation/{same}",)):
        if there := [e for e in episodes if e.line.call.startswith(calls)]:
            return there
    return []


def _labels(folder: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
    """What the analysis said of an episode, by its call and index."""
    rows = read_if_there(folder / "capabilities.json").get("labels", ())
    return {(row["call"], row["index"]): row["labels"] for row in rows}


def _calls(episodes: Sequence[Episode]) -> list[str]:
    """What the episodes were run for."""
    return sorted({"/".join(e.line.call.split("/")[:2]) for e in episodes})


def render(episode: Stored, labels: Mapping[str, Any]) -> str:
    """An episode as text, with the analysis's labels."""
    trajectory = episode.trajectory
    lines = [
        f"task      {trajectory.task}",
        f"call      {episode.call} [{episode.index}], seed {trajectory.seed}",
        f"agent     {trajectory.agent}, adapter {trajectory.adapter or 'none (base model)'}",
        f"tools     {', '.join(t['function']['name'] for t in trajectory.tools) or 'none'}",
        "",
        *_by_turn(trajectory),
        "",
        f"stopped: {trajectory.stop.value}, {trajectory.tokens} tokens",
    ]
    if trajectory.failure is not None:
        lines.append(f"failure ({trajectory.failure.boundary.value}): {trajectory.failure.error}")
    lines += _score(trajectory)
    if labels:
        lines += ["", "labels", *(f"  {name:<36}{label}" for name, label in labels.items())]
    return "\n".join(lines)


def _by_turn(trajectory: Trajectory) -> Iterator[str]:
    for turn in trajectory.turns:
        yield from conversation(turn.messages)
        if turn.kept is not None:
            yield f"[the conversation is read anew, after its first {turn.kept} tokens]"
        yield from _block("agent thinks", turn.thoughts) if turn.thoughts else ()
        yield from conversation([turn.reply])
        if turn.malformed or turn.truncated:
            yield f"[{turn.malformed or 'cut off at the token limit'}]"
    yield from conversation(trajectory.closing)


def conversation(messages: Sequence[Message]) -> Iterator[str]:
    """The messages, one block each, long texts folded."""
    for message in messages:
        role = message["role"]
        speaker = {"assistant": "agent", "tool": "  result"}.get(role, role)
        if message.get("content") or not message.get("tool_calls"):
            yield from _block(str(speaker), str(message.get("content") or "(silence)"))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield from _block("agent calls", f"{function['name']}({_arguments(function)})")


def _score(trajectory: Trajectory) -> Iterator[str]:
    """The score, then each milestone and minefield with whether and where it was met."""
    if (score := trajectory.score) is None:
        yield "no score"
        return
    yield from ("", f"score     {score.similarity:.3f} ({'' if score.success else 'no '}success)")
    for kind, parts, words in (
        ("milestone", score.milestones, ("missed", "HIT")),
        ("minefield", score.minefields, ("avoided", "STEPPED ON")),
    ):
        for i, part in enumerate(parts):
            where = "nowhere" if part.place is None else f"message {part.place}"
            what = f"{words[part.hit]} {part.similarity:.2f} at {where}"
            yield f"  {kind} {i}: {what}  {part.name}"


def _line(number: int, episode: Episode) -> str:
    result = "no score" if episode.score is None else f"{episode.score.similarity:.2f}"
    return f"  {number}: {result}  {episode.line.call} [{episode.line.index}]"


def _arguments(function: Mapping[str, Any]) -> str:
    try:
        values = json.loads(function["arguments"])
        return ", ".join(f"{key}={value!r}" for key, value in values.items())
    except (ValueError, AttributeError):
        return str(function["arguments"])


def _block(speaker: str, text: str) -> Iterator[str]:
    indent = " " * 14
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH - 14) or [""]]
    for i, line in enumerate(lines or [""]):
        yield f"{speaker + ':':<14}{line}" if i == 0 else indent + line


def _few(names: Sequence[str], most: int = 8) -> str:
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


if __name__ == "__main__":
    sys.exit(main())
