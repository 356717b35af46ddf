"""`python -m trace_bench.trainers.verl.launch FOLDER [--check]`: the process of a training job.

It composes and checks verl's settings; with --check that is all. Then it runs verl until the job is
done. It ends when the process that started it is gone, and Ray's processes end with it.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

from trace_bench.errors import UserError
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.spec import read_spec

REFUSED = 3
"""The exit code for settings that cannot work; what was printed last says why."""

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    from trace_bench.schema import build
    from trace_bench.trainers.verl.compose import composed, overrides

    folder = Path(arguments[0])
    _die_with_parent()
    spec = read_spec(folder)
    values = {k: v for k, v in spec.settings["trainer"].items() if k != "name"}
    settings = build(VerlSettings, values, "trainer")
    try:
        if settings.device == "cpu":
            from trace_bench.trainers.verl.cpu.plugin import register_rollout

            register_rollout()
        config = composed(overrides(spec, settings, folder))
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
    """On Linux; elsewhere a killed run leaves its processes to be ended by hand."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
