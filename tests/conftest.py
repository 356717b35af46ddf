"""Helpers in tests/ (models.py, toy.py) are importable from every test folder."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one a worker
# A shell's background job ignores Ctrl-C, and what it starts inherits that: the tests that send one
# mean the programs that a person starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
with contextlib.suppress(ImportError):  # the environment of the verl tests has none
    import hypothesis

    # A slow machine is no fault (an example may take 0.2 s by default), and what failed once fails
    # again.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "repeats", deadline=None, derandomize=True, suppress_health_check=slow
    )
    hypothesis.settings.load_profile("repeats")


@pytest.hookimpl(optionalhook=True)  # the environments of the vLLM and verl tests have no xdist
def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`: one more than there are cores, since a third of the time tests wait for a
    server, a worker or a clock."""
    return (os.cpu_count() or 1) + 1


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds what a test took to the file that TRACE_BENCH_TEST_TIMES names: .ci/run shows the
    slowest of all its commands."""
    path = os.environ.get("TRACE_BENCH_TEST_TIMES")
    if path and "PYTEST_XDIST_WORKER" not in os.environ and report.duration >= 1:
        with Path(path).open("a") as file:
            file.write(f"{report.duration:6.1f} s  {report.nodeid} ({report.when})\n")
