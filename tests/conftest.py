"""Helpers in tests/ (models.py, toy.py) are importable from every test folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one a worker


@pytest.hookimpl(optionalhook=True)  # the environments of the vLLM and verl tests have no xdist
def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`: one more than there are cores, since a third of the time tests wait for a
    server, a worker or a clock."""
    return (os.cpu_count() or 1) + 1
