"""Inspect's own viewer shows what `results view` gives it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from trace_bench.__main__ import main as run
from trace_bench.core.errors import UserError
from trace_bench.results import inspect
from trace_bench.results.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("view") / "run"
    few = ["evaluation.limit=2", "policy=reference", "method=base"]
    assert run([*few, f"run_dir={place}"]) == 0
    return place


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((inspect.HOST, 0))
        return int(probe.getsockname()[1])


def answer(url: str, process: subprocess.Popen[str]) -> httpx.Response:
    """What the viewer answers, once it does."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return httpx.get(url, timeout=10)
        except httpx.TransportError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)


def test_the_viewer_lists_the_run_and_ends_with_the_command(folder: Path) -> None:
    pytest.importorskip("inspect_ai", reason="the viewer needs inspect-ai, which is not installed")
    port = free_port()
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as a shell starts a job with &
    command = [sys.executable, "-m", "trace_bench.results", "view", str(folder)]
    process = subprocess.Popen(
        [*background, *command, "--port", str(port)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert "<html" in answer(f"http://{inspect.HOST}:{port}/", process).text
        listed = answer(f"http://{inspect.HOST}:{port}/api/logs", process).text
        assert listed.count(".json") >= 5 and "evaluation-final" in listed
        with pytest.raises(UserError, match=f"port {port} cannot be used"):
            inspect.serve([folder], port)
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert f"http://{inspect.HOST}:{port}/ shows the runs" in said
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{inspect.HOST}:{port}/", timeout=5)


def test_the_viewer_is_written_as_a_site(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="the viewer needs inspect-ai, which is not installed")
    site = tmp_path / "site"
    left = tmp_path / ".site.building"  # of a command that was killed
    left.mkdir()
    (left / "index.html").write_text("half")
    assert main(["view", str(folder), "--out", str(site)]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["site"]
    assert "<html" in (site / "index.html").read_text()
    assert len(list(site.rglob("*evaluation-final*"))) == 1
    assert main(["view", str(folder), "--out", str(site)]) == 2
    assert main(["view", str(folder), "--out", str(folder / "summary.json" / "site")]) == 2


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_a_port_that_is_none_is_refused(
    folder: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("inspect_ai", reason="the viewer needs inspect-ai, which is not installed")
    assert main(["view", str(folder), f"--port={port}"]) == 2
    said = capsys.readouterr().err
    assert f"--port {port} is not allowed; allowed: a whole number from 1 to 65535" in said


def test_without_the_viewer_the_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install '\.\[view\]'") as caught:
        inspect.check_installed(["runs"])
    assert "export runs --out logs" in str(caught.value)
