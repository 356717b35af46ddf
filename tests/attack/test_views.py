"""What is shown of run folders that mean harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.text import visible
from trace_bench.core.yaml_file import read_settings
from trace_bench.results.places import find
from trace_bench.results.table import Table

BOMB = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)
HOSTILE: dict[str, Callable[[Path], object]] = {
    "an alias bomb": lambda path: path.write_text(BOMB),
    "deep lists": lambda path: path.write_text("a: " + "[" * 100_000),
    "a deep block": lambda path: path.write_text("- " * 10_000 + "x"),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "too large": lambda path: path.write_text("a: " + "x" * 2_000_000),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_settings_that_mean_harm_are_refused(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml"):
        read_settings(tmp_path / "config.yaml")


@pytest.mark.parametrize("name", ["deep lists", "a pipe", "a device"])
def test_a_summary_that_means_harm_is_skipped_and_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 0\n")
    if name == "deep lists":
        (tmp_path / "run" / "summary.json").write_text("[" * 100_000)
    else:
        HOSTILE[name](tmp_path / "run" / "summary.json")
    found = find([tmp_path])
    assert not found.records and "summary.json" in found.skipped[0]


def test_control_characters_are_written_out() -> None:
    assert visible("a\x1b[2J\x07b\nc\u202ed\x9b é") == "a\\x1b[2J\\x07b\nc\\u202ed\\x9b é"


def test_a_name_stays_within_its_cell() -> None:
    table = Table("t", "c", ("method", "x"), (("a|b\n<img>", "1"),))
    assert table.markdown().splitlines()[-1] == "| a\\|b &lt;img> | 1 |"
    level = Table("t", "c", ("method", "p"), (("grpo", "<0.0006"),))
    assert level.markdown().splitlines()[-1] == "| grpo | <0.0006 |"
