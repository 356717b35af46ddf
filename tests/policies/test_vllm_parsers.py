"""Calls that models' templates write, read by vLLM's own parsers and by ours: the same (.ci/vllm).

The parsers are called as the server calls them, without an engine (tests/servers/vllm_parsers.py);
a real server with one is in test_vllm.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from at_servers import NEEDS_VLLM
from models import byte_tokenizer
from servers.vllm_process import VARIABLE
from test_call_formats import ARGUMENTS, STOCK, WANTED, template

from trace_bench.core.chat import call_json
from trace_bench.policies.chat import Chat
from trace_bench.policies.talk import read_message

pytestmark = NEEDS_VLLM
PARSERS = {"hermes": "hermes", "coder": "qwen3_coder"}
NULLS = {"more='None'", "maybe='None'"}
"""What templates of Qwen3-Coder make of null: vLLM's parser reads a text, ours null."""
SCRIPT = Path(__file__).parents[1] / "servers" / "vllm_parsers.py"


def by_vllm(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Their messages, in one process: its start takes most of the time."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [os.environ[VARIABLE], "-P", str(SCRIPT)]  # its folder has a vllm.py too
    said = json.dumps(asked)
    done = subprocess.run(command, input=said, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    messages: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return messages


def test_vllm_reads_what_we_read(tmp_path: Path) -> None:
    asked, ours = [], []
    for name, parser in PARSERS.items():
        tokenizer = byte_tokenizer(template(STOCK[name]))
        tokenizer.save_pretrained(tmp_path / name)
        chat = Chat(tokenizer, name)
        for arguments in ARGUMENTS:
            call = call_json("call_0_0", "note", arguments)
            written = {"role": "assistant", "content": "", "tool_calls": [call]}
            ids = chat.turn([{"role": "user", "content": "Go."}], [WANTED], written)
            text = tokenizer.decode(ids).removesuffix(tokenizer.eos_token)
            question = {"parser": parser, "tokenizer": str(tmp_path / name), "tools": [WANTED]}
            asked.append({**question, "text": text})
            ours.append(chat.parse(ids, 0, [WANTED]))
    other: dict[str, set[str]] = {}
    for theirs, mine, what in zip(by_vllm(asked), ours, asked, strict=True):
        read = read_message(theirs, 0)
        assert read.malformed is None and mine.malformed is None, what
        assert read.message["content"] == mine.message["content"] == ""
        (one,), (two,) = read.message["tool_calls"], mine.message["tool_calls"]
        assert one["function"]["name"] == two["function"]["name"] == "note", what
        a, b = (json.loads(call["function"]["arguments"]) for call in (one, two))
        differs = {f"{key}={a[key]!r}" for key in a | b if a[key] != b[key]}
        other.setdefault(what["parser"], set()).update(differs)
    assert other == {**{name: set() for name in PARSERS.values()}, "qwen3_coder": NULLS}
