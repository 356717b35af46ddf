"""A server with adapters that are loaded while it runs, as vLLM has them, in a thread of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_bench.serve.stand_in import Loading, answering


@contextmanager
def lora_server(
    model: Path | str, name: str = "m", batch: int = 64, context: int | None = None
) -> Iterator[tuple[str, Loading]]:
    """Its address, and the server."""
    script = Loading(model, name, batch, context)
    with answering(script) as url:
        try:
            yield f"{url}/v1", script
        finally:
            script.close()
