"""`python -m trace_bench.show <run folder> [task] [number]`: read a run's trajectories.

Without a task, lists the run's tasks; with one, prints an episode as readable text: messages, tool
calls, results, milestones hit and missed, and the labels of the analysis.

    show RUN --failed --agent final           the held-out tasks that the final agent did not solve
    show RUN --capability converts_values     tasks that need it, or whose label says it is lacking
    show RUN test/0010 --against base         the last of base and of final on this task
"""

from __future__ import annotations

import argparse
import json
import pydoc
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_if_there, read_lines, reason, shown
from trace_bench.core.text import visible
from trace_bench.core.types import Message, Milestone, Stored, Trajectory, grouped
from trace_bench.results.folder import same_agents

CAPABILITIES = "capabilities.json"
FILES = ("trajectories.jsonl", "evaluation_trajectories.jsonl")
WIDTH = 100


def episodes(folder: Path) -> list[Stored]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give the folder that a run printed last.")
    found = [line for name in FILES for line in read_lines(folder / name, Stored)]
    if not found:
        raise UserError(f"{folder} holds no trajectories ({', '.join(FILES)}).")
    return found


def listing(found: Sequence[Stored]) -> str:
    """One line per task: episodes, mean similarity, successes, and the calls that ran it."""
    by_task = grouped(found, lambda episode: episode.trajectory.task)
    width = min(max(map(len, by_task)), WIDTH)
    lines = [f"{'task':<{width}}  episodes  success  similarity  run for"]
    for task, group in sorted(by_task.items()):
        scores = [e.trajectory.score for e in group if e.trajectory.score is not None]
        mean = sum(s.similarity for s in scores) / len(scores) if scores else float("nan")
        wins = sum(s.success for s in scores)
        calls = sorted({"/".join(e.call.split("/")[:2]) for e in group})
        lines.append(f"{task:<{width}}  {len(group):8d}  {wins:7d}  {mean:10.2f}  {_few(calls)}")
    return "\n".join(lines)


def choose(found: Sequence[Stored], name: str) -> list[Stored]:
    tasks = sorted({e.trajectory.task for e in found})
    exact = [t for t in tasks if t == name] or [t for t in tasks if t.endswith("/" + name)]
    if not exact:
        near = [t for t in tasks if name in t] or tasks
        raise UserError(f"no episode of a task {name!r} in this run; there are: {_few(near, 8)}.")
    if len(exact) > 1:
        raise UserError(f"{name!r} is the end of {len(exact)} tasks: {_few(exact, 8)}. Give more.")
    return [e for e in found if e.trajectory.task == exact[0]]


def chosen(found: Sequence[Stored], given: argparse.Namespace, agent: str | None) -> list[Stored]:
    """The episodes that pass the filters. UserError, with what there is, when none does."""
    folder: Path = given.run
    out = list(found)
    if agent is not None:
        out = _played_by(agent, found) or _played_by(same_agents(folder).get(agent), found)
        calls = sorted({"/".join(e.call.split("/")[:2]) for e in found})
        _some(out, f"--agent {agent}", calls)
    if (split := given.split) is not None:
        out = [e for e in out if split in e.trajectory.task.split("/")]
        splits = sorted({"/".join(e.trajectory.task.split("/")[:-1]) for e in found})
        _some(out, f"--split {split}", splits)
    if (capability := given.capability) is not None:
        tags = read_if_there(folder / TASKS)
        labels = _labels(folder).items()
        lacking = {place for place, found in labels if found.get(capability) == "LACKING"}
        names = {name for words in tags.values() for name in words}
        out = [
            e
            for e in out
            if capability in tags.get(e.trajectory.task, ()) or (e.call, e.index) in lacking
        ]
        _some(out, f"--capability {capability}", sorted(names))
    if given.failed:
        out = [e for e in out if (score := e.trajectory.score) is not None and not score.success]
        _some(out, "--failed", ["only successes and lost episodes"])
    return out


def _played_by(agent: str | None, found: Sequence[Stored]) -> list[Stored]:
    names = () if agent is None else (agent, f"evaluation/{agent}")
    return [e for e in found if e.call.startswith(names)]


def _some(found: Sequence[Stored], option: str, there: Sequence[str]) -> None:
    if not found:
        raise UserError(f"no episode passes {option}; there are: {_few(there, 8) or 'none'}.")


def _labels(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The labels of the analysed episodes, if the run has any, by call and index."""
    rows = read_if_there(folder / CAPABILITIES).get("labels", ())
    return {(str(row.get("call")), row.get("index")): row.get("labels", {}) for row in rows}


def render(episode: Stored, labelled: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """An episode as text, with its labels if it is one of those that were `labelled`."""
    trajectory = episode.trajectory
    lines = [
        f"task      {trajectory.task}",
        f"call      {episode.call} [{episode.index}], seed {trajectory.seed}",
        f"agent     {trajectory.agent}, adapter {trajectory.adapter or 'none (base model)'}",
        f"tools     {', '.join(t['function']['name'] for t in trajectory.tools) or 'none'}",
        "",
    ]
    lines += _by_turn(trajectory)
    lines += ["", f"stopped: {trajectory.stop.value}, {trajectory.tokens} tokens"]
    if trajectory.failure is not None:
        lines.append(f"failure ({trajectory.failure.boundary.value}): {trajectory.failure.error}")
    for number, turn in enumerate(trajectory.turns, start=1):
        if turn.malformed or turn.truncated:
            lines.append(f"turn {number}: {turn.malformed or 'cut off at the token limit'}")
    lines += _score(trajectory)
    if labels := labelled.get((episode.call, episode.index)):
        lines += ["", "labels", *(f"  {name:<36}{label}" for name, label in labels.items())]
    return "\n".join(lines)


def _by_turn(trajectory: Trajectory) -> Iterator[str]:
    """The conversation, with a line wherever another adapter takes over."""
    acting = {turn.adapter for turn in trajectory.turns}
    before = None
    for turn in trajectory.turns:
        yield from conversation(turn.messages)
        name = turn.adapter or "none (base model)"
        if len(acting) > 1 and name != before:
            yield f"[adapter {name}]"
        before = name
        if turn.kept is not None:
            yield f"[the conversation is read anew, after its first {turn.kept} tokens]"
        yield from _block("agent thinks", turn.thoughts) if turn.thoughts else ()
        yield from conversation([turn.reply])
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


@command()
def main(argv: Sequence[str]) -> int:
    given = _parser().parse_intermixed_args(argv)
    text = visible(_asked(given))
    if sys.stdout.isatty() and text.count("\n") >= shutil.get_terminal_size().lines:
        pydoc.pager(text)
    else:
        print(text, flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("show", __doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("task", nargs="?", help="a task's id or the end of it")
    parser.add_argument("number", nargs="?", help="which of its episodes")
    parser.add_argument("--agent", help="only of this held-out agent, or of calls that begin so")
    parser.add_argument("--split", help="only tasks of this split")
    parser.add_argument("--capability", help="only tasks that need it or whose label lacks it")
    parser.add_argument("--failed", action="store_true", help="only episodes without success")
    parser.add_argument("--against", metavar="AGENT", help="this agent first, then --agent (final)")
    return parser


def _asked(given: argparse.Namespace) -> str:
    """The answer. Raises UserError, also for damaged files."""
    folder: Path = given.run
    try:
        return _answer(given)
    except OSError as error:
        raise UserError(f"{shown(folder)} cannot be read: {reason(error)}.") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{shown(folder)} is damaged ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    except RecursionError as error:
        raise UserError(f"{shown(folder)} is damaged: a value in it is too deep.") from error


def _answer(given: argparse.Namespace) -> str:
    folder: Path = given.run
    everything = episodes(folder)
    if given.against is not None:
        if given.task is None or given.number is not None:
            raise UserError(
                "--against needs a task and no number: the last episode of two agents on one task "
                "is shown."
            )
        of_task = choose(everything, given.task)
        agents = (given.against, given.agent or "final")
        pair = [chosen(of_task, given, agent) for agent in agents]
        return f"\n\n{'=' * WIDTH}\n\n".join(render(own[-1], _labels(folder)) for own in pair)
    found = chosen(everything, given, given.agent)
    if given.task is None:
        return listing(found)
    group = choose(found, given.task)
    number = len(group) - 1
    if given.number is not None:
        if not given.number.isdecimal() or int(given.number) >= len(group):
            raise UserError(
                f"no episode {given.number!r} of this task; there are 0 to {len(group) - 1}."
            )
        number = int(given.number)
    episode = group[number]
    text = render(episode, _labels(folder))
    if len(group) > 1:
        text += f"\n\nepisode {number} of 0 to {len(group) - 1} of this task; add a number to see "
        text += "another:\n" + "\n".join(_summary(i, e) for i, e in enumerate(group))
    return text


def _score(trajectory: Trajectory) -> list[str]:
    """The score, then each milestone and minefield with whether and where it was met."""
    if trajectory.score is None:
        return ["no score"]
    score = trajectory.score
    verdict = "success" if score.success else "no success"
    lines = ["", f"score     {score.similarity:.3f} ({verdict})"]
    for kind, found, words in (
        ("milestone", score.milestones, ("missed", "HIT")),
        ("minefield", score.minefields, ("avoided", "STEPPED ON")),
    ):
        lines += [_milestone(f"{kind} {i}", m, words[m.hit]) for i, m in enumerate(found)]
    return lines


def _milestone(number: str, milestone: Milestone, word: str) -> str:
    """A milestone's line. Older runs have no names, only numbers."""
    where = "nowhere" if milestone.place is None else f"message {milestone.place}"
    name = "" if milestone.name == number else f"  {milestone.name}"
    return f"  {number}: {word} {milestone.similarity:.2f} at {where}{name}"


def _summary(number: int, episode: Stored) -> str:
    score = episode.trajectory.score
    result = "no score" if score is None else f"{score.similarity:.2f}"
    return f"  {number}: {result}  {episode.call} [{episode.index}]"


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


def _few(names: Sequence[str], most: int = 3) -> str:
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


if __name__ == "__main__":
    sys.exit(main())
