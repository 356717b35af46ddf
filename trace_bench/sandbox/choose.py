"""Chooses where environments run, by the setting `sandbox` and what this machine offers. Code of
others runs only in a container, unless `sandbox.allow_untrusted` permits otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.errors import EngineError, SourceError, UserError
from trace_bench.core.protocols import Ask, RunContext, Source, Suite
from trace_bench.core.types import JSON
from trace_bench.sandbox.bubblewrap import Bubblewrap
from trace_bench.sandbox.engine import COMMAND, Docker, Engine, Podman, Sandbox
from trace_bench.sandbox.pool import SIDE_BY_SIDE, Pool
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.suite import SandboxedSuite, remote
from trace_bench.sandbox.workers import Worker
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import EnvSettings, SandboxSettings

Log = Callable[[str], None]


class Processes(Engine):
    """Child processes of this user, which inherit only PATH, so that they receive no keys."""

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        self._python = python or sys.executable

    def start(self, arguments: Mapping[str, Any]) -> Worker:
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [self._python, *COMMAND[1:], encode(arguments).decode().strip()]
        return Worker(command, env, hint="change `env.python`")


class Inline(Processes):
    """This process. Programs of others, where they are allowed, have child processes."""

    here = True


ENGINES: Mapping[str, type[Engine]] = {
    "inline": Inline,
    "process": Processes,
    "docker": Docker,
    "podman": Podman,
    "bubblewrap": Bubblewrap,
}
TOLD = ("seed", "budget", "max_turns", "max_tokens", "dev_split")
"""Facts of the run that a worker is told."""


def engine_of(sandbox: SandboxSettings) -> type[Engine]:
    return ENGINES[sandbox.name]


def suite_in(part: Part, run: RunContext, sandbox: Sandbox, env: EnvSettings, log: Log) -> Suite:
    """The suite, with its episodes in the chosen sandbox. Raises UserError."""
    engine = engine_of(sandbox)
    if engine.here:
        suite: Suite = part.make(run)
        return suite
    if not part.factory.importable:
        raise UserError(
            f"sandbox={sandbox.name} needs a suite that a worker can import: module:attribute in "
            "`env.factory`. Set `sandbox` to inline for an object."
        )
    image = _image(part, sandbox, env) if engine.images else ""
    worker = {
        "factory": part.factory.text,
        "options": dict(part.options),
        "asks_user": run.ask is not None,
        "judged": run.judge is not None,
        "simulated": run.simulator is not None,
        "run": {name: getattr(run, name) for name in TOLD},
    }
    ask = run.ask or run.judge or run.simulator
    if ask is not None and run.batch > (places := SIDE_BY_SIDE * sandbox.workers):
        log(
            f"policy.batch={run.batch} episodes are live, of which {places} at a time can wait for "
            f"a model's answer; sandbox.workers={-(-run.batch // SIDE_BY_SIDE)} lets all of them."
        )
    pool = make_pool(engine(sandbox, image, env.python), sandbox, worker, ask, log)
    try:
        if part.declared.lists_tasks_here:
            return SandboxedSuite(part.make(run), pool)
        return remote(pool)
    except BaseException:
        pool.close()
        raise


def _image(part: Part, sandbox: Sandbox, env: EnvSettings) -> str:
    if env.image is not None:
        return env.image
    if (image := part.declared.image) is not None:
        return image_name(image)
    raise UserError(
        f"sandbox={sandbox.name} runs env.factory={part.factory.text} in an image, and none is "
        "named that has its code. Set `env.image` (docs/sandbox.md says how to make one), or "
        "`sandbox` to process or inline."
    )


def image_name(image: str) -> str:
    return f"trace-bench/{image}:latest"


def make_pool(
    engine: Engine,
    sandbox: Sandbox,
    worker: Mapping[str, Any],
    ask: Ask | None,
    log: Log,
    source: Mapping[str, Any] | None = None,
) -> Pool:
    """`worker`: the start arguments (see worker.py). Logs what the engine cannot limit."""
    if engine.unlimited:
        log(f"sandbox={sandbox.name} does not limit {'; '.join(engine.unlimited)}")
    return Pool(lambda: engine.start(worker), sandbox, ask, source)


def generated_suite(source: Source, sandbox: Sandbox, log: Log) -> Suite:
    """The suite of a source text in the form of `GeneratedSuite`. Its name is part of the tasks'
    ids. UserError as of `source_pool`, and SourceError for a text that cannot be used."""
    message = {"source": source.text, "given": source.given}
    worker = {"kind": "generated", "name": source.name}
    pool = source_pool(message, worker, sandbox, log)
    try:
        return remote(pool, source.name)
    except UserError as error:
        pool.close()
        if pool.workers.greeted and not isinstance(error, EngineError):
            raise SourceError(str(error)) from error
        raise


def source_pool(source: JSON, worker: JSON, sandbox: Sandbox, log: Log) -> Pool:
    """Workers that run a program text. UserError if they do not contain it (`allow_untrusted`)."""
    engine = engine_of(sandbox)
    if not engine.contains:
        if not sandbox.allow_untrusted:
            raise UserError(
                f"sandbox={sandbox.name} would run code that this project did not write with this "
                f"user's rights. Set `sandbox` to {walled()}, or sandbox.allow_untrusted=true if "
                "you have read the code."
            )
        why = "generated code runs with this user's rights (allow_untrusted)"
        log(f"sandbox={sandbox.name}: {why}")
    runner = engine(sandbox, image_name("base"))
    return make_pool(runner, sandbox, worker, None, log, source)


def walled() -> str:
    """The names of the engines that keep code of others in."""
    *names, last = [n for n, e in ENGINES.items() if e.contains]
    return f"{', '.join(names)} or {last}"
