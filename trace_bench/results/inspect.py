"""A run's conversations as logs that Inspect reads (inspect_ai, log format version 2, JSON): one
for the base and for the final agent on the held-out tasks, and one for each call of the method.
Trials are epochs. A lost episode is a sample with an error and without a score."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_bench.core.decode import decode
from trace_bench.core.run_files import HASHED, SUMMARY, TASKS
from trace_bench.core.store import fingerprint, read_if_there, whole, write_json
from trace_bench.core.text import file_name
from trace_bench.core.types import Message, Trajectory, grouped
from trace_bench.results.folder import Episode, check_hash, episodes_in, finished, read_run
from trace_bench.results.places import damage
from trace_bench.results.run import Run
from trace_bench.results.statistics import mean, task_means

HELD_OUT = "evaluation/"


def export(folder: Path, out: Path) -> list[Path]:
    """Writes the logs of a finished run to the new folder `out`; its files. Raises UserError, also
    for a run that is unfinished, edited or damaged."""
    with damage(folder):
        run, summary = read_run(folder), finished(folder)
        for name in HASHED:
            check_hash(folder, name, summary)
        with whole(out) as building:
            write(run, folder, building)
    return sorted(out.iterdir())


def write(run: Run, folder: Path, out: Path) -> None:
    """Writes the logs of the run in `folder`."""
    date = datetime.fromtimestamp((folder / SUMMARY).stat().st_mtime, UTC)
    needs: Mapping[str, Sequence[str]] = read_if_there(folder / TASKS)
    for group, some in grouped(episodes(folder), lambda episode: episode[0]).items():
        samples = [_sample(e.read().trajectory, trial, needs) for _, trial, e in some]
        # Inspect lists JSON files whose names begin with a time.
        name = file_name(f"{run.method}-{run.fingerprint}-{group}")
        path = out / f"{date:%Y-%m-%dT%H-%M-%S}+00-00_{name}.json"
        write_json(path, _log(run, group, samples, date.isoformat()))


def episodes(folder: Path) -> Iterator[tuple[str, int, Episode]]:
    """(group, trial, the last attempt) of every stored trial: held-out ones first, by agent
    ("evaluation/final"), then the method's rollouts, by call. Trials of a task count from 0."""
    for name in ("evaluation_trajectories.jsonl", "trajectories.jsonl"):
        lines = episodes_in(folder / name)
        for (group, _), some in grouped(lines, lambda e: (_group(e), e.task)).items():
            last = {episode.line.index: episode for episode in some}
            for trial, index in enumerate(sorted(last)):
                yield group, trial, last[index]


def _group(episode: Episode) -> str:
    return re.sub(r"/attempt\d+$", "", episode.line.call)


def _log(run: Run, group: str, samples: Sequence[dict[str, Any]], date: str) -> dict[str, Any]:
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    used = [sample["model_usage"]["agent"] for sample in samples]
    usage = {name: sum(counts[name] for counts in used) for name in used[0]}
    world = f"{run.suite_name}/{run.settings['evaluation.split']}"
    if not group.startswith(HELD_OUT):
        suite = run.source.get("training.suite", run.suite_name)
        split = run.source.get("training.env.train_split", run.settings.get("env.train_split"))
        world = f"{suite}/{split}"
    key = {"run": run.fingerprint, "group": group}
    facts = {name: run.settings[name] for name in ("accounting", "protocol")}
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
            "dataset": {"name": world, "samples": len(ids), "sample_ids": ids},
            "model": f"trace_bench/{run.settings['model.name']}/{group.removeprefix(HELD_OUT)}",
            "config": {"epochs": max(sample["epoch"] for sample in samples)},
            "metadata": {**facts, "method": run.method, "budget": run.budget, "seed": run.seed},
            "tags": [run.method, group],
        },
        "plan": {},
        "results": {
            "total_samples": len(samples),
            "completed_samples": sum("error" not in sample for sample in samples),
            "scores": [_figures(name, samples) for name in ("success", "similarity")],
        },
        "stats": {"started_at": date, "completed_at": date, "model_usage": {"agent": usage}},
        "samples": samples,
    }


def _figures(name: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over tasks of the mean over epochs, as the project's tables have it."""
    scored = [(s["id"], s["scores"][name]["value"]) for s in samples if "scores" in s]
    means = [*task_means(scored).values()]
    return {
        "name": name,
        "scorer": name,
        "scored_samples": len(scored),
        "unscored_samples": len(samples) - len(scored),
        "metrics": {"mean": {"name": "mean", "value": mean(means)}} if means else {},
    }


def _sample(t: Trajectory, trial: int, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    opening = t.turns[0].messages if t.turns else t.closing
    sent = sum(len(turn.prompt_ids) for turn in t.turns)
    facts = {"seed": t.seed, "agent": t.agent, "adapter": t.adapter, "stop": t.stop.value}
    tools = [tool["function"]["name"] for tool in t.tools]
    sample: dict[str, Any] = {
        "id": t.task,
        "epoch": trial + 1,
        "input": [_message(m) for m in opening] or "",
        "target": "",
        "messages": [*_messages(t)],
        "metadata": {**facts, "needs": needs.get(t.task, []), "tools": tools},
        "model_usage": {"agent": {
            "input_tokens": sent, "output_tokens": t.tokens - sent, "total_tokens": t.tokens,
        }},
    }  # fmt: skip
    if t.failure is not None:
        sample["error"] = {"message": str(t.failure), "traceback": "", "traceback_ansi": ""}
    elif t.score is not None:
        goals = [f"{'hit' if m.hit else 'missed'}: {m.name}" for m in t.score.milestones]
        goals += [f"{'stepped on' if m.hit else 'avoided'}: {m.name}" for m in t.score.minefields]
        success = {"value": int(t.score.success), "explanation": "\n".join(goals)}
        sample["scores"] = {"success": success, "similarity": {"value": t.score.similarity}}
    return sample


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
        return {**out, "arguments": decode(function["arguments"].encode(), dict)}
    except ValueError as error:
        return {**out, "parse_error": f"no JSON object: {error}"}
