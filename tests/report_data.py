"""A run that means harm, and the report's data as a browser unpacks it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

HOSTILE = "<script>document.title='taken over'</script><img src=x onerror=alert(1)>"


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
    packed = re.search(rf'id="data-{name}">([^<]*)<', page)
    assert packed is not None, name
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))
