"""Chooses where environments run, by the setting `sandbox` and what this machine offers. Generated
or third-party source code runs only in a container, unless `sandbox.allow_untrusted` permits
otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trace_bench.core.errors import EngineError, SourceError, UserError
from trace_bench.core.protocols import Ask, RunContext, Suite
from trace_bench.sandbox.docker import (
    FOLDER,
    LABEL,
    OWNER,
    DockerTransport,
    check_image,
    connect,
    owner,
    reap,
)
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.suite import remote, sandboxed
from trace_bench.sandbox.transport import ProcessTransport, Transport
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import SandboxSettings

Log = Callable[[str], None]


@dataclass(frozen=True)
class Sandbox(SandboxSettings):
    """With the run that owns the containers: its fingerprint and its folder."""

    run: str = "unnamed"
    folder: str = ""


@dataclass(frozen=True)
class Where:
    """`python`: the interpreter of a worker process, if it needs its own packages; `image`: a
    container image, None for the one that the suite's class names."""

    python: str | None = None
    image: str | None = None


def suite_in(part: Part, run: RunContext, sandbox: Sandbox, where: Where, log: Log) -> Suite:
    """The suite, with its episodes in the chosen sandbox. `auto` logs its choice. Raises
    UserError."""
    kind = resolve(sandbox, log)
    if kind == "inline":
        made: Suite = part.make(run)
        return made
    if not part.factory.importable:
        raise UserError(
            f"sandbox={kind} needs a suite that a worker can import: module:attribute in "
            "`env.factory`. Set `sandbox` to inline for an object."
        )
    image = _image(part, sandbox, where) if kind == "docker" else ""
    worker = {
        "factory": part.factory.text,
        "options": dict(part.options),
        "asks_user": run.ask is not None,
        "judged": run.judge is not None,
        "simulated": run.simulator is not None,
        "run": {
            "seed": run.seed,
            "budget": run.budget,
            "max_turns": run.max_turns,
            "max_tokens": run.max_tokens,
            "dev_split": run.dev_split,
        },
    }
    ask = run.ask or run.judge or run.simulator
    pool = make_pool(sandbox, kind, image, worker, ask, where.python)
    if part.declared.lists_tasks_here:
        return sandboxed(part.make(run), pool)
    return remote(pool)


def _image(part: Part, sandbox: Sandbox, where: Where) -> str:
    if where.image is not None:
        return where.image
    if (image := part.declared.image) is not None:
        return image_name(image, sandbox)
    raise UserError(
        f"sandbox=docker runs env.factory={part.factory.text} in a container, and no image is "
        "named that has its code. Set `env.image` (docs/sandbox.md says how to make one), or "
        "`sandbox` to process or inline."
    )


def image_name(image: str, sandbox: Sandbox) -> str:
    """The full name of one of the project's images."""
    return f"trace-bench/{image}:{sandbox.tag}"


def resolve(sandbox: Sandbox, log: Log) -> str:
    """Resolves `auto` to docker or inline; other names are unchanged."""
    if sandbox.name != "auto":
        return sandbox.name
    try:
        connect(sandbox.start).close()
    except UserError as error:
        log(f"sandbox=auto: environments run in this process, since {error}")
        return "inline"
    return "docker"


def make_pool(
    sandbox: Sandbox,
    kind: str,
    image: str,
    worker: Mapping[str, Any],
    ask: Ask | None,
    python: str | None,
    source: Mapping[str, Any] | None = None,
) -> Pool:
    """A pool of workers for one suite; `worker`: their start arguments (see worker.py). First
    removes containers that earlier programs left behind."""
    spawn: Callable[[], Transport]
    arguments = [encode(worker).decode().strip()]
    if kind == "docker":
        client = connect(sandbox.start)
        check_image(client, image)
        reap(client)
        labels = {LABEL: sandbox.run, FOLDER: sandbox.folder, OWNER: owner()}

        def spawn() -> Transport:
            return DockerTransport(client, image, arguments, labels, sandbox)
    else:

        def spawn() -> Transport:
            return ProcessTransport(python or sys.executable, arguments)

    return Pool(
        spawn,
        size=sandbox.workers,
        deadline=sandbox.deadline,
        start=sandbox.start,
        retries=sandbox.retries,
        ask=ask,
        source=source,
    )


def untrusted_suite(source: str, sandbox: Sandbox, log: Log) -> Suite:
    """The suite of a source text that defines `suite()`. Raises UserError if the sandbox is not
    Docker, unless `allow_untrusted` is set."""
    return remote(_pool({"source": source}, {"kind": "source"}, sandbox, log))


def generated_suite(
    name: str, source: str, given: Mapping[str, Any], sandbox: Sandbox, log: Log, image: str
) -> Suite:
    """The suite of a source text in the form that envs/generated.py describes. `name` is part of
    the tasks' ids; `given` are names that the text may use, with JSON values. Raises UserError as
    above, and SourceError for a text that cannot be used."""
    message = {"source": source, "given": given}
    pool = _pool(message, {"kind": "generated", "name": name}, sandbox, log, image)
    try:
        return remote(pool, name)
    except UserError as error:
        pool.close()
        if pool.greeted and not isinstance(error, EngineError):
            raise SourceError(str(error)) from error
        raise


def _pool(
    source: Mapping[str, Any],
    worker: Mapping[str, Any],
    sandbox: Sandbox,
    log: Log,
    image: str = "base",
) -> Pool:
    kind = sandbox.name
    if kind == "auto":
        connect(sandbox.start).close()  # raises UserError if no engine answers
        kind = "docker"
    if kind != "docker":
        if not sandbox.allow_untrusted:
            raise UserError(
                f"sandbox={kind} would run code that this project did not write with this user's "
                "rights. Set `sandbox` to docker, or sandbox.allow_untrusted=true if you have read "
                "the code."
            )
        log(f"sandbox={kind}: generated code runs with this user's rights (allow_untrusted)")
        kind = "process"
    return make_pool(sandbox, kind, image_name(image, sandbox), worker, None, None, source)
