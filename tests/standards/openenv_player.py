"""The real OpenEnv client, and one with faults: `python openenv_player.py PORT < plays`. plays: a
list of [reset arguments, actions]; prints what came back for each, then what the faults got."""

from __future__ import annotations

import json
import sys
from typing import Any

from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

port = sys.argv[1]
FAULTS = (
    "no json", "[1]", '{"type": "fly"}', '{"type": "step", "data": {"tool_name": "x"}}',
    '{"type": "step", "data": 3}', '{"type": "reset", "data": {"split": "exam"}}',
    '{"type": "reset", "data": {"split": "dev", "index": 100000}}', '{"type": "reset"}',
    '{"type": "step", "data": {"type": "jump"}}',
    '{"type": "step", "data": {"tool_name": "no_such_tool"}}',
    '{"type": "step", "data": {"tool_name": "x", "arguments": [1]}}',
    '{"type": "step", "data": {"tool_name": "talk_to_user", "arguments": {}}}',
    '{"type": "state"}', '{"a": ' * 500,
)  # fmt: skip


def seen(result: Any) -> dict[str, Any]:
    return {"seen": result.observation, "reward": result.reward, "done": result.done}


def played() -> list[Any]:
    found = []
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
        for given, actions in json.load(sys.stdin):
            steps = [seen(client.reset(**given)), seen(client.step({"type": "list_tools"}))]
            for name, arguments in actions:
                call = {"type": "call_tool", "tool_name": name, "arguments": arguments}
                steps.append(seen(client.step(call)))
            found.append(steps)
    return found


def faults() -> list[Any]:
    with connect(f"ws://127.0.0.1:{port}/ws") as socket:
        answers = []
        for text in FAULTS:
            socket.send(text)
            answers.append(json.loads(socket.recv(timeout=60)))
        try:
            socket.send("x" * (2 << 20))
            socket.recv(timeout=60)
        except ConnectionClosed as error:
            answers.append({"closed": error.rcvd.code if error.rcvd else 0})
    return answers


print(json.dumps({"faults": faults(), "played": played()}))
