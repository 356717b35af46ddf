"""Interpreters with the SDKs of other people's standards, and their servers on the loopback device.

TRACE_BENCH_STANDARDS names a folder with one environment for each, as `.ci/standards` makes them;
without it the tests that need one are skipped, and say so."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sandboxes import chosen, in_sandbox

from trace_bench.sandbox.choose import Sandbox

HERE = Path(__file__).parent / "standards"
PLACE = os.environ.get("TRACE_BENCH_STANDARDS", "")


def python_of(sdk: str) -> str:
    """The interpreter with that SDK. Skips the test where it is missing."""
    python = Path(PLACE) / sdk / "bin" / "python"
    if not PLACE or not python.exists():
        pytest.skip(f"needs an interpreter with {sdk} (TRACE_BENCH_STANDARDS; see .ci/standards)")
    return str(python)


def suite_of(name: str, **options: Any) -> Any:
    """A suite in a worker of its SDK's interpreter, by its name and settings. A worker finds what
    is given as module:attribute in the working folder."""
    sandbox = Sandbox("process", run="standards", workers=1, deadline=120, start=120)
    return in_sandbox(chosen(name, **options), sandbox, python=python_of(name))


@contextmanager
def server(sdk: str, script: str, *arguments: str, port: int = 0) -> Iterator[int]:
    """A server of the SDK, by its script; its port is the last argument, and what is given."""
    port = port or free_port()
    command = [python_of(sdk), str(HERE / script), *arguments, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.communicate()


def refuses(port: int) -> bool:
    """Whether nobody listens there any more, within half a minute: a server that dies may still
    reset a connection."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(process.stderr.read().decode()[-2000:])
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"no server on port {port}")
