"""A small folder of recorded dialogues of the phone world, and what plays them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.checked import build
from trace_bench.core.protocols import Env, RunContext
from trace_bench.core.types import Message, Step
from trace_bench.envs.recorded.data import of_task
from trace_bench.envs.recorded.suite import RecordedSettings, RecordedSuite
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite

PHONE = EmbeddedSuite()


def recorded(count: int = 12) -> list[dict[str, Any]]:
    """The first recordings of the phone world's split `dialogues`."""
    tasks = [PHONE.task(f"toolsandbox/embedded/dialogues/{n:04d}") for n in range(count)]
    return [record for task in tasks if (record := of_task(PHONE, task)) is not None]


def write(folder: Path, records: Sequence[dict[str, Any]], **splits: int) -> Path:
    """A folder with the records in `train`, and the first so many of them in other splits."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in {"train": len(records), **splits}.items():
        lines = [json.dumps(record) + "\n" for record in records[:size]]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return folder


def write_apart(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """A folder whose splits share no record: one each in `dev` and `test`, the rest in `train`."""
    for name, own in (("dev", records[:1]), ("test", records[1:2])):
        (write(folder, own) / "train.jsonl").rename(folder / f"{name}.jsonl")
    return write(folder, records[2:])


def suite(folder: Path, run: RunContext | None = None, **settings: Any) -> RecordedSuite:
    data = {"folder": str(folder), **settings}
    return RecordedSuite(run or RunContext(), build(RecordedSettings, data, "env"))


def follow(env: Env, actions: Sequence[Message]) -> Step:
    """The last step of an episode that was reset."""
    step = Step()
    for action in actions:
        if step.done:
            break
        step = env.step(action)
    return step
