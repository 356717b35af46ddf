"""Suites from generated or third-party source code. It runs only in a container, unless the setting
`sandbox.allow_untrusted` permits otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.errors import EngineError, SourceError, UserError
from trace_bench.core.protocols import Suite
from trace_bench.sandbox.choose import Log, Sandbox, image_name, make_pool
from trace_bench.sandbox.engine import connect
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.suite import remote


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
