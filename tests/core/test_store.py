import errno
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest

from trace_bench.core import store
from trace_bench.core.errors import UserError
from trace_bench.core.types import (
    Boundary,
    Failure,
    Milestone,
    Purpose,
    Score,
    StopReason,
    Trajectory,
    Turn,
    to_json,
)

TOOL = {"type": "function", "function": {"name": "f"}}
TURN = Turn(({"role": "user", "content": "é"},), {"role": "assistant"}, (1,), (2,), (-0.5,))
SCORE = Score(0.5, False, {"a": 1}, (Milestone("m", 0.5, False, 3),))
GONE = Failure(Boundary.SANDBOX, "gone")
FAILED = Trajectory("t", 1, "base", (TOOL,), (TURN,), (), StopReason.ERROR, SCORE, GONE)


def test_seeds_are_the_same_in_every_process():
    given = ("run", 3, "train/grpo/iter0001", 7)
    here = store.stable_seed(*given)
    code = f"from trace_bench.core.store import stable_seed as s; print(s(*{given}))"
    command, other = [sys.executable, "-c", code], {"PYTHONHASHSEED": "1"}
    there = subprocess.run(command, capture_output=True, text=True, env=other)
    assert here == int(there.stdout)
    assert here == 3057428230788123393 and 0 <= here < 2**63
    assert store.stable_seed("a", "b") != store.stable_seed("ab")


def test_fingerprint_ignores_order_and_sees_values():
    one = {"method": "grpo", "budget": {"rollouts": 640, "dev": 2}}
    two = {"budget": {"dev": 2, "rollouts": 640}, "method": "grpo"}
    assert store.fingerprint(one) == store.fingerprint(two)
    assert store.fingerprint(one) != store.fingerprint({**one, "method": "trace"})
    assert len(store.fingerprint(one)) == 12


def test_json_files_are_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "summary.json"
    store.write_json(path, {"score": Score(0.5, False)})
    store.write_json(path, {"score": Score(1.0, True, {"m": [1]})})
    score = {"similarity": 1.0, "success": True, "details": {"m": [1]}}
    none: dict[str, list[object]] = {"milestones": [], "minefields": [], "checks": []}
    assert store.read_json(path)["score"] == {**score, **none}
    assert [p.name for p in path.parent.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    "value",
    [
        FAILED,
        {"call": "a", "index": 3, "trajectory": FAILED},
        MappingProxyType({"a": (1, 2.5), "b": [None, Purpose.TRAINING], Purpose.PROMPT: {}}),
        {1: "a", 2.5: "b", "c": {"d": FAILED}},
        {("a", 1): "keys that are no strings"},
        ["half a character: \ud83d", "ü"],
    ],
)
def test_lines_are_the_json_of_the_plain_data(tmp_path, value):
    with closing(store.Lines(tmp_path / "x.jsonl", dict)) as lines:
        lines.append(value)
    text = (tmp_path / "x.jsonl").read_text()
    assert json.loads(text) == json.loads(json.dumps(to_json(value)))
    assert "\\u00fc" not in text or "\\ud83d" in text  # escapes only where there is no other way


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "agent.json"
    store.write_text(path, "old")

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(UserError, match=r"disk is full.*agent\.json.*run_dir"):
        store.write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["agent.json"]


@pytest.mark.parametrize("torn", [b'{"n": 3', b"{", b'{"n": 3}', b"\xff\xfe"])
def test_a_torn_last_line_is_removed(tmp_path, torn):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes('{"n": 1, "text": "Zoë"}\n{"n": 2}\n'.encode() + torn)
    assert [line["n"] for line in store.read_lines(path)] == [1, 2]
    with closing(store.Lines(path, dict)) as lines:
        assert [line["n"] for line in lines] == [1, 2]
        lines.append({"n": 3})
        assert path.read_bytes().count(b"\n") == 3  # flushed before close
    assert [line["n"] for line in store.read_lines(path)] == [1, 2, 3]


@pytest.mark.parametrize("bad", [b"{oops}", b"[1]", b"", b"\xff"])
def test_a_corrupt_line_is_named(tmp_path, bad):
    path = tmp_path / "ledger.jsonl"
    content = b'{"n": 1}\n' + bad + b'\n{"n": 3}\n'
    path.write_bytes(content)
    for lines in (store.Lines(path, dict), store.each_line(path, dict)):
        with pytest.raises(UserError, match=r"ledger\.jsonl, line 2 is corrupt.*Remove the file"):
            list(lines)
    assert path.read_bytes() == content


def test_a_full_disk_is_reported_in_words_and_leaves_whole_lines(tmp_path):
    """A real file that may not grow: the shell's limit on file sizes stands for the disk's end."""
    path = tmp_path / "ledger.jsonl"
    code = f"""
import errno, resource, signal, pathlib
from trace_bench.core import store
from trace_bench.core.errors import UserError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
lines = store.Lines(pathlib.Path({str(path)!r}), dict)
try:
    for n in range(100):
        lines.append({{"n": n, "text": "x" * 100}})
except UserError as error:
    print(error.__cause__.errno == errno.EFBIG, n)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "8"], ran.stderr
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == list(range(8))


def test_what_cannot_be_read_or_written_becomes_a_user_error(tmp_path):
    refused = pytest.raises(UserError, match=r"could not write .*: no\. Change .*`run_dir`")
    with refused, store.disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "no")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not write \S+/file/b: \S+/file: File exists"):
        store.write_text(tmp_path / "file" / "b", "text")
    with pytest.raises(UserError, match="cannot be read: Too many levels"):
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
        store.read_bytes(tmp_path / "circle")
    (tmp_path / "bad.json").write_text('{"a": 1,\n}')
    with pytest.raises(UserError, match=r"bad\.json is not JSON \(.*line 2"):
        store.read_json(tmp_path / "bad.json")


def test_a_path_in_a_message_is_one_line_of_a_bounded_length():
    for name, told in (
        ("a b", "a b"),
        ("é", "é"),
        ("a\nb\x1b", "a\\nb\\x1b"),
        ("x" * 300, "x" * 60 + "..."),
    ):
        assert store.brief(Path(name)) == told


def test_what_a_killed_program_left_goes_though_nobody_has_waited_for_it(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    left = tmp_path / f".a.{child.pid}.tmp"
    left.write_text("half")
    store.remove_leftovers([left])
    assert store.running(child.pid) and left.exists()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert store.process(child.pid)[0] == "Z" and not store.running(child.pid)
    store.remove_leftovers([left])
    assert not left.exists()
    child.communicate()


def test_two_programs_that_make_one_folder_do_not_spoil_each_other(tmp_path):
    out = tmp_path / "out"
    other = f"""from pathlib import Path
from trace_bench.core.store import replacing, whole
for make in (whole, replacing,):
    with make(Path({str(out)!r})) as place:
        place.mkdir(exist_ok=True)
        (place / "other").write_text(make.__name__)
"""
    with pytest.raises(UserError, match="could not write"), store.whole(out) as place:
        (place / "mine").write_text("half")
        subprocess.run([sys.executable, "-c", other], check=True)
        assert [file.name for file in place.iterdir()] == ["mine"]
    assert (out / "other").read_text() == "replacing" and [*tmp_path.iterdir()] == [out]
    with store.replacing(out) as place:
        place.mkdir()
        subprocess.run([sys.executable, "-c", other.replace("in (whole, ", "in (")], check=True)
        (place / "mine").write_text("whole")
    assert [file.name for file in out.iterdir()] == ["mine"] and [*tmp_path.iterdir()] == [out]


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Its holder did so between this one's opening of the file and its turn."""
    import fcntl

    real, times = fcntl.flock, list[int]()

    def late(file, how):
        if not times:
            (tmp_path / store.LOCK).unlink()
        times.append(how)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with store.locked(tmp_path, "taken"):
        with pytest.raises(UserError, match="taken"), store.locked(tmp_path, "taken"):
            pass
        assert (tmp_path / store.LOCK).read_text() in ("", f"{os.getpid()}\n")
    assert len(times) == 3
