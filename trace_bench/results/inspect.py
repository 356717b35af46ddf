"""Logs that Inspect reads (inspect_ai, log format version 2, JSON) of the conversations that a run
keeps: one for the base and for the final agent on the held-out tasks, and one for each call of the
method (`inspect view --log-dir PLACE`). Trials are epochs. A lost episode is a sample with an error
and without a score."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_bench.core.run_files import TASKS
from trace_bench.core.store import fingerprint, read_if_there, read_lines, whole, write_text
from trace_bench.core.text import file_name
from trace_bench.core.types import Message, Stored, Trajectory, grouped
from trace_bench.results.folder import check_hash, finished, read_run
from trace_bench.results.places import damage
from trace_bench.results.run import Run
from trace_bench.results.statistics import mean, task_means

HELD_OUT = "evaluation/"
SCORES = ("success", "similarity")


def export(folder: Path, out: Path) -> list[Path]:
    """Writes the logs of a finished run to the folder `out`, which has this name when all are in
    it; its files. Raises UserError, also for a run that is unfinished, edited or damaged."""
    with damage(folder):
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
    for group, some in grouped(episodes(folder), lambda episode: episode[0]).items():
        log = _log(run, group, [_sample(played, trial, needs) for _, trial, played in some], date)
        # Inspect lists JSON files whose names begin with a time.
        name = file_name(f"{run.method}-{run.fingerprint}-{group}")
        write_text(out / f"{date[:19].replace(':', '-')}+00-00_{name}.json", json.dumps(log))


def _log(run: Run, group: str, samples: Sequence[dict[str, Any]], date: str) -> dict[str, Any]:
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
        "version": 2,
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
        "stats": {"started_at": date, "completed_at": date, "model_usage": {"agent": usage}},
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


def _sample(t: Trajectory, trial: int, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    opening = t.turns[0].messages if t.turns else t.closing
    sample = {
        "id": t.task,
        "epoch": trial + 1,
        "input": [_message(m) for m in opening] or "",
        "target": "",
        "messages": [*_messages(t)],
        "metadata": {
            "seed": t.seed,
            "agent": t.agent,
            "adapter": t.adapter,
            "stop": t.stop.value,
            "needs": needs.get(t.task, []),
            "tools": [tool["function"]["name"] for tool in t.tools],
        },
        "model_usage": {"agent": {
            "input_tokens": sum(len(turn.prompt_ids) for turn in t.turns),
            "output_tokens": sum(len(turn.token_ids) for turn in t.turns),
            "total_tokens": t.tokens,
        }},
    }  # fmt: skip
    return sample | _result(t)


def _result(t: Trajectory) -> dict[str, Any]:
    if t.failure is not None:
        message = str(t.failure)
        return {"error": {"message": message, "traceback": "", "traceback_ansi": ""}}
    if t.score is None:
        return {}
    parts = [
        f"{'hit' if m.hit else 'missed'}: {m.name} ({m.similarity:.2f})" for m in t.score.milestones
    ]
    parts += [f"{'stepped on' if m.hit else 'avoided'}: {m.name}" for m in t.score.minefields]
    success = {"value": int(t.score.success), "explanation": "\n".join(parts)}
    return {"scores": {"success": success, "similarity": {"value": t.score.similarity}}}


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
    out = {"id": call["id"], "function": function["name"], "arguments": {}}
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        return out | {"parse_error": f"no JSON: {error}"}
    if not isinstance(arguments, dict):
        return out | {"parse_error": "no JSON object"}
    return out | {"arguments": arguments}


def episodes(folder: Path) -> Iterator[tuple[str, int, Trajectory]]:
    """(group, trial, the last attempt) of every stored trial: held-out ones first, by agent
    ("evaluation/final"), then the method's rollouts, by call. Trials of a task count from 0."""
    for name in ("evaluation_trajectories.jsonl", "trajectories.jsonl"):
        lines = read_lines(folder / name, Stored)
        for (group, _), some in grouped(lines, lambda s: (_group(s), s.trajectory.task)).items():
            last = {stored.index: stored.trajectory for stored in some}
            for trial, index in enumerate(sorted(last)):
                yield group, trial, last[index]


def _group(stored: Stored) -> str:
    return re.sub(r"/attempt\d+$", "", stored.call)
