"""An interpreter whose programs have imported already what they need: they are forked from a
process that has. The nine processes of a job of verl import for half a minute each.

    python tests/interpreter.py [NAME=VALUE | MODULE]... -- PROGRAM     # PROGRAM as after `python`

Imports the modules in that order; the variables are there for the imports only. PROGRAM runs so,
and what it starts with `sys.executable` of this project's and of Ray's; TRACE_BENCH_PYTHON names
the plain interpreter to them. A program that is started stands in for its fork: it has its own
process number, waits for it, hands signals on and ends as it does; if it is killed, so is the fork.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

PLAIN = "TRACE_BENCH_PYTHON"
CLIENT = """
import os, sys
words = sys.argv[1:]
if words[:1] == ["-u"]:
    words, os.environ["PYTHONUNBUFFERED"] = words[1:], "1"
rays = bool(words) and "/site-packages/ray/" in words[0]
if not rays and (words[:1] != ["-m"] or words[1].partition(".")[0] != "trace_bench"):
    os.execv(PYTHON, [PYTHON, *words])
import array, ctypes, json, signal, socket
handed = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, handed)
if rays or words[1] == "trace_bench.trainers.verl":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: they end with what began them
files = []
for each in map(int, os.listdir("/proc/self/fd")):
    try:
        if each < 3 or os.get_inheritable(each):
            files.append(each)
    except OSError:
        pass  # the list's own
server = socket.socket(socket.AF_UNIX)
server.connect(ADDRESS)
asked = json.dumps([words, os.getcwd(), dict(os.environ), os.umask(0o22), files])
server.sendmsg([b" "], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
server.sendall(asked.encode() + b"\\n")
answers = server.makefile()
child = int(answers.readline())
def hand_on(number, frame):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass  # its end is about to be told
for number in handed:
    signal.signal(number, hand_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, handed)
code = int(answers.readline() or -signal.SIGKILL)
if code < 0:
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_MOST = 250  # open files that can be handed over


class Server:
    """Forks a child for every program that connects, and tells it the child's process number and,
    in the end, its exit code (-N: signal N ended it)."""

    def __init__(self, folder: Path) -> None:
        self.python, self.pid = folder / "python", os.getpid()
        self._clients: dict[int, socket.socket] = {}
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / "socket"))
        self._door.listen(64)
        self._ended, self._ends = socket.socketpair()
        self._ended.setblocking(False)
        self._ends.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ends.fileno(), warn_on_full_buffer=False)
        self._look = selectors.DefaultSelector()
        for each in (self._door, self._ended):
            self._look.register(each, selectors.EVENT_READ)
        names = f"ADDRESS, PYTHON = {str(folder / 'socket')!r}, {sys.executable!r}"
        self.python.write_text(f"#!{sys.executable} -IS\n{names}{CLIENT}")
        self.python.chmod(0o755)

    def serve(self, first: int) -> int | tuple[Any, list[int]]:
        """The exit code of the process `first`. In a child it returns what to run and the open
        files that go with it."""
        while True:
            for key, _ in self._look.select():
                if key.fileobj is self._ended:
                    self._ended.recv(4096)
                    if (code := self._reap(first)) is not None:
                        return code
                elif key.fileobj is not self._door:
                    self._gone(key.fileobj)
                elif (asked := self._fork()) is not None:
                    return asked

    def _fork(self) -> tuple[Any, list[int]] | None:
        client, _ = self._door.accept()
        asked, files = _read(client)
        child = os.fork() if asked else -1
        if child == 0:
            self.forget()
            client.close()
            return asked, files
        for each in files:
            os.close(each)
        if child < 0:  # it was killed meanwhile
            client.close()
            return None
        self._clients[child] = client
        self._look.register(client, selectors.EVENT_READ)
        with suppress(OSError):
            client.sendall(f"{child}\n".encode())
        return None

    def _reap(self, first: int) -> int | None:
        code = None
        with suppress(ChildProcessError):
            while (status := os.waitpid(-1, os.WNOHANG))[0]:
                ended = os.waitstatus_to_exitcode(status[1])
                if status[0] == first:
                    code = ended
                elif (client := self._clients.pop(status[0], None)) is not None:
                    with suppress(KeyError):
                        self._look.unregister(client)
                    with suppress(OSError):
                        client.sendall(f"{ended}\n".encode())
                    client.close()
        return code

    def _gone(self, client: Any) -> None:
        """Whose program was killed, unless its fork ended in the same moment."""
        for child, its in self._clients.items():
            if its is client:
                self._look.unregister(client)
                _kill(child)

    def forget(self) -> None:
        """In a child: nothing of the server is left."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._look.close()
        for each in (self._door, self._ended, self._ends, *self._clients.values()):
            each.close()

    def end(self, first: int) -> None:
        for child in self._clients:
            _kill(child)
        with suppress(ProcessLookupError):  # what it started with the plain interpreter
            os.killpg(first, signal.SIGKILL)


def _kill(child: int) -> None:
    for end in (os.killpg, os.kill):  # it may not lead its group yet
        with suppress(ProcessLookupError):
            end(child, signal.SIGKILL)


def _read(client: socket.socket) -> tuple[Any, list[int]]:
    """What a program is, and its open files; (None, files) if it was killed before it had said."""
    files = array.array("i")
    _, told, _, _ = client.recvmsg(1, socket.CMSG_SPACE(_MOST * files.itemsize))
    for _, _, data in told:
        files.frombytes(data)
    with client.makefile("rb") as rest, suppress(OSError, ValueError):
        return json.loads(rest.readline()), list(files)
    return None, list(files)


def become(asked: Any, files: list[int], path: list[str]) -> None:
    """Makes this process as if it had just been started, and runs the program in it."""
    words, folder, environment, mask, numbers = asked
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: with the server
    apart = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 500) for each in files]
    for each in files:
        os.close(each)
    for number, each in zip(numbers, apart, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.chdir(folder)
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environment)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0)  # type: ignore[misc]
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = os.fdopen(number, "w", errors="backslashreplace" if number == 2 else None)
        stream.reconfigure(write_through=unbuffered, line_buffering=number == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    named = words[0] == "-m"
    sys.argv = words[1:] if named else words
    first = folder if named else str(Path(words[0]).resolve().parent)
    paths = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [first, *paths, *path]
    if named:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def main(arguments: list[str]) -> int:
    """The program's exit code. In a child: 0, after its own program, unless that ended it."""
    split, path = arguments.index("--"), sys.path[1:]
    place = Path(tempfile.mkdtemp(prefix="interpreter-"))
    server = Server(place)
    # Before the imports: what they keep of it, every child keeps.
    os.environ[PLAIN], sys.executable = sys.executable, str(server.python)
    kept = dict(os.environ)
    for given in arguments[:split]:
        name, equals, value = given.partition("=")
        if equals:
            os.environ[name] = value
        else:
            importlib.import_module(name)
    os.environ.clear()
    os.environ.update(kept)
    gc.freeze()
    files = [os.dup(number) for number in range(3)]
    asked = arguments[split + 1 :], str(Path.cwd()), kept, os.umask(0o22), [0, 1, 2]
    first = os.fork()
    if first == 0:
        server.forget()
        become(asked, files, path)
        return 0
    for each in files:
        os.close(each)
    signal.signal(signal.SIGINT, lambda *_: os.kill(first, signal.SIGINT))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        ended = server.serve(first)
    finally:
        if os.getpid() == server.pid:
            server.end(first)
            shutil.rmtree(place)
    if isinstance(ended, int):
        return ended if ended >= 0 else 128 - ended
    become(*ended, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
