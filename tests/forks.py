"""Commands as children of the test's own process, which has imported all they need: a start takes
a hundredth of a second in place of some seconds. What is tested of a command's start itself starts
an interpreter (test_launchers.py)."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO

from trace_bench.core.errors import UserError
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.settings.compose import compose_plain


def forked(
    module: str, *arguments: str, prepare: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """`python -m module arguments`, after `prepare` in the child: its exit code (-N: signal N
    ended it), and what it printed."""
    if module == "trace_bench":  # what all such commands need is made here, once for all of them
        imported()
        before = [*sys.path]  # the working folder comes to it
        with contextlib.suppress(UserError):
            compose_plain([arguments], finished=False)
        sys.path[:] = before
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            os._exit(_as_main(module, arguments, printed, prepare))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        return code, printed.read()


@cache
def imported() -> None:
    """What a command may need: models, a run's parts, its statistics, and the phone world's tasks,
    which take two seconds to draw."""
    import scipy.stats  # noqa: F401
    from transformers import Qwen3ForCausalLM  # noqa: F401

    import trace_bench.policies.local
    import trace_bench.runner.pipeline
    import trace_bench.trainers.local  # noqa: F401

    for split in ("train", "dev", "test"):
        EmbeddedSuite().tasks(split)


def forked_in(folder: Path, module: str, *arguments: str) -> tuple[int, str]:
    """`forked` in another folder, whose modules are read anew."""
    imported()

    def there() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for file in folder.glob("*.py"):
            sys.modules.pop(file.stem, None)

    return forked(module, *arguments, prepare=there)


def killed_until_done(work: Callable[[], object], first: float) -> int:
    """Runs `work` in a child that is killed after `first` seconds, then in one that has a sixth
    more, and so on until one ends by itself, on a slow machine too; how many were killed."""
    for kills in range(60):
        child = os.fork()
        if child == 0:  # the default action of the alarm ends the process, as kill -9 does
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, first * (7 / 6) ** kills)
            work()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGALRM:
            assert code == 0
            return kills
    raise AssertionError("it never ended by itself")


def _as_main(
    module: str, arguments: tuple[str, ...], printed: IO[str], prepare: Callable[[], None]
) -> int:
    for stream in (1, 2):
        os.dup2(printed.fileno(), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = [module, *arguments]
    code = 0
    try:
        prepare()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
