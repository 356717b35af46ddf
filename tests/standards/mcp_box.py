"""A server of the real MCP SDK with a box in it: `python mcp_box.py KIND [PORT]`. Without a port it
talks over standard input and output. KIND: `own`, each session has its box; `shared`, all have one,
which counts the looks. Some things are bad to put into a box."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict

from mcp.server.mcpserver import Context, MCPServer

kind, *port = sys.argv[1:]
server = MCPServer("box", version="1.2")
boxes: dict[str, list[str]] = defaultdict(list)
looks: list[int] = []


def box(context: Context) -> list[str]:
    headers = context.headers or {} if kind == "own" else {}
    return boxes[headers.get("mcp-session-id", "")]


@server.tool()
def put(thing: str, context: Context) -> str:
    """Put a thing into the box."""
    if thing == "slow":
        time.sleep(60)
    if thing == "dead":
        os._exit(1)
    box(context).append(thing)
    return f"The box has {len(box(context))} things."


@server.tool()
def look(context: Context) -> str:
    """Look into the box."""
    if "huge" in box(context):
        return "x" * (3 << 20)
    looks.append(1)
    if kind == "shared":
        return f"{', '.join(boxes['']) or 'nothing'}, look {len(looks)}"
    return ", ".join(box(context)) or "nothing"


@server.tool()
def drop(thing: str, context: Context) -> str:
    """Take a thing out of the box."""
    box(context).remove(thing)
    return "Done."


if port:
    server.run("streamable-http", port=int(port[0]))
else:
    server.run()
