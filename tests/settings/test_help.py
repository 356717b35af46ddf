"""`--help` shows the docstrings of settings and the comments of files."""

from __future__ import annotations

import pytest

from trace_bench.__main__ import main
from trace_bench.settings.choices import GROUPS, files, offered
from trace_bench.settings.help import settings_of, text


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def described(listing: str) -> dict[str, str]:
    """The names of a listing with their descriptions."""
    found: dict[str, str] = {}
    name = ""
    for line in listing.splitlines():
        if line.startswith("  ") and line[2:3].strip():
            name, _, rest = line.strip().partition(" ")
            found[name.partition("=")[0]] = rest.strip()
            name = name.partition("=")[0]
        elif line.startswith(" " * 20) and name:
            found[name] += f" {line.strip()}"
    return found


def choices(group: str) -> set[str]:
    return {*files(group), *(offered(group) if group in GROUPS else ())}


def test_every_group_and_every_setting_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    listed = described(said(capsys, "--help").partition("Groups")[2])
    assert {"env", "experiment", "sandbox", "budget", "evaluation", "dry_run"} <= listed.keys()
    assert all(len(about) > 10 for about in listed.values())
    for group in (*GROUPS, "experiment"):
        before = listed[group].partition(":")[0]
        assert before and before != listed[group], f"{group} is not described"


@pytest.mark.parametrize("group", [*GROUPS, "experiment"])
def test_every_choice_and_its_every_setting_is_described(group: str) -> None:
    said = text(group)
    listed = described(said)
    assert choices(group) <= listed.keys() and max(map(len, said.splitlines())) <= 100
    assert all(len(about) > 15 for about in listed.values())
    for choice in offered(group) if group in GROUPS else ():  # those of a file take Hydra's time
        assert all(len(entry.about) > 4 for entry in settings_of(group, choice)), choice


@pytest.mark.parametrize("asked", [["--help", "method=trace"], ["method=trace", "-h"]])
def test_a_choice_shows_its_settings(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, *asked)
    assert "method.gap=0.2" in shown and "lowest contrastive gap of the error rates" in shown


def test_a_choice_of_a_file_shows_what_differs_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "--help", "policy=openai")
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in shown and "policy.batch=64" in shown
    assert "llm.judge.by=endpoint" in text("llm=endpoint")
    assert "trainer.stall=3600.0" in text("trainer=verl_30b")


def test_a_setting_of_the_run_shows_all_that_it_is() -> None:
    assert "held-out evaluation is not charged" in " ".join(text("budget").split())
    assert "evaluation.trials=1" in text("evaluation")


@pytest.mark.parametrize("wrong", ["methods", "method=tracer"])
def test_what_there_is_not_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "method" in error and error.count("\n") == 1
