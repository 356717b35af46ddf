"""Runs for the tests of the report, and its data as a browser unpacks it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from trace_bench.__main__ import main as start

HOSTILE = "<script>document.title='taken over'</script><img src=x onerror=alert(1)>"


def played(folder: Path, *overrides: str) -> Path:
    """The folder of a finished run."""
    assert start([*overrides, "evaluation.limit=24", f"run_dir={folder}"]) == 0
    return folder


def poisoned(run: Path) -> None:
    """Puts HTML into every tool result and final reply of the stored conversations."""
    path = run / "evaluation_trajectories.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for turn in line["trajectory"]["turns"]:
            for message in (*turn["messages"], turn["reply"]):
                if message["role"] in ("tool", "assistant") and message.get("content"):
                    message["content"] = HOSTILE
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def unpacked(page: str, name: str) -> Any:
    """A part of the report's data."""
    found = re.search(rf'id="data-{name}">([^<]*)<', page)
    assert found is not None, name
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
