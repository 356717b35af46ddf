"""The project's own server (trace_bench.serve) in a thread, over a real agent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp

import uvicorn
from word_router import WORDS

from trace_bench.core.store import write_json
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.app import Answerer, App, config
from trace_bench.serve.local import Local
from trace_bench.serve.request import ServeSettings


@dataclass
class Served:
    url: str
    backend: Answerer
    lines: list[str] = field(default_factory=list)  # the log


@contextmanager
def serving(
    backend: Answerer, settings: ServeSettings | None = None, key: str | None = None
) -> Iterator[Served]:
    """Serves until the end of the block, on a free port of this machine."""
    settings = settings or ServeSettings()
    listening = socket.create_server(("127.0.0.1", 0))
    served = Served(f"http://127.0.0.1:{listening.getsockname()[1]}", backend)
    app = App(backend, settings, key, served.lines.append)
    server = uvicorn.Server(config(app, replace(settings, grace=5)))
    thread = threading.Thread(target=server.run, args=[[listening]], daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield served
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive(), "it does not stop"


def local(model: Path | str, agent: AgentSpec, batch: int = 16, most: int = 32) -> Local:
    return Local(LocalPolicy(model, batch=batch, threads=1), agent, most, Path(mkdtemp()))


def routed_agent(folder: Path, model: Path | str, adapters: dict[str, Path]) -> AgentSpec:
    """An agent with a prompt and a router over adapters, also stored as agent.json in the folder:
    the router chooses by single words, and the base model where none is known."""
    refs = tuple(AdapterRef(f"{name}@0001", str(path)) for name, path in adapters.items())
    words = {"message": 0, "send": 0, "text": 0, "remind": 1 % len(refs)}
    router = {"kind": WORDS, "words": words, "labels": [*(ref.name for ref in refs), None]}
    agent = AgentSpec(str(model), "routed", "Be brief.", refs, router)
    write_json(folder / "agent.json", agent)
    return agent
