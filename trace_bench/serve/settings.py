"""What a server allows."""

from __future__ import annotations

from dataclasses import dataclass, field

from trace_bench.core.checked import number


@dataclass(frozen=True)
class ServeSettings:
    """name: the agent's name for clients. body: bytes of a request. tokens: the most that an answer
    may have, and what it gets if the request names no number. requests: in flight at once, those
    that wait for the engine included; more are refused. grace: seconds that answers under way are
    given when the server is stopped."""

    name: str = "agent"
    body: int = field(default=2**20, metadata=number(1024, 2**30))
    tokens: int = field(default=512, metadata=number(1, 2**20))
    requests: int = field(default=256, metadata=number(1, 100_000))
    grace: float = field(default=30.0, metadata=number(0))


@dataclass(frozen=True)
class Model:
    """What a client may ask for by name. `routed`: the agent's router chooses the adapter; else it
    is `adapter` (None: the base model). `prompted`: the agent's prompt is added."""

    routed: bool = False
    adapter: str | None = None
    prompted: bool = True
