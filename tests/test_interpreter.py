"""Programs forked from a process that has imported what they need (interpreter.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# What a program finds, and what becomes of the programs that it starts. `trace_bench.its` is one.
OUTER = """
import os, subprocess, sys, time
assert sys.executable != os.environ["TRACE_BENCH_PYTHON"] and "NAME" not in os.environ

def begin(*words, **more):
    command = [sys.executable, "-m", "trace_bench.its", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)

read, write = os.pipe()
done = begin("say", str(write), pass_fds=[write], cwd="there", env={**os.environ, "OWN": "1"})
print(done.communicate()[0], done.returncode, os.read(read, 9))
for end, code in (("terminate", -15), ("kill", -9)):
    child = begin("wait", str(write), pass_fds=[write])
    pid = int(child.stdout.readline())
    getattr(child, end)()
    assert child.wait() == code, child.returncode
    for _ in range(500):
        if not os.path.exists(f"/proc/{pid}"):
            break
        time.sleep(0.02)
    else:
        raise SystemExit(f"{end}: the fork is left")
plain = [sys.executable, "-c", "import sys; print('json' in sys.modules, sys.executable)"]
print(subprocess.run(plain, capture_output=True, text=True).stdout)
raise SystemExit("no more")
"""
ITS = """
import os, sys, time
what, file = sys.argv[1:]
if what == "say":
    print(os.path.basename(os.getcwd()), os.environ["OWN"], "decimal" in sys.modules)
    os.write(int(file), b"heard")
    sys.exit(7)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only for Linux")
def test_forks_behave_as_programs(tmp_path: Path) -> None:
    """Folder, variables, open files, exit code, signals, output; a killed one leaves nothing."""
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "there").mkdir()
    package = tmp_path / "lib/trace_bench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "its.py").write_text(ITS)
    command = [sys.executable, str(HERE / "interpreter.py"), "NAME=value", "decimal"]
    where: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    env = {"PYTHONPATH": str(tmp_path / "lib"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, "--", "outer.py"], env=env, **where)
    assert (done.returncode, done.stderr) == (1, "no more\n")
    said = f"there 1 True\n 7 b'heard'\nFalse {sys.executable}\n\n"
    assert done.stdout == said
