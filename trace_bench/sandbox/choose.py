"""Which box: the setting `sandbox`, what is there, and what may be played where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Suite
from trace_bench.envs.registry import Ask
from trace_bench.envs.registry import suite as in_process
from trace_bench.sandbox.boxed import BoxedSuite, RemoteSuite
from trace_bench.sandbox.docker import DockerTransport, Limits, connect, reap
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.transport import ProcessTransport, Transport

IMAGES = {"toolsandbox/embedded": "base", "toolsandbox/official": "toolsandbox", "tau2": "tau2"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Box:
    """The setting `sandbox`, and whose containers these are."""

    name: str = "inline"  # auto, docker, process, inline
    workers: int = 1
    deadline: float = 30.0
    start: float = 60.0
    retries: int = 2
    limits: Limits = field(default_factory=Limits)
    allow_untrusted: bool = False
    tag: str = "latest"
    run: str = "unnamed"


@dataclass(frozen=True)
class Wanted:
    """Which suite."""

    name: str
    variant: str
    augmentation: str = "none"
    options: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None  # of a worker process with packages of its own

    @property
    def arguments(self) -> list[str]:
        """The worker's command line."""
        given = {"suite": self.variant, "augmentation": self.augmentation, **self.options}
        return [self.name, *(f"{key}={value}" for key, value in given.items())]

    @property
    def image(self) -> str:
        return IMAGES.get(f"{self.name}/{self.variant}") or IMAGES[self.name]


def boxed_suite(wanted: Wanted, box: Box, ask: Ask | None, say: Say) -> Suite:
    """The suite in the box that was asked for. `auto` says what it takes."""
    kind = resolve(box.name, say)
    if kind == "inline":
        return in_process(
            wanted.name, wanted.variant, wanted.augmentation, options=wanted.options, ask=ask
        )
    pool = make_pool(box, kind, wanted.image, wanted.arguments, ask, wanted.python)
    return BoxedSuite(_inner(wanted, pool), pool)


def resolve(name: str, say: Say) -> str:
    """`auto` as docker or inline; the others as they are."""
    if name != "auto":
        return name
    try:
        connect().close()
    except UserError as error:
        say(f"sandbox=auto: environments run in this process, since {error}")
        return "inline"
    return "docker"


def make_pool(
    box: Box,
    kind: str,
    image: str,
    arguments: list[str],
    ask: Ask | None,
    python: str | None,
    source: Mapping[str, Any] | None = None,
) -> Pool:
    """Workers of that kind, for one suite. Containers of earlier programs are removed first."""
    spawn: Callable[[], Transport]
    if kind == "docker":
        client = connect()
        reap(client, box.run)
        name = f"trace-bench/{image}:{box.tag}"

        def spawn() -> Transport:
            return DockerTransport(client, name, arguments, box.run, box.limits)
    else:

        def spawn() -> Transport:
            return ProcessTransport(python or sys.executable, arguments)

    return Pool(
        spawn,
        size=box.workers,
        deadline=box.deadline,
        start=box.start,
        retries=box.retries,
        ask=ask,
        source=source,
    )


def _inner(wanted: Wanted, pool: Pool) -> Suite:
    """What tells of the tasks: the project's own suites are known here, others to their worker."""
    if (wanted.name, wanted.variant) == ("toolsandbox", "embedded"):
        return in_process(wanted.name, wanted.variant, wanted.augmentation)
    return RemoteSuite(pool)
