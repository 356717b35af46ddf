"""Suites from program texts that somebody else wrote, a language model for instance: in a
container, or nowhere, unless it was allowed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.errors import SourceError, UserError
from trace_bench.core.protocols import Suite
from trace_bench.core.types import Task, task_from_json
from trace_bench.sandbox.boxed import BoxedSuite, RemoteSuite
from trace_bench.sandbox.choose import Box, Say, make_pool
from trace_bench.sandbox.docker import connect
from trace_bench.sandbox.pool import Pool


class GeneratedRemote(RemoteSuite):
    """A suite as envs/generated.py makes it: tasks by seed."""

    def synthetic(self, capability: str, seed: int) -> Task:
        """Raises UserError with what the worker said when it cannot make the task."""
        call = {"do": "synthetic", "capability": capability, "seed": seed}
        return task_from_json(self._pool.query(call))

    def task(self, task_id: str) -> Task:
        return self.synthetic("", int(task_id.rpartition("/")[2]))


def untrusted_suite(source: str, box: Box, say: Say) -> Suite:
    """From a text that defines `suite()`. UserError outside Docker, unless it was allowed."""
    pool = _pool({"source": source}, ["source"], box, say)
    return BoxedSuite(RemoteSuite(pool), pool)


def generated_suite(
    name: str, source: str, given: Mapping[str, Any], box: Box, say: Say, image: str = "base"
) -> Suite:
    """From a text as envs/generated.py wants it; the same errors, and SourceError for a text that
    cannot be used. `name` stands in the tasks' ids,
    `given` are names that the text may use, with JSON values."""
    message = {"source": source, "given": given}
    pool = _pool(message, ["generated", f"name={name}"], box, say, image)
    try:
        return BoxedSuite(GeneratedRemote(pool), pool)
    except UserError as error:
        pool.close()
        if pool.greeted:
            raise SourceError(str(error)) from error
        raise


def _pool(
    source: Mapping[str, Any], arguments: list[str], box: Box, say: Say, image: str = "base"
) -> Pool:
    kind = box.name
    if kind == "auto":
        connect().close()  # an engine is needed: its absence is an error here
        kind = "docker"
    if kind != "docker":
        if not box.allow_untrusted:
            raise UserError(
                f"sandbox={kind} would run code that this project did not write with this user's "
                "rights. Set `sandbox` to docker, or sandbox.allow_untrusted=true if you have read "
                "the code."
            )
        say(f"sandbox={kind}: foreign code runs with this user's rights (allow_untrusted)")
        kind = "process"
    return make_pool(box, kind, image, arguments, None, None, source)
