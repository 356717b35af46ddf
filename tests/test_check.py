"""The command that a newcomer runs first on an environment of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import EXAMPLES

from trace_bench.check import main

Said = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_embedded_suite_passes(capsys: Said) -> None:
    assert main(["env=toolsandbox", "split=dev", "limit=6"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("toolsandbox/embedded dev, sandbox=inline: 6 tasks")
    assert "mean similarity: reference 1.000" in printed


def test_a_sandbox_is_checked_the_same_way(capsys: Said) -> None:
    assert main(["sandbox=process", "limit=2"]) == 0
    assert "train, sandbox=process: 2 tasks" in capsys.readouterr().out


OVERLAP = """
import trace_bench as tb
from desk import Suite as Desk

class Suite(Desk):
    def task(self, task_id):
        task = super().task(task_id.replace("/test/", "/dev/"))
        return tb.Task(task_id, task.env, task.split, task.seed, task.data)
"""


def test_splits_that_share_tasks_are_found(here: Path, capsys: Said) -> None:
    """The same data is the same task, whatever its id."""
    shutil.copy(EXAMPLES / "desk.py", here)
    (here / "overlap.py").write_text(OVERLAP)
    assert main(["env.factory=desk:Suite", "limit=2"]) == 0
    assert "ok         6  the splits share no task" in capsys.readouterr().out
    assert main(["env.factory=overlap:Suite", "limit=2"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED     5  the splits share no task" in printed
    assert "48 tasks of test are in dev too, such as desk/test/0" in printed
    assert main(["env.factory=overlap:Suite", "limit=2", "protocol=paper"]) == 0


def test_what_trace_can_see_is_told(here: Path, capsys: Said) -> None:
    shutil.copy(EXAMPLES / "desk.py", here / "broker.py")
    shutil.copy(EXAMPLES.parent / "results" / "own_worlds" / "stock.py", here)
    assert main(["env.factory=broker:Suite"]) == 0
    printed = capsys.readouterr().out
    assert "  recovers_from_errors: visible in 3 of 16 tasks\n" in printed
    assert "  checks_preconditions: in none, as no reference has a yes/no tool" in printed
    assert "16 tasks made for recovers_from_errors, of which 9 are contrast cases:\n" in printed
    assert "  [search_stock, set_wifi_status, search_stock]\n" in printed
    assert printed.endswith("  [search_stock]\n")
    assert main(["env=broker"]) == main(["env.factory=broker.py:Suite"]) == 2
    refused = capsys.readouterr().err
    assert "`env.factory=broker:Suite`" in refused
    assert "Did you mean broker:Suite? Change `env.factory`" in refused
    assert main(["env.factory=stock:Suite", "limit=8"]) == 0
    assert "  checks_preconditions: visible in 6 of 8 tasks\n" in capsys.readouterr().out
    text = Path("stock.py").read_text().replace("-> bool:", "-> str:")
    text = text.replace("return item == ", 'return "yes" if item == ')
    text = text.replace('<= self.data["there"]\n', '<= self.data["there"] else "no"\n')
    Path("words.py").write_text(text)
    assert main(["env.factory=words:Suite", "limit=8"]) == 0
    why = "checks_preconditions: in none, though your suite names it, as no"
    assert why in capsys.readouterr().out


@pytest.mark.parametrize("name", ["calendar", "email", "torch", "time"])
def test_a_file_that_hides_another_module_is_refused(name: str, tmp_path: Path) -> None:
    """Before something imports it: the standard library's own modules need `email`."""
    shutil.copy(EXAMPLES / "desk.py", tmp_path / f"{name}.py")
    command = [sys.executable, "-m", "trace_bench.check", f"env.factory={name}:Suite"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {name}.py hides another module")
    assert done.stderr.count("\n") == 1


DEAF = """
import trace_bench as tb
from desk import Desk, Suite as Desks

class Deaf(Desk):
    def step(self, action):
        calls = action.get("tool_calls")
        if not calls or calls[0].get("id") != "bad_0":
            return super().step(action)
        return tb.Step(tuple(tb.answer_call(c, ANSWER) for c in calls))

class Suite(Desks):
    def make(self):
        return Deaf()
"""


@pytest.mark.parametrize(
    ("answer", "why"),
    [('"done"', "no error in 'done' to"), ("c['x']", "KeyError: 'x', after the call")],
)
def test_a_failed_check_shows_the_call_it_sent(
    answer: str, why: str, here: Path, capsys: Said
) -> None:
    shutil.copy(EXAMPLES / "desk.py", here)
    for said, code in (('"ValueError: it is broken"', 0), (answer, 1)):
        (here / f"deaf{code}.py").write_text(DEAF.replace("ANSWER", said))
        sys.modules.pop(f"deaf{code}", None)
        assert main([f"env.factory=deaf{code}:Suite", "limit=1"]) == code
    call = '{"id": "bad_0", "type": "function", "function": {"name": "no_such_tool"'
    assert f"desk/train/0: Broken: {why} {call}" in capsys.readouterr().out
