"""`--help` shows the comments in conf/."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_bench.__main__ import main
from trace_bench.settings.compose import conf_dir
from trace_bench.settings.help import descriptions, entries, keys, whole_names

GROUPS = sorted(p for p in conf_dir().iterdir() if p.is_dir())


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def described(text: str) -> dict[str, str]:
    """The names of a listing with their descriptions."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("  ") and line[2:3].strip():
            name, _, rest = line.strip().partition(" ")
            found[name.partition("=")[0]] = rest.strip()
            name = name.partition("=")[0]
        elif line.startswith(" " * 20) and name:
            found[name] += f" {line.strip()}"
    return found


def test_every_group_and_every_setting_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--help")
    listed = described(text.partition("Groups")[2])
    names = {p.name for p in GROUPS} | {e.name for e in entries(conf_dir() / "config.yaml")}
    assert all(len(listed[name]) > 10 for name in names)
    for group in GROUPS:
        before = listed[group.name].partition(":")[0]
        assert before and before != listed[group.name], f"{group.name} is not described"


@pytest.mark.parametrize("group", GROUPS, ids=lambda p: p.name)
def test_every_choice_is_described(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = described(said(capsys, "--help", group.name))
    assert {p.stem for p in group.glob("*.yaml")} <= listed.keys()
    assert all(len(about) > 15 for about in listed.values())


def test_every_key_in_conf_has_a_description() -> None:
    """A key without a comment: write one beside it, in one of the files that have it."""
    told = descriptions(conf_dir())
    assert len(told) > 200
    assert not [name for name, about in told.items() if len(about) < 5]


@pytest.mark.parametrize("group", GROUPS, ids=lambda p: p.name)
def test_the_help_of_a_group_has_every_key(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--help", group.name)
    assert max(map(len, text.splitlines())) <= 100
    for path in group.glob("*.yaml"):
        for entry in whole_names(path, conf_dir()):
            if entry.name.startswith(f"{group.name}."):
                assert f"    {entry.name}" in text, f"{path.name} sets {entry.name}"
    assert "as above: ," not in text


def test_a_comment_is_that_of_its_key(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "# What it is for.\n\nname: own\nsize: 3       # of it, in\n              # metres\n"
        "# Its colour,\n# by name\nhue:\n  dark: null    # or a text\n\n# A heading.\n\nlast: 1\n"
    )
    assert [(e.name, e.comment) for e in keys(path)] == [
        ("name", ""), ("size", "of it, in metres"), ("hue", "Its colour, by name"),
        ("hue.dark", "or a text"), ("last", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("asked", [["--help", "method=trace"], ["method=trace", "-h"]])
def test_a_choice_shows_its_settings(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *asked)
    assert "gap: 0.20" in text and "least difference of its error rates" in text


def test_files_of_ones_own_are_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "half.yaml").write_text(
        "# Half of the road.\ndefaults: [custom]\nname: half\nsteps: 3   # how many of them\n"
    )
    own = ["--config-dir", str(tmp_path)]
    assert "half," in described(said(capsys, *own, "--help"))["method"]
    listed = said(capsys, "--help", "method", *own)
    assert "Half of the road." in listed and "method.steps=3" in listed and "method.gap" in listed
    assert "how many of them" in said(capsys, "--help", "method=half", f"--config-dir={tmp_path}")
    assert main(["--help", "--config-dir", "nowhere"]) == 2
    assert "--config-dir nowhere is not a folder" in capsys.readouterr().err


def test_a_setting_of_the_run_shows_its_whole_comment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "held-out evaluation is not charged" in " ".join(
        said(capsys, "--help", "budget").split()
    )


@pytest.mark.parametrize("wrong", ["methods", "method=tracer"])
def test_what_there_is_not_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "method" in error and error.count("\n") == 1
