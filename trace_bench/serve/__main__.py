"""`python -m trace_bench.serve RUN`: answers OpenAI's chat completions as the agent that a run has
trained: its prompt, its router and its adapters.

RUN is the folder of a finished run, a folder with an agent.json, or such a file. Without --backend
the model runs in this process. With it, the server of that address (vLLM with --enable-lora) runs
the model, and this one picks the adapter of each conversation.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from trace_bench.core.beginning import read_beginning
from trace_bench.core.command import command, whole_number
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import CONFIG
from trace_bench.core.summary import read_settings
from trace_bench.core.types import AgentSpec
from trace_bench.serve.request import ServeSettings

if TYPE_CHECKING:
    from trace_bench.serve.app import Answerer

OPTIONS = {
    "model": "--model",
    "model.name": "--backend-model",
    "model.path": "--model",
    "policy.base_url": "--backend",
    "policy.batch": "--batch",
    "policy.context": "--context",
    "policy.deadline": "--deadline",
    "policy.device": "--device",
    "policy.key_env": "--backend-key-env",
}
"""What a run's settings are called here, in the errors of parts that both have."""
_SETTING = re.compile(r"(?:the setting )?`([a-z_.]+)`|(policy\.\w+)=")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("serve", __doc__)
    parser.add_argument("run")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8800, help="0: any that is free (%(default)s)")
    parser.add_argument("--key-env", help="environment variable with the key that clients need")
    parser.add_argument("--model", help="folder or hub name of the base model (the agent's own)")
    parser.add_argument("--batch", type=int, default=64, help="conversations at once (%(default)s)")
    parser.add_argument("--context", type=int, help="tokens of a conversation")
    parser.add_argument("--threads", type=int, default=1, help="of the engine (%(default)s)")
    parser.add_argument("--device", default="cpu", help="of the engine (%(default)s)")
    parser.add_argument("--backend", help="address of a server behind this one (http://.../v1)")
    parser.add_argument("--backend-model", help="the base model's name there (the agent's own)")
    parser.add_argument("--backend-key-env", help="environment variable with the key for it")
    parser.add_argument(
        "--deadline", type=float, default=300.0, help="seconds for an answer of it (%(default)s)"
    )
    parser.add_argument("--name", default="agent", help="the agent's, for clients (%(default)s)")
    parser.add_argument("--tokens", default=512, help="the most of an answer (%(default)s)")
    parser.add_argument("--requests", default=256, help="the most in flight (%(default)s)")
    return parser


@command()
def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        import trace_bench.serve.app  # noqa: F401 (needs packages of its own)
    except ImportError as error:
        why = f"serving needs the package {error.name}: pip install '.[serve]'"
        raise UserError(why) from error
    try:
        return _serve(options)
    except UserError as error:
        raise UserError(_SETTING.sub(_option, str(error))) from error


def _option(setting: re.Match[str]) -> str:
    option = OPTIONS.get(setting[1] or setting[2])
    return setting[0] if option is None else option + " " * bool(setting[2])


def _serve(options: argparse.Namespace) -> int:
    import uvicorn

    from trace_bench.llm.client import read_key
    from trace_bench.serve.app import App, config

    tokens = whole_number("--tokens", options.tokens)
    settings = ServeSettings(options.name, tokens, whole_number("--requests", options.requests))
    key = read_key(options.key_env, "--key-env")
    _check_address(options.host, options.port, key)
    whole_number("--threads", options.threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    agent = read_beginning(options.run).agent
    begin = forward if options.backend else local
    log = partial(print, file=sys.stderr, flush=True)
    with TemporaryDirectory(prefix="trace_bench_") as sums:
        app = App(begin(options, agent, settings, Path(sums)), settings, key, log)
        uvicorn.Server(config(app, settings, host=options.host, port=options.port)).run()
    return 0


def thinking_of(run: str) -> bool | None:
    """Whether the agent thought in its run, by its settings; None for what is no run."""
    place = Path(run)
    config = (place.parent if place.is_file() else place) / CONFIG
    policy = read_settings(config).get("policy") if config.is_file() else None
    thinking = policy.get("thinking") if isinstance(policy, dict) else None
    return thinking if isinstance(thinking, bool) else None


def local(
    options: argparse.Namespace, agent: AgentSpec, settings: ServeSettings, sums: Path
) -> Answerer:
    from trace_bench.policies.local import LocalPolicy
    from trace_bench.serve.local import Local

    policy = LocalPolicy(
        options.model or agent.model,
        batch=options.batch,
        context=options.context,
        threads=options.threads,
        device=options.device,
        thinking=thinking_of(options.run),
    )
    return Local(policy, agent, settings.tokens, sums)


def forward(
    options: argparse.Namespace, agent: AgentSpec, settings: ServeSettings, sums: Path
) -> Answerer:
    from trace_bench.llm.client import Endpoint, check_urls, read_key
    from trace_bench.serve.forward import Forward

    endpoint = Endpoint(
        check_urls((options.backend,), "--backend"),
        read_key(options.backend_key_env, "--backend-key-env"),
        deadline=options.deadline,
        retries=1,
        concurrency=settings.requests,
    )
    name = options.backend_model or Path(agent.model).name
    return Forward(endpoint, name, agent, settings.tokens, sums, thinking_of(options.run))


def _check_address(host: str, port: int, key: str | None) -> None:
    """Raises UserError for an address that others can reach without a key, or that is in use."""
    if key is None and not re.fullmatch(r"localhost|127(\.\d{1,3}){3}|::1", host):
        raise UserError(
            f"--host {host} can be reached from elsewhere, and anyone could use the agent. Set "
            "--key-env to an environment variable with a key, or --host to 127.0.0.1."
        )
    whole_number("--port", port, 0, 65535)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as why:
        raise UserError(f"--port {port}: {why.strerror}. Change --port, or --host {host}.") from why


if __name__ == "__main__":
    sys.exit(main())
