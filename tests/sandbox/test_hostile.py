"""Hostile environments against real sandboxes: each ends within its deadline with an error that
names the boundary, or is refused by the sandbox; the host and the other episodes are unharmed."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import RUN, deadline_of, suite_in, try_it
from sandboxes import OTHERS, containers

from trace_bench.sandbox.engine import LABEL

VARIABLE = "OPENAI_API_KEY"
FILTERED = {"docker", "podman"}  # which have a filter of system calls


@pytest.fixture(scope="module", params=OTHERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def suite(kind: str) -> Iterator[Any]:
    """One for all attacks, whose worker is replaced when an attack ends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "sk-secret")
        suite = suite_in(kind)
        yield suite
        suite.close()


@pytest.fixture
def used_up(suite: Any) -> Iterator[Any]:
    """The suite, whose worker is replaced after the test."""
    yield suite
    suite._pool.workers.there[0].kill()


# -- what ends in an error of the sandbox ---------------------------------------------------------

ENDS = {
    "a fork bomb": ("while True: os.fork()", "no answer|ended|Resource temporarily unavailable"),
    "all the memory": ("said = len(b'x' * 2**30)", "out of memory|exit code 137|MemoryError"),
    "memory in the tmpfs and beyond": (
        "a = [bytearray(200 * 2**20)]\nopen('/tmp/x', 'wb').write(b'x' * 15 * 2**20)\n"
        "a.append(bytearray(200 * 2**20))",
        "memory|137|MemoryError",
    ),
    "a flood of output": ("while True: print('x' * 10000)", "no answer within"),
    "a flood on the channel": (
        "out = channel()._out\nwhile True: out.write(b'x' * 65536)",
        "a line of more than",
    ),
    "an endless loop": ("while True: pass", "no answer within"),
    "ignoring SIGTERM": (
        "for n in range(1, 32):\n    attempt(lambda: signal.signal(n, signal.SIG_IGN))\n"
        "while True: time.sleep(1)",
        "no answer within",
    ),
    "invalid JSON": ("c = channel()\nc._out.write(b'{nonsense\\n')\nc._out.flush()", "not JSON"),
    "JSON nested without end": (
        "c = channel()\nc._out.write(b'[' * 10**6 + b'\\n')\nc._out.flush()",
        "not JSON",
    ),
    "an answer to another question": (
        "channel().send({'id': 999, 'results': [{}]})\ntime.sleep(60)",
        "it answered .*999",
    ),
    "leaving in the middle of a step": ("os._exit(0)", "it ended \\(exit code 0"),
    "a crash": ("ctypes.string_at(0)", "it ended \\(exit code 139"),
    "killing its init": ("os.kill(1, signal.SIGKILL)\ntime.sleep(60)", "it ended|no answer"),
    "closing the channel": ("os.close(channel()._out.fileno())\ntime.sleep(60)", "no answer|ended"),
    "asking for someone who is not there": (
        "channel().send({'ask': 1, 'role': 'oracle', 'messages': []})\ntime.sleep(60)",
        "asked for 'oracle'",
    ),
    "a score that is no number": ("score = Score(float('nan'), True)", "not JSON|NaN"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "why"), ENDS.values(), ids=ENDS.keys())
def test_it_ends_with_an_error_of_the_sandbox(body: str, why: str, kind: str, used_up: Any) -> None:
    outcome = try_it(used_up, body)
    assert outcome.error is not None, f"it went on: {outcome.said}"
    assert outcome.boundary in ("sandbox", "environment")
    assert re.search(why, outcome.error), outcome.error
    assert outcome.seconds < 2 * deadline_of(kind) + 8  # two attempts, and a new sandbox
    if outcome.boundary == "environment":
        # Python saw it first.
        assert "MemoryError" in outcome.error or "BlockingIOError" in outcome.error


# -- what the sandbox refuses ---------------------------------------------------------------------

REFUSED = {
    "writing to /etc": "open('/etc/x', 'w')",
    "writing to the program": "open('/opt/project/trace_bench/core/types.py', 'a')",
    "writing to /proc/sys": "open('/proc/sys/kernel/core_pattern', 'w').write('x')",
    "pressing sysrq": "open('/proc/sysrq-trigger', 'w').write('b')",
    "mounting": "syscall(libc.mount, b'none', b'/tmp', b'tmpfs', 0, None)",
    "unmounting": "syscall(libc.umount2, b'/tmp', 2)",
    "another mount namespace": "syscall(libc.unshare, 0x00020000)",
    "changing the root": "os.chroot('/tmp')",
    "becoming root": "os.setuid(0)",
    "making a device": "os.mknod('/tmp/sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0))",
    "reading the memory of the machine": "open('/dev/mem', 'rb').read(1)",
    "reading a disk": "open('/dev/vda', 'rb').read(1)",
    "raising its limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "leaving its cgroup": "open('/sys/fs/cgroup/memory/memory.limit_in_bytes', 'w').write('-1')",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "setting the clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "setting the host name": "socket.sethostname('mine')",
    "a higher priority": "os.nice(-5)",
    "the engine's socket": "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
    "loading a module": "syscall(libc.syscall, 175, b'', 0, b'')",
    "restarting the machine": "syscall(libc.reboot, 0x1234567)",
}  # fmt: skip


def told(suite: Any, body: str) -> str:
    """What the body says, which goes on to its end."""
    outcome = try_it(suite, body)
    assert outcome.said is not None, outcome
    return outcome.said


def test_it_is_refused(suite: Any) -> None:
    tries = "".join(f"    {name!r}: attempt(lambda: {do}),\n" for name, do in REFUSED.items())
    said = json.loads(told(suite, f"said = json.dumps({{\n{tries}}})"))
    assert {n: how for n, how in said.items() if not how.startswith("refused: ")} == {}


def test_a_program_in_the_scratch_space_runs_only_in_bubblewrap(suite: Any, kind: str) -> None:
    said = told(
        suite,
        "open('/tmp/x.sh', 'w').write('#!/bin/sh\\ntrue\\n')\nos.chmod('/tmp/x.sh', 0o755)\n"
        "said = attempt(lambda: subprocess.run(['/tmp/x.sh'], check=True))",
    )
    assert ("PermissionError" in said) == (kind in FILTERED)


def test_a_program_in_memory_has_no_more_rights_than_the_environment(suite: Any, kind: str) -> None:
    """SECURITY.md says so. Docker's own list of system calls allows `memfd_create`."""
    said = told(
        suite,
        "fd = os.memfd_create('x')\nos.write(fd, open('/bin/cat', 'rb').read())\n"
        "there = subprocess.run([f'/proc/self/fd/{fd}', '/proc/self/status'], pass_fds=[fd],\n"
        "                       capture_output=True, text=True, check=True).stdout\n"
        "said = json.dumps([there, open('/proc/self/status').read()])",
    )
    program, worker = (dict(x.split(":\t") for x in text.splitlines()) for text in json.loads(said))
    rights = ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
    assert program["Name"] != worker["Name"]
    assert [program[right] for right in rights] == [worker[right] for right in rights]
    assert int(program["CapBnd"], 16) == 0 and program["NoNewPrivs"] == "1"
    assert (program["Seccomp"] == "2") == (kind in FILTERED)
    assert "0" not in program["Uid"].split()


def test_the_scratch_space_is_small(used_up: Any) -> None:
    fill = "with open('/tmp/x', 'wb') as f:\n    while True: f.write(b'x' * 2**20)"
    outcome = try_it(used_up, fill)
    assert outcome.boundary == "environment" and "No space left" in str(outcome.error)


def test_threads_are_limited(used_up: Any) -> None:
    start = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    outcome = try_it(used_up, f"for _ in range(5000): {start}")
    assert outcome.error is not None and "start new thread" in outcome.error


# -- what it cannot see ---------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """TCP and UDP on this machine's loopback, and what arrived."""
    heard: list[bytes] = []
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        tcp.listen()
        tcp.settimeout(0.2)
        udp.settimeout(0.2)
        stop = threading.Event()

        def listen() -> None:
            while not stop.is_set():
                for take in (lambda: tcp.accept()[0].recv(9), lambda: udp.recv(9)):
                    try:
                        heard.append(take())
                    except TimeoutError:
                        continue

        thread = threading.Thread(target=listen)
        thread.start()
        # The listener hears us, or the test would prove nothing.
        socket.socket(type=socket.SOCK_DGRAM).sendto(b"here", ("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port)) as here:
            here.sendall(b"here")
        yield port, heard
        stop.set()
        thread.join()


def test_there_is_no_network(listener: tuple[int, list[bytes]], suite: Any) -> None:
    port, heard = listener
    assert told(suite, "said = [name for _, name in socket.if_nameindex()]") == "['lo']"
    connect = f"socket.create_connection(('127.0.0.1', {port}), 1)"
    assert told(suite, f"said = attempt(lambda: {connect})").startswith("refused: ")
    udp = "socket.socket(type=socket.SOCK_DGRAM)"
    told(suite, f"{udp}.sendto(b'escaped', ('127.0.0.1', {port}))\ntime.sleep(0.5)")
    assert sorted(heard) == [b"here", b"here"]


def test_no_process_of_the_host_can_be_traced_or_signalled(suite: Any) -> None:
    pid = os.getpid()
    trace = f"syscall(libc.ptrace, 16, {pid}, 0, 0)"
    for do in (trace, f"os.kill({pid}, 0)", "os.kill(-1, signal.SIGKILL)"):
        assert "No such process" in told(suite, f"said = attempt(lambda: {do})")


def test_the_hosts_abstract_sockets_are_out_of_reach(suite: Any) -> None:
    name = "\\0trace_bench_hostile_test"
    with socket.socket(socket.AF_UNIX) as here:
        here.bind("\0trace_bench_hostile_test")
        here.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect('{name}')"
        assert "ConnectionRefused" in told(suite, f"said = attempt(lambda: {connect})")


def test_the_hosts_files_variables_and_processes_are_not_there(suite: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    for path in (secret, Path(__file__).resolve()):
        said = told(suite, f"said = attempt(lambda: open({str(path)!r}).read())")
        assert "FileNotFoundError" in said
    words = "[sorted(os.environ), len([p for p in os.listdir('/proc') if p.isdigit()])]"
    variables, processes = json.loads(told(suite, f"said = json.dumps({words})"))
    assert VARIABLE in os.environ and VARIABLE not in variables
    assert processes < 8


def test_the_hosts_memory_stays_small_while_one_floods(used_up: Any) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try_it(used_up, "out = channel()._out\nwhile True: out.write(b'x' * 65536)")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) / 1024 < 200, "MiB"


@pytest.mark.docker
def test_nothing_is_left_behind() -> None:
    suite = suite_in("docker", workers=2)
    try_it(suite, "os._exit(1)")
    suite.close()
    assert containers("docker", f"{LABEL}={RUN}-2") == []
