"""Logs that Inspect reads (inspect_ai, log format version 2, JSON): one for each agent on the
held-out tasks and for each call of the method (`inspect view --log-dir PLACE`); and its viewer.

Trials are epochs. A lost episode is a sample with an error and without a score. The agents of which
a run keeps no conversation have samples without messages."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_bench.core.command import whole_number
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import (
    brief,
    file_hash,
    fingerprint,
    read_if_there,
    read_lines,
    whole,
    write_text,
)
from trace_bench.core.text import file_name
from trace_bench.core.types import Message, Outcome, Trajectory, grouped
from trace_bench.results.folder import finished, read_run
from trace_bench.results.places import damage
from trace_bench.results.run import Run
from trace_bench.results.statistics import mean, task_means
from trace_bench.results.stored import HELD_OUT, Episode, episodes

VERSION = 2
SCORES = ("success", "similarity")


FILES = (
    "config.yaml", "summary.json", "ledger.jsonl", "trajectories.jsonl", "evaluation.jsonl",
    "evaluation_trajectories.jsonl", "curve.jsonl", "metrics.jsonl", "capabilities.json",
    "agent.json", TASKS,
)  # fmt: skip
"""What is checked before it is read."""
Sample = dict[str, Any]


def export(folder: Path, out: Path) -> list[Path]:
    """Writes the logs of a finished run to the folder `out`, which has this name when all are in
    it; its files. Raises UserError, also for a run that is unfinished, edited or damaged."""
    with damage(folder):
        run = read_run(folder)  # finished, unedited, and within its budget
        _check_files(folder)
        with whole(out) as building:
            building.mkdir()
            write(run, folder, building)
    return sorted(p for p in out.rglob("*") if p.is_file())


def _check_files(folder: Path) -> None:
    """Raises UserError for files of other places, and for edited ones."""
    there = [name for name in FILES if (folder / name).exists()]
    for name in there:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder}: {name} is a link to a place outside of the folder")
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is no plain file")
    for name, digest in finished(folder).hashes.items():
        if (file_hash(folder / name) if name in there else None) != digest:
            raise UserError(
                f"{folder}: {brief(Path(name))} is not the file that the summary was made from"
            )


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
) -> dict[tuple[str, int], Sample]:
    """A sample per task and trial: the last attempt."""
    last: dict[tuple[str, int], Episode] = {}
    for episode in some:
        key = (episode.trajectory.task, episode.trial)
        if key not in last or last[key].attempt < episode.attempt:
            last[key] = episode
    return {key: _sample(episode, needs) for key, episode in last.items()}


def _log(run: Run, group: str, samples: list[Sample], date: str) -> dict[str, Any]:
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


def _sample(episode: Episode, needs: Mapping[str, Sequence[str]]) -> Sample:
    t = episode.trajectory
    opening = t.turns[0].messages if t.turns else t.closing
    sample: dict[str, Any] = {
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
            "purpose": episode.purpose,
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
    sample: dict[str, Any] = {
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


# -- its viewer, on this machine or as a static site ----------------------------------------------

PORT = 7575
HOST = "127.0.0.1"
_PLAIN = {"INSPECT_VIEW_TRUST_CONTENT": "false"}
"""What tools and models wrote stays plain text in the viewer."""


def check_installed(places: Sequence[str]) -> None:
    """Raises UserError with the commands that do the same, if the viewer is not installed."""
    if importlib.util.find_spec("inspect_ai") is None:
        run = places[0] if places else "RUN"
        raise UserError(
            "`view` needs the package inspect-ai, which is not installed: pip install "
            "'.[view]'. Or, with the viewer elsewhere: python -m trace_bench.results "
            f"export {run} --out logs; then there: inspect view --log-dir logs"
        )


def bundle(folders: Sequence[Path], out: Path) -> list[Path]:
    """Writes the viewer with these runs as a site. UserError for a place that is taken."""
    with whole(out) as building, tempfile.TemporaryDirectory() as place:
        logs = _exported(folders, Path(place))
        _check(_viewer("bundle", "--log-dir", str(logs), "--output-dir", str(building)))
    return [out / "index.html"]


def serve(folders: Sequence[Path], port: int) -> None:
    """Shows these runs until it is interrupted. Raises UserError for a port that cannot be used."""
    whole_number("--port", port, 1, 65535)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used ({error.strerror}). Name another with --port."
            ) from error
    # Not the handler of Ctrl-C that is there: a shell's background job ignores Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as place:
        logs = _exported(folders, Path(place))
        print(f"http://{HOST}:{port}/ shows the runs; Ctrl-C ends it", flush=True)
        viewer = _viewer("start", "--log-dir", str(logs), "--host", HOST, "--port", str(port))
        try:
            _check(viewer)
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
        finally:
            viewer.terminate()
            viewer.wait()


def _viewer(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "inspect_ai", "view", *arguments]
    return subprocess.Popen(command, env={**os.environ, **_PLAIN})


def _check(viewer: subprocess.Popen[bytes]) -> None:
    """Waits for its end. Raises UserError if it fails."""
    if code := viewer.wait():
        raise UserError(f"Inspect's viewer ended with status {code}; see what it says above.")


def _exported(folders: Sequence[Path], place: Path) -> Path:
    logs = place / "logs"
    logs.mkdir()
    for number, folder in enumerate(folders):
        export(folder, logs / f"{number:03d}")
    return logs
