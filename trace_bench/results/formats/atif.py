"""Trajectories in ATIF, Harbor's Agent Trajectory Interchange Format (version 1.8): one document an
episode, with the exact token ids and log-probabilities of every turn.

    <agent or call>/<index>.json     evaluation/final/0012.json, train/recovers/iter0000/0003.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trace_bench.core import VERSION
from trace_bench.core.store import write_text
from trace_bench.core.text import file_name
from trace_bench.core.types import Message, Trajectory, Turn, to_json
from trace_bench.results.formats.episodes import Exported, FinishedRun
from trace_bench.results.formats.inspect import read_arguments

FORMAT = "ATIF-v1.8"


def write(source: FinishedRun, out: Path) -> None:
    """Writes one document an episode that has a message."""
    for played in source.episodes():
        if played.trajectory.messages:
            attempt = f"-attempt{played.attempt}" if played.attempt else ""
            place = out.joinpath(*map(file_name, played.group.split("/")))
            document_ = json.dumps(document(played, source))
            write_text(place / f"{played.index:04d}{attempt}.json", document_)


def document(played: Exported, source: FinishedRun) -> dict[str, Any]:
    """An episode as an ATIF document; what ATIF has no field for is in `extra`."""
    t, s = played.trajectory, source.summary
    return {
        "schema_version": FORMAT,
        "session_id": s.fingerprint,
        "trajectory_id": f"{s.fingerprint}/{played.group}/{played.index}/{played.attempt}",
        "agent": {
            "name": "trace_bench",
            "version": VERSION,
            "model_name": s.model,
            "tool_definitions": list(t.tools),
            "extra": {"agent": t.agent, "adapter": t.adapter},
        },
        "steps": [{"step_id": i, **step} for i, step in enumerate(_steps(t), 1)],
        "final_metrics": {
            "total_prompt_tokens": sum(len(turn.prompt_ids) for turn in t.turns),
            "total_completion_tokens": sum(len(turn.token_ids) for turn in t.turns),
        },
        "extra": {
            "task": t.task,
            "seed": str(t.seed),  # 63 bits, more than a JSON number holds everywhere
            "purpose": played.purpose,
            "trial": played.trial,
            "attempt": played.attempt,
            "stop": t.stop.value,
            "score": to_json(t.score),
            "failure": to_json(t.failure),
            "needs": source.tags.get(t.task, []),
        },
    }


def _steps(t: Trajectory) -> list[dict[str, Any]]:
    """The steps in order. A tool's result is the observation of the agent's step before it."""
    steps: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    context: list[int] = []
    for turn in t.turns:
        steps += _others(turn.messages, last)
        context = [*context[: turn.kept], *turn.prompt_ids]
        last = _agent(turn, context)
        steps.append(last)
        context = [*context, *turn.token_ids]
    return [*steps, *_others(t.closing, last)]


def _others(messages: tuple[Message, ...], step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Steps of system and user; results of tools are added to the agent's `step`."""
    for message in messages:
        content = message.get("content") or ""
        if message["role"] == "tool" and step is not None:
            calls = [c["tool_call_id"] for c in step.get("tool_calls", ())]
            named = message.get("tool_call_id")  # of no call: the answer to one that was unreadable
            result = {"source_call_id": named if named in calls else None, "content": content}
            step.setdefault("observation", {"results": []})["results"].append(result)
        else:
            source = message["role"] if message["role"] in ("system", "user") else "system"
            yield {"source": source, "message": content}


def _agent(turn: Turn, prompt: list[int]) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": turn.reply.get("content") or ""}
    if turn.thoughts:
        step["reasoning_content"] = turn.thoughts
    if calls := turn.reply.get("tool_calls"):
        step["tool_calls"] = [_call(call) for call in calls]
    step["extra"] = {n: getattr(turn, n) for n in ("adapter", "malformed", "truncated")}
    if not turn.token_ids:  # a scripted agent: no model was asked
        return step | {"llm_call_count": 0}
    return step | {
        "llm_call_count": 1,
        "metrics": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(turn.token_ids),
            "prompt_token_ids": prompt,
            "completion_token_ids": list(turn.token_ids),
            "logprobs": list(turn.logprobs),
        },
    }


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments, error = read_arguments(function["arguments"])
    out = {"tool_call_id": call["id"], "function_name": function["name"], "arguments": arguments}
    return out | ({"extra": {"text": function["arguments"], "error": error}} if error else {})
