"""Serves a suite in another standard.

    python -m trace_bench.envs.outward openenv env=toolsandbox [env.*] [host=127.0.0.1] [port=8000]

OpenEnv's clients connect to http://HOST:PORT (docs/standards.md). The suite runs in this process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

from aiohttp import web

from trace_bench.core.command import command, told, whole_number
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import RunContext
from trace_bench.envs.outward.openenv import OpenEnvServer
from trace_bench.settings.compose import compose, take
from trace_bench.settings.identity import parts_of

SERVERS: Mapping[str, type[OpenEnvServer]] = MappingProxyType({"openenv": OpenEnvServer})


@command("stopped")
def main(arguments: Sequence[str]) -> int:
    if told(arguments, __doc__):
        return 0
    standard, *given = arguments or [""]
    if standard not in SERVERS:
        raise unknown("standard", standard, SERVERS, "the first word")
    host = take(given, "host") or "127.0.0.1"
    port = whole_number("port", take(given, "port") or "8000", 0, 65535)
    settings = compose(["method=base", *given])
    if settings.sandbox.name not in ("inline", "auto"):
        raise UserError("a served suite runs in this process; allowed: sandbox=inline.")
    env, turns = settings.env, settings.policy.max_turns
    suite = parts_of(settings)["env"].make(RunContext(dev_split=env.dev_split, max_turns=turns))
    with closing(suite):
        server = SERVERS[standard](suite)
        print(f"{server.name} as OpenEnv at http://{host}:{port}", flush=True)
        web.run_app(server.app(), host=host, port=port, print=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
