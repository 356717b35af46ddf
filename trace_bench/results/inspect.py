"""Logs that Inspect reads (inspect_ai, log format version 2, JSON): one for each agent on the
held-out tasks and for each call of the method (`inspect view --log-dir PLACE`).

Trials are epochs. A lost episode is a sample with an error and without a score. The agents of which
a run keeps no conversation have samples without messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import fingerprint, read_if_there, read_lines, whole, write_text
from trace_bench.core.text import file_name
from trace_bench.core.types import Message, Outcome, Stored, Trajectory, grouped
from trace_bench.results.folder import check_hash, finished, read_run
from trace_bench.results.places import damage
from trace_bench.results.run import Run
from trace_bench.results.statistics import mean, task_means

VERSION = 2
HELD_OUT = "evaluation/"
SCORES = ("success", "similarity")


def export(folder: Path, out: Path) -> list[Path]:
    """Writes the logs of a finished run to the folder `out`, which has this name when all are in
    it; its files. Raises UserError, also for a run that is unfinished, edited or damaged."""
    with damage(folder):
        for file in folder.iterdir():
            if not file.resolve().is_relative_to(folder.resolve()):
                raise UserError(f"{folder}: {file.name} is a link to a place outside of the folder")
        run, summary = read_run(folder), finished(folder)  # unedited, and within its budget
        for name in summary.hashes:
            check_hash(folder, name, summary)
        with whole(out) as building:
            write(run, folder, building)
    return sorted(p for p in out.rglob("*") if p.is_file())


def write(run: Run, folder: Path, out: Path) -> None:
    """Writes the logs of the run in `folder`."""
    made_at = (folder / "summary.json").stat().st_mtime
    date = datetime.fromtimestamp(made_at, UTC).isoformat()
    needs: Mapping[str, Sequence[str]] = read_if_there(folder / TASKS)
    groups = grouped(episodes(folder), lambda episode: episode.group)
    logs = {group: _last(some, needs) for group, some in groups.items()}
    for line in read_lines(folder / "evaluation.jsonl", Outcome):
        group = f"{HELD_OUT}{line.agent}"
        if group not in groups:
            logs.setdefault(group, {})[line.task, line.trial] = _bare(line)
    for group, samples in logs.items():
        log = _log(run, group, list(samples.values()), date)
        # Inspect lists JSON files whose names begin with a time.
        name = file_name(f"{run.method}-{run.fingerprint}-{group}")
        write_text(out / f"{date[:19].replace(':', '-')}+00-00_{name}.json", json.dumps(log))


def _last(
    some: Iterable[Episode], needs: Mapping[str, Sequence[str]]
) -> dict[tuple[str, int], dict[str, Any]]:
    """A sample per task and trial: the last attempt."""
    last: dict[tuple[str, int], Episode] = {}
    for episode in some:
        key = (episode.trajectory.task, episode.trial)
        if key not in last or last[key].attempt < episode.attempt:
            last[key] = episode
    return {key: _sample(episode, needs) for key, episode in last.items()}


def _log(run: Run, group: str, samples: list[dict[str, Any]], date: str) -> dict[str, Any]:
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    used = [sample["model_usage"]["agent"] for sample in samples]
    usage = {name: sum(counts[name] for counts in used) for name in used[0]}
    held_out = group.startswith(HELD_OUT)
    world = (
        f"{run.suite_name}/{run.settings['evaluation.split' if held_out else 'env.train_split']}"
    )
    key = {"run": run.fingerprint, "group": group}
    facts = {name: getattr(run, name) for name in ("method", "budget", "seed", "fingerprint")}
    facts |= {name: run.settings[name] for name in ("accounting", "protocol")}
    agent = group.removeprefix(HELD_OUT)
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            # Inspect's tables know a log by these two; `run_id` is common to a run's logs.
            "eval_id": fingerprint(key, 22),
            "task_id": fingerprint({**key, "of": "task"}, 22),
            "created": date,
            "run_id": run.fingerprint,
            "task": world,
            "task_args": {"agent": agent},
            "dataset": {"name": world, "samples": len(ids), "sample_ids": ids},
            "model": f"trace_bench/{run.settings['model.name']}/{agent}",
            "config": {"epochs": max(sample["epoch"] for sample in samples)},
            "metadata": facts,
            "tags": [run.method, group],
            "packages": {k: v for k, v in run.versions.items() if v is not None},
        },
        "plan": {},
        "results": {
            "total_samples": len(samples),
            "completed_samples": sum("error" not in sample for sample in samples),
            "scores": [_figures(name, samples) for name in SCORES],
        },
        "stats": {
            "started_at": date,
            "completed_at": date,
            "model_usage": {"agent": usage},
        },
        "samples": samples,
    }


def _figures(name: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over tasks of the mean over epochs, as the project's tables have it."""
    scored = [s for s in samples if name in s.get("scores", {})]
    means = task_means((s["id"], s["scores"][name]["value"]) for s in scored).values()
    return {
        "name": name,
        "scorer": name,
        "scored_samples": len(scored),
        "unscored_samples": len(samples) - len(scored),
        "metrics": {"mean": {"name": "mean", "value": mean([*means])}} if scored else {},
    }


def _sample(episode: Episode, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    t = episode.trajectory
    opening = t.turns[0].messages if t.turns else t.closing
    sample = {
        "id": t.task,
        "epoch": episode.trial + 1,
        "input": [_message(m) for m in opening] or "",
        "target": "",
        "messages": [*_messages(t)],
        "metadata": {
            "seed": t.seed,
            "agent": t.agent,
            "adapter": t.adapter,
            "adapters": [turn.adapter for turn in t.turns],
            "stop": t.stop.value,
            "attempt": episode.attempt,
            "needs": needs.get(t.task, []),
            "tools": [tool["function"]["name"] for tool in t.tools],
        },
        **_usage(
            sum(len(turn.prompt_ids) for turn in t.turns),
            sum(len(turn.token_ids) for turn in t.turns),
            t.tokens,
        ),
    }
    return sample | _result(t)


def _usage(read: int, written: int, total: int) -> dict[str, Any]:
    counts = {"input_tokens": read, "output_tokens": written, "total_tokens": total}
    return {"model_usage": {"agent": counts}}


def _result(t: Trajectory) -> dict[str, Any]:
    if t.failure is not None:
        return _error(str(t.failure))
    if t.score is None:
        return {}
    parts = [
        f"{'hit' if m.hit else 'missed'}: {m.name} ({m.similarity:.2f})" for m in t.score.milestones
    ]
    parts += [f"{'stepped on' if m.hit else 'avoided'}: {m.name}" for m in t.score.minefields]
    success = {"value": int(t.score.success), "explanation": "\n".join(parts)}
    return {"scores": {"success": success, "similarity": {"value": t.score.similarity}}}


def _bare(line: Outcome) -> dict[str, Any]:
    """A sample of an outcome without a conversation."""
    sample = {
        "id": line.task,
        "epoch": line.trial + 1,
        "input": "",
        "target": "",
        "metadata": {k: getattr(line, k) for k in ("adapter", "stop", "tokens", "attempt")},
        **_usage(0, 0, line.tokens),
    }
    if line.lost:
        return sample | _error(str(line.error))
    scores = {"success": {"value": int(line.success)}, "similarity": {"value": line.similarity}}
    return sample | {"scores": scores}


def _error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "traceback": "", "traceback_ansi": ""}}


def _messages(t: Trajectory) -> Iterator[dict[str, Any]]:
    for turn in t.turns:
        yield from map(_message, turn.messages)
        reply = _message(turn.reply)
        if turn.thoughts:
            said = {"type": "text", "text": reply["content"]}
            reply["content"] = [{"type": "reasoning", "reasoning": turn.thoughts}, said]
        yield reply
    yield from map(_message, t.closing)


def _message(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
    if message["role"] == "tool":
        out |= {"tool_call_id": message.get("tool_call_id"), "function": message.get("name")}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_call(call) for call in calls]
    return out


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments, error = read_arguments(function["arguments"])
    out = {"id": call["id"], "function": function["name"], "arguments": arguments}
    return out | ({"parse_error": error} if error else {})


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """A call's arguments as an object; where they are none, {} and why."""
    try:
        arguments = json.loads(text)
    except ValueError as error:
        return {}, f"no JSON: {error}"
    return (arguments, None) if isinstance(arguments, dict) else ({}, "no JSON object")


# -- the stored episodes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """`group`: the held-out agent ("evaluation/final") or the method's call; `trial`: of the task
    in its group, from 0; `attempt`: how often it had been lost before."""

    group: str
    trial: int
    attempt: int
    trajectory: Trajectory


def episodes(folder: Path) -> Iterator[Episode]:
    """Every stored episode of a run: held-out ones first, then the method's rollouts."""
    for name in ("evaluation_trajectories.jsonl", "trajectories.jsonl"):
        lines = read_lines(folder / name, Stored)
        of_task = grouped(lines, lambda line: (_group(line.call)[0], line.trajectory.task))
        ranks = {key: sorted({line.index for line in some}) for key, some in of_task.items()}
        for line in lines:
            group, attempt = _group(line.call)
            trial = ranks[group, line.trajectory.task].index(line.index)
            yield Episode(group, trial, attempt, line.trajectory)


def _group(call: str) -> tuple[str, int]:
    """The call without its attempt, and the attempt."""
    group, mark, attempt = call.rpartition("/attempt")
    return (group, int(attempt)) if mark and attempt.isdigit() else (call, 0)
