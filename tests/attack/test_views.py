"""What is shown of run folders that mean harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trace_bench.core.errors import UserError
from trace_bench.core.summary import read_settings
from trace_bench.core.text import visible
from trace_bench.policies.loading import load_model
from trace_bench.results.places import find
from trace_bench.results.table import Table
from trace_bench.trainers.state import FILE as STATE
from trace_bench.trainers.state import State

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
    runs = find([tmp_path])
    assert not runs.runs and "summary.json" in runs.skipped[0]


def test_control_characters_are_written_out() -> None:
    assert visible("a\x1b[2J\x07b\nc\u202ed\x9b é") == "a\\x1b[2J\\x07b\nc\\u202ed\\x9b é"


def test_a_name_stays_within_its_cell() -> None:
    table = Table("t", "c", ("method", "x"), (("a|b\n<img>", "1"),))
    assert table.markdown().splitlines()[-1] == "| a\\|b &lt;img> | 1 |"
    level = Table("t", "c", ("method", "p"), (("grpo", "<0.0006"),))
    assert level.markdown().splitlines()[-1] == "| grpo | <0.0006 |"


class Bomb:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.place}",)


def test_the_state_of_a_training_runs_no_code(tmp_path: Path) -> None:
    """It is named, and the training repeated from the stored rollouts."""
    torch.save({"identity": "x", "records": Bomb(tmp_path / "ran")}, tmp_path / STATE)
    said: list[str] = []
    assert State.load(tmp_path, "x", said.append) == State("x")
    assert "cannot be read" in said[0] and not (tmp_path / "ran").exists()


def test_a_model_brings_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a person at a terminal could be asked for leave."""
    import json

    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(UserError, match="cannot load a model"):
        load_model(tmp_path)
    assert not (tmp_path / "ran").exists()
