"""A worker's channel: complete messages over a transport. Raises Lost if the worker is unusable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.types import Tool
from trace_bench.sandbox.protocol import MAX_LINE, Violation, decode, encode
from trace_bench.sandbox.transport import Gone, Transport


class Lost(Exception):
    """A worker has become unusable; the message says why."""


@dataclass(eq=False)
class Worker:
    """A worker as the host sees it: sends and receives messages, one per line."""

    transport: Transport
    buffer: bytearray = field(default_factory=bytearray)
    live: set[int] = field(default_factory=set)
    closing: list[int] = field(default_factory=list)
    tools: dict[str, tuple[Tool, ...]] = field(default_factory=dict)
    calls: int = 0

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        try:
            self.transport.write(encode(message), deadline)
        except Gone as error:
            raise Lost(f"it accepts no more input ({error or self.transport.epitaph()})") from error

    def lines(self) -> list[dict[str, Any]]:
        """The complete messages that have arrived. Raises Lost."""
        try:
            data = self.transport.read()
        except Gone:
            raise Lost(f"it ended ({self.transport.epitaph()})") from None
        self.buffer += data
        *whole, rest = self.buffer.split(b"\n") if b"\n" in data else (self.buffer,)
        if len(rest) > MAX_LINE:
            raise Lost(f"it sent a line of more than {MAX_LINE // 2**20} MiB")
        self.buffer = rest
        try:
            return [decode(bytes(line)) for line in whole]
        except Violation as error:
            raise Lost(f"it broke the protocol: {error}") from error
