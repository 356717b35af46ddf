"""`python -m trace_bench method=trace env=toolsandbox budget=640 seed=0`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trace_bench.core.command import SAID, command
from trace_bench.core.text import without_password

if TYPE_CHECKING:
    from trace_bench.settings.schema import Settings


@command("interrupted; the same command resumes the run")
def main(argv: Sequence[str]) -> int:
    """The program's exit code: 0 finished, 1 an agent without a score (or, in a dry run, something
    missing), 2 wrong input (an error of one line), 130 interrupted."""
    # It imports what it needs itself: something should be on the screen before the slow imports.
    if "--version" in argv:
        print(SAID)
        return 0
    if {"-h", "--help"} & set(argv):
        from trace_bench.settings.compose import config_dir_of
        from trace_bench.settings.help import text

        rest = list(argv)
        config_dir_of(rest)
        print(text(next((a for a in rest if not a.startswith("-")), None)))
        return 0
    if sys.stderr.isatty():
        typed = without_password(" ".join(argv)) or "the default run"
        print(f"trace_bench: {typed}", file=sys.stderr, flush=True)
    from trace_bench.settings.compose import launch

    return launch(_job, argv)


def _job(settings: Settings) -> int:
    # The thread count belongs to the run: it is set before the numeric libraries read it.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.policy.threads))
    from trace_bench.runner.pipeline import run

    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
