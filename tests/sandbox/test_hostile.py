"""Hostile environments against real sandboxes: each ends within its deadline with an error that
names the boundary, or is refused by the sandbox; the host and the other episodes are unharmed."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import deadline_of, suite_of, try_it

from trace_bench.sandbox.docker import connect
from trace_bench.sandbox.engine import LABEL

KINDS = [
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.podman),
    pytest.param("bubblewrap", marks=pytest.mark.rootless),
]
FILTERED = {"docker", "podman"}  # which have a filter of system calls


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- what ends in an error of the sandbox ---------------------------------------------------------

ENDS = {
    "a fork bomb": ("while True: os.fork()", "no answer|ended|Resource temporarily unavailable"),
    "all the memory": ("said = len(b'x' * 2**30)", "out of memory|exit code 137|MemoryError"),
    "memory bit by bit": (
        "a = []\nwhile True: a.append(bytearray(2**20))",
        "[mM]emory|137|no answer",
    ),
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
    "a flood of whole lines": (
        "out = channel()._out\nwhile True: out.write(b'{}\\n' * 1000); out.flush()",
        "it answered '{}'",
    ),
    "an endless loop": ("while True: pass", "no answer within"),
    "ignoring SIGTERM": (
        "for n in range(1, 32):\n    attempt(lambda: signal.signal(n, signal.SIG_IGN))\n"
        "while True: time.sleep(1)",
        "no answer within",
    ),
    "sleeping past the deadline": ("time.sleep(600)", "no answer within"),
    "stopping itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "no answer within"),
    "a line of 100 MB": (
        "c = channel()\nc._out.write(b'\"' + b'x' * 10**8 + b'\"\\n')\nc._out.flush()",
        "a line of more than|no answer",
    ),
    "invalid JSON": ("c = channel()\nc._out.write(b'{nonsense\\n')\nc._out.flush()", "not JSON"),
    "JSON that is no object": ("c = channel()\nc._out.write(b'[1]\\n')\nc._out.flush()", "object"),
    "JSON nested without end": (
        "c = channel()\nc._out.write(b'[' * 10**6 + b'\\n')\nc._out.flush()",
        "not JSON",
    ),
    "bytes that are no text": (
        "c = channel()\nc._out.write(b'\\xff\\xfe{\\n')\nc._out.flush()",
        "not JSON",
    ),
    "an answer to another question": (
        "channel().send({'id': 999, 'results': [{}]})\ntime.sleep(60)",
        "it answered .*999",
    ),
    "more answers than questions": (
        "channel().send({'id': 4, 'results': [{}, {}, {}]})\ntime.sleep(60)",
        "it answered|results for",
    ),
    "answers of the wrong kind": (
        "channel().send({'id': 4, 'results': 'fine'})\ntime.sleep(60)",
        "it answered",
    ),
    "leaving in the middle of a step": ("os._exit(0)", "it ended \\(exit code 0"),
    "leaving with an error": ("os._exit(3)", "exit code 3"),
    "a crash": ("ctypes.string_at(0)", "it ended \\(exit code 139"),
    "killing its init": ("os.kill(1, signal.SIGKILL)\ntime.sleep(60)", "it ended|no answer"),
    "closing the channel": ("os.close(channel()._out.fileno())\ntime.sleep(60)", "no answer|ended"),
    "asking for someone who is not there": (
        "channel().send({'ask': 1, 'role': 'oracle', 'messages': []})\ntime.sleep(60)",
        "asked for 'oracle'",
    ),
    "a score that is a text": ("score = Score('1.0', True)", "is '1.0'; allowed: a number"),
    "a success that is a text": ("score = Score(1.0, 'yes')", "is 'yes'; allowed: bool"),
    "a score beyond the top": ("score = Score(7.0, True)", "from 0 to 1"),
    "a score that is no number": ("score = Score(float('nan'), True)", "not JSON|NaN"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "why"), ENDS.values(), ids=ENDS.keys())
def test_it_ends_with_an_error_of_the_sandbox(body: str, why: str, kind: str) -> None:
    outcome = try_it(body, kind)
    assert outcome.error is not None, f"it went on: {outcome.said}"
    assert outcome.boundary in ("sandbox", "environment")
    assert any(word in outcome.error for word in why.split("|")) or _matches(why, outcome.error)
    assert outcome.seconds < 2 * deadline_of(kind) + 8  # two attempts, and a new sandbox
    if outcome.boundary == "environment":
        # Python saw it first.
        assert "MemoryError" in outcome.error or "BlockingIOError" in outcome.error


def _matches(why: str, error: str) -> bool:
    import re

    return re.search(why, error) is not None


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


def test_it_is_refused(kind: str) -> None:
    tries = "".join(f"    {name!r}: attempt(lambda: {do}),\n" for name, do in REFUSED.items())
    outcome = try_it(f"said = json.dumps({{\n{tries}}})", kind)
    assert outcome.said is not None, outcome
    said = json.loads(outcome.said)
    assert {n: how for n, how in said.items() if not how.startswith("refused: ")} == {}


@pytest.mark.docker
def test_a_program_in_the_scratch_space_does_not_run() -> None:
    kind = "docker"
    outcome = try_it(
        "open('/tmp/x.sh', 'w').write('#!/bin/sh\\ntrue\\n')\nos.chmod('/tmp/x.sh', 0o755)\n"
        "said = attempt(lambda: subprocess.run(['/tmp/x.sh'], check=True))",
        kind,
    )
    assert outcome.said is not None and "PermissionError" in outcome.said


def test_a_program_in_memory_has_no_more_rights_than_the_environment(kind: str) -> None:
    """SECURITY.md says so. Docker's own list of system calls allows `memfd_create`."""
    outcome = try_it(
        "fd = os.memfd_create('x')\nos.write(fd, open('/bin/cat', 'rb').read())\n"
        "there = subprocess.run([f'/proc/self/fd/{fd}', '/proc/self/status'], pass_fds=[fd],\n"
        "                       capture_output=True, text=True, check=True).stdout\n"
        "said = json.dumps([there, open('/proc/self/status').read()])",
        kind,
    )
    assert outcome.said is not None, outcome
    ran, own = (
        dict(x.split(":\t") for x in text.splitlines()) for text in json.loads(outcome.said)
    )
    rights = ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
    assert ran["Name"] != own["Name"] and [ran[r] for r in rights] == [own[r] for r in rights]
    assert int(ran["CapBnd"], 16) == 0 and ran["NoNewPrivs"] == "1"
    assert (ran["Seccomp"] == "2") == (kind in FILTERED)
    assert "0" not in ran["Uid"].split()


def test_the_scratch_space_is_small(kind: str) -> None:
    outcome = try_it("with open('/tmp/x', 'wb') as f:\n    while True: f.write(b'x' * 2**20)", kind)
    assert outcome.boundary == "environment" and "No space left" in str(outcome.error)


def test_threads_are_limited(kind: str) -> None:
    outcome = try_it(
        "for _ in range(5000):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        kind,
    )
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


def test_there_is_no_network(listener: tuple[int, list[bytes]], kind: str) -> None:
    port, heard = listener
    only = try_it("said = [name for _, name in socket.if_nameindex()]", kind)
    assert only.said == "['lo']"  # before anything is sent
    tcp = try_it(
        f"said = attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 1))", kind
    )
    assert tcp.said is not None and tcp.said.startswith("refused: ")
    try_it(
        f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'escaped', ('127.0.0.1', {port}))\n"
        "time.sleep(0.5)",
        kind,
    )
    assert sorted(heard) == [b"here", b"here"]


def test_no_process_of_the_host_can_be_traced_or_signalled(kind: str) -> None:
    for do in ("syscall(libc.ptrace, 16, {pid}, 0, 0)", "os.kill({pid}, 0)"):
        outcome = try_it(f"said = attempt(lambda: {do.format(pid=os.getpid())})", kind)
        assert outcome.said is not None and "No such process" in outcome.said
    everyone = try_it("said = attempt(lambda: os.kill(-1, signal.SIGKILL))", kind)
    assert everyone.said is not None and "No such process" in everyone.said


def test_the_hosts_abstract_sockets_are_out_of_reach(kind: str) -> None:
    with socket.socket(socket.AF_UNIX) as here:
        here.bind("\0trace_bench_hostile_test")
        here.listen()
        outcome = try_it(
            "said = attempt(lambda: socket.socket(socket.AF_UNIX).connect("
            "'\\0trace_bench_hostile_test'))",
            kind,
        )
    assert outcome.said is not None and "ConnectionRefused" in outcome.said


def test_the_hosts_files_are_not_there(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    home = Path(__file__).resolve()
    for path in (secret, home):
        outcome = try_it(f"said = attempt(lambda: open({str(path)!r}).read())", kind)
        assert outcome.said is not None and "FileNotFoundError" in outcome.said


def test_the_hosts_variables_and_processes_are_not_there(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    outcome = try_it(
        "pids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "said = json.dumps([sorted(os.environ), len(pids)])",
        kind,
    )
    assert outcome.said is not None and "OPENAI_API_KEY" not in outcome.said
    assert int(outcome.said.rstrip("]").split()[-1]) < 8


def test_the_hosts_memory_stays_small_while_one_floods(kind: str) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try_it("out = channel()._out\nwhile True: out.write(b'x' * 65536)", kind)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) / 1024 < 200, "MiB"


@pytest.mark.docker
def test_nothing_is_left_behind() -> None:
    suite = suite_of("os._exit(1)", "docker", workers=2)
    suite.close()
    left = connect().containers.list(all=True, filters={"label": f"{LABEL}=hostile"})
    assert left == [] and os.getpid()
