"""A worker's keeper ends the worker when its host is gone.

A worker in an endless loop does not read its stdin, so nothing would tell it that its host was
killed. Therefore the process that the host starts forks: the child is the worker, and the process
itself waits for the worker's end, or for the host's: the other end of stdin is closed, or the
parent process is another one. In a container the keeper is process 1: nothing inside can kill or
stop it, and the container ends with it. Environments that fight it by all means (one may open the
other end of its own stdin) stay until the next program removes their containers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time

_GRACE = 2.0  # seconds in which a worker that reads its stdin ends by itself
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def keep() -> None:
    """Returns in the worker, a child process. The calling process becomes its keeper: it does not
    return, and ends with the worker's exit code (128 + N after signal N)."""
    host, keeper = os.getppid(), os.getpid()
    worker = os.fork()
    if worker == 0:
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)  # not outside Linux: who kills keepers, leaks
        if os.getppid() != keeper:
            os._exit(1)
        return
    _control(_PR_SET_DUMPABLE, 0)  # no process of the same user may trace it
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the worker's stdout ends with the worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _end(worker))
    threading.Thread(target=_watch, args=(host, worker), daemon=True).start()
    while True:
        pid, status = os.wait()  # process 1 is the parent of all orphans
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _watch(host: int, worker: int) -> None:
    """Waits for the host's end. The parent process is asked too: other children of the host may
    hold the other end of stdin."""
    stdin = select.poll()
    stdin.register(0, 0)  # a closed other end is reported unasked
    while os.getppid() == host and not stdin.poll(1000):
        pass
    time.sleep(_GRACE)
    _end(worker)


def _end(worker: int) -> None:
    """Ends the worker with all that it has started, and this process."""
    with contextlib.suppress(OSError):
        os.kill(worker, signal.SIGKILL)
    if os.getpgrp() == os.getpid():  # not where a shell started it beside other programs
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
