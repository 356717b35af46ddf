"""Helpers in tests/ (models.py, toy.py) are importable from every test folder."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import shared
import tiers
from models import save_adapter, save_model

# What each of a hundred processes imports is compiled once for all of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
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


LONG = {f"test_{name}.py" for name in ("pages", "show", "api", "made", "ledgers", "local", "tau2")}
"""Files whose tests take half a minute or more, or wait for the longest of the shared runs."""


gc.disable()  # nothing of what is imported while tests are collected can be freed


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # by default it takes a thirtieth of the tests' time
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # xdist would start with the file of most tests
        config.option.loadscopereorder = False
    if config.getoption("markexpr") == "fast":
        tiers.NoTorch.install()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m fast, no file is read that would import torch. (None: as pytest decides.)"""
    test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if test and config.getoption("markexpr") == "fast" and tiers.of(collection_path) != "fast":
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test its tier. Files that take long come first, so that all workers end together,
    then the fast ones."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not marks & {*tiers.LANES, "fast", "model"}:
            item.add_marker(tiers.of(item.path))
    items.sort(key=lambda i: (i.path.name not in LONG, i.get_closest_marker("fast") is None))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds what a test took to the file that TRACE_BENCH_TEST_TIMES names: .ci/run shows the
    slowest of all its commands."""
    path = os.environ.get("TRACE_BENCH_TEST_TIMES")
    if path and "PYTEST_XDIST_WORKER" not in os.environ and report.duration >= 1:
        with Path(path).open("a") as file:
            file.write(f"{report.duration:6.1f} s  {report.nodeid} ({report.when})\n")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables without the figures, which take a second."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="session")
def small_model() -> Iterator[Path]:
    """A random Qwen3 (`models.save_model`) with its tokenizer."""
    with shared.shared("model", save_model) as folder:
        yield folder


@pytest.fixture(scope="session")
def small_adapter(small_model: Path) -> Iterator[Path]:
    """A random LoRA adapter of the small model (`models.save_adapter`)."""
    with shared.shared("adapter", partial(save_adapter, small_model)) as folder:
        yield folder


@pytest.fixture(scope="session")
def base_run() -> Iterator[Path]:
    """The folder of a finished run of method=base."""
    with shared.shared("base", shared.run("method=base")) as folder:
        yield folder


@pytest.fixture(scope="session")
def grpo_run() -> Iterator[Path]:
    """The folder of a finished run of method=grpo, with a curve of one point."""
    with shared.shared("grpo", shared.run("method=grpo")) as folder:
        yield folder


@pytest.fixture(scope="session")
def trace_run() -> Iterator[Path]:
    """The folder of a finished run of method=trace: capabilities, an adapter, a route, the joint
    yardstick, a curve of one point."""
    with shared.shared("trace", shared.run("method=trace")) as folder:
        yield folder


@pytest.fixture(scope="session")
def report_file(grpo_run: Path, trace_run: Path) -> Iterator[Path]:
    """The report of both trained runs."""

    def make(folder: Path) -> None:
        shared.command("trace_bench.report", grpo_run, trace_run, "--out", folder / "report.html")

    with shared.shared("report", make) as folder:
        yield folder / "report.html"


@pytest.fixture(scope="session")
def tables(base_run: Path, grpo_run: Path, trace_run: Path) -> Iterator[Path]:
    """The folder that `results tables` fills from the three runs."""

    def make(folder: Path) -> None:
        runs = (base_run, grpo_run, trace_run)
        shared.command("trace_bench.results", "tables", *runs, "--out", folder)

    with shared.shared("tables", make) as folder:
        yield folder
