"""The conformance checks of envs/check.py on an environment in a box.

    python -m trace_bench.sandbox.check env=tau2 suite=airline sandbox=docker

Keys: env, suite, split, limit (number of tasks), sandbox (auto, docker, process, inline), python
(the interpreter of sandbox=process), source (official ToolSandbox: a checkout). Exit status 1 when
a check fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trace_bench.core.errors import UserError, unknown
from trace_bench.envs.check import check
from trace_bench.sandbox.choose import Box, Wanted, boxed_suite

_DEFAULTS = {
    "env": "toolsandbox", "suite": "embedded", "split": "train", "limit": "16",
    "sandbox": "auto", "python": "", "source": "",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    given = dict(_DEFAULTS)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in given or not equals:
            raise unknown("argument", argument, [f"{k}=..." for k in given], key)
        given[key] = value
    if not given["limit"].isdigit():
        raise UserError(f"limit={given['limit']} is no number of tasks; change `limit`.")
    options = {"source": given["source"]} if given["source"] else {}
    wanted = Wanted(given["env"], given["suite"], "none", options, given["python"] or None)
    box = Box(given["sandbox"], run="check")
    suite = boxed_suite(wanted, box, None, lambda text: print(text, file=sys.stderr))
    try:
        tasks = list(suite.tasks(given["split"]))[: int(given["limit"])]
        report = check(suite, tasks)
    finally:
        getattr(suite, "close", lambda: None)()
    print(f"{suite.name}/{suite.variant} {given['split']}, {given['sandbox']}: {len(tasks)} tasks")
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
