"""The process that `process.Process` starts, the first of its group: verl itself.

python -m trace_bench.trainers.verl FOLDER START      # or --check: verl's settings only
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
from trace_bench.trainers.verl.compose import composed, overrides
from trace_bench.trainers.verl.process import REFUSAL, REFUSED
from trace_bench.trainers.verl.spec import JobSpec

_PR_SET_PDEATHSIG = 1
_SHUTDOWN = 30.0  # seconds for an orderly end after the parent's


def main(arguments: list[str]) -> int:
    """The started process: checks verl's settings and runs verl until the job is done; with --check
    for START it only checks. It ends with its parent, and Ray's processes with it."""
    folder = Path(arguments[0])
    _die_with_parent()
    spec = JobSpec.read(folder)
    try:
        if spec.trainer.device == "cpu":
            from trace_bench.trainers.verl.cpu import register_rollout

            register_rollout()
        start = 0 if "--check" in arguments else int(arguments[1])
        config = composed(overrides(spec, folder, start))
        if "--check" in arguments:
            return 0
    except UserError as error:
        print(f"{REFUSAL}{error}", flush=True)
        return REFUSED
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
        time.sleep(_SHUTDOWN)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
