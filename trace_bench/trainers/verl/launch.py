"""`python -m trace_bench.trainers.verl.launch FOLDER START`: the process of a training job.

It composes and checks verl's settings and then runs verl until the job is done; with --check for
START it only checks. It ends when its parent process is gone, and Ray's processes end with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.spec import read_spec

REFUSED = 3
"""The exit code for settings that cannot work; the last line printed says why."""

_PR_SET_PDEATHSIG = 1
_GRACE = 30.0  # seconds for an orderly shutdown


def main(arguments: list[str]) -> int:
    from trace_bench.trainers.verl.compose import composed, overrides

    folder = Path(arguments[0])
    _die_with_parent()
    spec = read_spec(folder)
    settings = VerlSettings(**spec.trainer)
    try:
        if settings.device == "cpu":
            from trace_bench.trainers.verl.cpu.plugin import register_rollout

            register_rollout()
        start = 0 if "--check" in arguments else int(arguments[1])
        config = composed(overrides(spec, settings, folder, start))
    except UserError as error:
        print(f"refused: {error}", flush=True)
        return REFUSED
    if "--check" in arguments:
        return 0
    from verl.trainer.main_ppo import run_ppo

    from trace_bench.trainers.verl.steps import Runner

    run_ppo(config, task_runner_class=Runner)
    return 0


def _die_with_parent() -> None:
    """Ends this process with its parent, on Linux; elsewhere the processes of a killed run must be
    ended by hand."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # Ray then ends its own processes

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
