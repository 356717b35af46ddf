"""`results view`: runs in Inspect's viewer (inspect_ai), on this machine or as a static site."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trace_bench.core.command import whole_number
from trace_bench.core.errors import UserError
from trace_bench.core.store import whole

PORT = 7575
HOST = "127.0.0.1"
_PLAIN = {"INSPECT_VIEW_TRUST_CONTENT": "false"}
"""What tools and models wrote stays plain text in the viewer."""


def check_installed(places: Sequence[str]) -> None:
    """Raises UserError with the commands that do the same, if the viewer is not installed."""
    if importlib.util.find_spec("inspect_ai") is None:
        run = places[0] if places else "RUN"
        raise UserError(
            "`view` needs the package inspect-ai, which is not installed: pip install "
            "'.[view]'. Or, with the viewer elsewhere: python -m trace_bench.results "
            f"export {run} --format inspect --out logs; then there: inspect view --log-dir logs"
        )


def bundle(folders: Sequence[Path], out: Path) -> list[Path]:
    """Writes the viewer with these runs as a site. UserError for a place that is taken."""
    with whole(out) as building, tempfile.TemporaryDirectory() as place:
        logs = _exported(folders, Path(place))
        _check(_viewer("bundle", "--log-dir", str(logs), "--output-dir", str(building)))
    return [out / "index.html"]


def serve(folders: Sequence[Path], port: int) -> None:
    """Shows these runs until it is interrupted. Raises UserError for a port that cannot be used."""
    whole_number("--port", port, 1, 65535)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used ({error.strerror}). Name another with --port."
            ) from error
    # Not the handler of Ctrl-C that is there: a shell's background job ignores Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as place:
        logs = _exported(folders, Path(place))
        print(f"http://{HOST}:{port}/ shows the runs; Ctrl-C ends it", flush=True)
        viewer = _viewer("start", "--log-dir", str(logs), "--host", HOST, "--port", str(port))
        try:
            _check(viewer)
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
        finally:
            viewer.terminate()
            viewer.wait()


def _viewer(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "inspect_ai", "view", *arguments]
    return subprocess.Popen(command, env={**os.environ, **_PLAIN})


def _check(viewer: subprocess.Popen[bytes]) -> None:
    """Waits for its end. Raises UserError if it fails."""
    if code := viewer.wait():
        raise UserError(f"Inspect's viewer ended with status {code}; see what it says above.")


def _exported(folders: Sequence[Path], place: Path) -> Path:
    from trace_bench.results.formats import export

    logs = place / "logs"
    logs.mkdir()
    for number, folder in enumerate(folders):
        export(folder, logs / f"{number:03d}", "inspect")
    return logs
