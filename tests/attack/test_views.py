"""What is shown of run folders that mean harm."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from trace_bench.core.errors import UserError
from trace_bench.core.summary import read_settings
from trace_bench.core.text import visible
from trace_bench.policies.loading import load_model
from trace_bench.results.places import find
from trace_bench.results.table import Table
from trace_bench.trainers.model import FILE as STATE
from trace_bench.trainers.model import State

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


@pytest.mark.parametrize("name", HOSTILE)
def test_settings_that_mean_harm_are_refused(name: str, tmp_path: Path) -> None:
    HOSTILE[name](tmp_path / "config.yaml")
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


NAMES = [
    *(c + d for c in map(chr, range(32, 127)) for d in ("", "x", "(", "[", "!", "1", " ", c)),
    "<img src=x>", "![a](b)", "[a](b)", "[a]: b", "[a][b]", "a\\|b", "a\\\\|b", "&lt;b&gt;", "1. a",
    "=cmd()", "+1+cmd|' /C calc'!A0", "@SUM(1)", "-2+f(1)", "a\n<img>", "\\input{x}", "```\na",
]  # fmt: skip


def test_a_name_stays_a_text_in_every_format() -> None:
    """In captions and cells: no markup in Markdown, no command in TeX, no formula in CSV; and
    whatever is no figure can be read as it was."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    markdown.disable(["emphasis", "strikethrough", "backticks"])
    every = "".join(filter(str.isprintable, map(chr, range(sys.maxunicode))))
    for name in filter(str.strip, [*re.findall(".{1,2000}", every), *NAMES]):
        table = Table("t", name, ("method", "x"), ((name, "1"),))
        shown = ElementTree.fromstring(f"<a>{markdown.render(table.markdown())}</a>")
        assert {e.tag for e in shown.iter()} == {
            "a", "p", "table", "thead", "tr", "th", "tbody", "td",
        }, name  # fmt: skip
        for path in ("p", "table/tbody/tr/td"):
            assert (shown.findtext(path) or "").split() == name.split()
        _, row = csv.reader(io.StringIO(table.csv()))
        assert row[0] in (name, f"'{name}"), name
        assert row[0][:1] not in tuple("=+-@\t\r") or {*row[0]} <= {*"0123456789+-., []*"}, name
        tex = re.sub(r"\\text\w+\{\}|\\[&%_#${}]", "", table.latex().splitlines()[6])
        assert not re.search(r"[\\{}$%#_^~]", tex.removeprefix("{}").replace("\\\\", "")), name
    level = Table("t", "c", ("method", "p"), (("grpo", "<0.0006"), ("a", "+0.1 [-0.2, +0.3]*")))
    assert level.markdown().splitlines()[-2] == "| grpo | <0.0006 |"
    assert level.csv().splitlines()[-1] == 'a,"+0.1 [-0.2, +0.3]*"'
    assert "\n{}[x" in Table("t", "c", ("m",), (("[x",),)).latex()


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
