"""The messages between host and worker: one JSON object per line, nothing else.

    worker  {"greeting": 1, "code": hash, "version": "0.1.0", "env": name}
    host    {"id": 7, "calls": [{"episode": 3, "do": "step", "action": {...}}, ...], "close": [1]}
    worker  {"id": 7, "results": [{"step": {...}}, ...]}

A call's `do` is reset (with `task`), step (with `action`) or score; `replay` holds earlier calls
of the episode to make first, if it has moved from a lost worker. Calls to the suite have `do`
about, tasks, task or a member of one of its abilities, with what is `given` to it. While calls are
open the worker may ask the host for the simulated user's answer, {"ask": 5, "episode": 3, "role":
"user", "messages": [...]}, with the answer's `schema` where it is JSON, and the host answers
{"answer": 5, "text": "..."}; the same question in the same episode gets the same answer. An
exception of an environment is returned as {"error": "ValueError: ..."} in place of the call's
result.

Every message of a worker is checked here before it is used, since the worker may run untrusted
code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.decode import Limits, Unreadable, convert, read
from trace_bench.core.text import is_name
from trace_bench.core.types import Step, Task, Tool, to_json

PROTOCOL = 1
MAX_LINE = 16 * 2**20  # bytes; a step of 20 messages has some tens of kilobytes
LINE = Limits(MAX_LINE, depth=80)
MOST_TOOL_SETS = 2000  # of one worker


def encode(value: Mapping[str, Any]) -> bytes:
    """A message as a line; dataclasses in it become objects."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=to_json)
    return text.encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    try:
        value = read(line, LINE)
    except Unreadable as error:
        raise Unreadable(f"not JSON ({error}): {_short(line[:500])}") from error
    _need(isinstance(value, dict), "a JSON object", line)
    return dict(value)


def step_to_json(step: Step, sent: MutableMapping[str, bool]) -> dict[str, Any]:
    """A step as plain data. Sets of tools are long and few, so a step refers to them by a hash, and
    includes them only if they are not `sent` yet."""
    out: dict[str, Any] = {"messages": step.messages}
    if step.tools:
        digest = _digest(step.tools)
        out["tools"] = digest
        if digest not in sent:
            sent[digest] = True
            out["new_tools"] = step.tools
    if step.done:
        out |= {"done": True, "stop": step.stop.value if step.stop else None}
    if step.score is not None:
        out["score"] = step.score
    return out


def learn_tools(result: Mapping[str, Any], sets: MutableMapping[str, tuple[Tool, ...]]) -> None:
    """Stores the tools of a result. Call it in the order of the results. Raises Unreadable."""
    step = result.get("step")
    if isinstance(step, dict) and "new_tools" in step:
        tools = convert({"tools": step["new_tools"]}, Step).tools
        _need(step.get("tools") == _digest(tools), "the hash of the tools", step.get("tools"))
        sets[_digest(tools)] = tools
        _need(len(sets) <= MOST_TOOL_SETS, f"at most {MOST_TOOL_SETS} sets of tools", len(sets))


def step_from_json(data: Any, sets: Mapping[str, tuple[Tool, ...]]) -> Step:
    """The inverse of `step_to_json`, checked. Raises Unreadable."""
    _need(isinstance(data, dict) and "messages" in data, "a step with messages", data)
    fields = {key: data[key] for key in ("messages", "done", "stop", "score") if key in data}
    if (digest := data.get("tools")) is not None:
        _need(isinstance(digest, str), "the tools' hash", digest)
        _need(digest in sets, "the hash of tools that were sent", digest)
        fields["tools"] = sets[digest]
    return convert(fields, Step)


def task_from_json(data: Any, envs: Collection[str], prefix: str = "") -> Task:
    """A task of a suite in a worker, checked: `env` is one of `envs`, so that no suite makes tasks
    of another, and the id starts with `prefix`. Raises Unreadable."""
    task = convert(data, Task)
    for key, value in (("id", task.id), ("env", task.env), ("split", task.split)):
        _need(is_name(value), f"a printable text for a task's {key}", value)
    _need(".." not in task.id.split("/"), "a task's id without ..", task.id)
    _need(task.env in envs, f"{' or '.join(map(repr, envs))} for a task's env", task.env)
    _need(task.id.startswith(prefix), f"a task's id that starts with {prefix}", task.id)
    return task


def _need(condition: object, what: str, value: Any) -> None:
    if not condition:
        raise Unreadable(f"{what} was expected, got {_short(value)}")


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)[:400]
    return repr(text if len(text) <= 120 else text[:120] + "...")


def _digest(tools: Sequence[Tool]) -> str:
    return hashlib.sha256(encode({"tools": tools})).hexdigest()[:16]


IN_WORKER = ("protocol.py", "worker.py", "suite.py")
"""The files of this folder whose code a worker runs."""


def code_hash() -> str:
    """Hash of what host and worker must share: a worker's imports, the environments' data."""
    package = Path(__file__).resolve().parents[1]
    files = [*package.glob("core/**/*.py"), *package.glob("checklists/*.py")]
    files += package.glob("envs/**/*.py")
    files += [package / "sandbox" / name for name in IN_WORKER]
    files += [package / "settings" / name for name in ("registry.py", "schema.py", "origin.py")]
    files += package.glob("envs/**/*.json")
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
