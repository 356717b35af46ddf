"""Damaged run folders: a message that names the file, or the same result again, no traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trace_bench.__main__ import main
from trace_bench.core.beginning import read_agent

SCRIPTED = ("method=base", "policy=reference", "evaluation.limit=4", "evaluation.split=dev")
TRAINED = (
    "method=grpo", "budget=16", "checkpoints=[]", "trainer.groups=2", "trainer.group_size=4",
    "evaluation.limit=2", "policy.max_turns=2", "policy.max_tokens=16", "env.train_tasks=4",
    "evaluation.split=dev",
)  # fmt: skip
COMMANDS = {"scripted": SCRIPTED, "trained": TRAINED}
Said = pytest.CaptureFixture[str]
Damage = Callable[[Path], object]
Runs = dict[str, Path]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A scripted run and a training, each played once for all tests of this file."""
    root = tmp_path_factory.mktemp("runs")
    for name, command in COMMANDS.items():
        assert main([*command, f"run_dir={root / name}"]) == 0
    return {name: root / name for name in COMMANDS}


def copied(source: Path, place: Path, *, open_again: bool = True) -> Path:
    shutil.copytree(source, place)
    if open_again:
        (place / "summary.json").unlink()
    return place


def lines(name: str, change: Callable[[list[str]], list[str]]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return damage


def content(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def cut(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def without(name: str, number: int) -> Damage:
    return lines(name, lambda all: [*all[:number], *all[number + 1 :]])


def changed(name: str, number: int, line: str) -> Damage:
    return lines(name, lambda all: [*all[:number], line + "\n", *all[number + 1 :]])


def twice(name: str) -> Damage:
    return lines(name, lambda all: [*all, all[0]])


def field(name: str, number: int, key: str, value: Any) -> Damage:
    def change(all: list[str]) -> list[str]:
        line = json.dumps({**json.loads(all[number]), key: value}) + "\n"
        return [*all[:number], line, *all[number + 1 :]]

    return lines(name, change)


def replaced(name: str, by: Damage) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        by(folder / name)

    return damage


def pipe(name: str) -> Damage:
    return replaced(name, os.mkfifo)


def endless(name: str) -> Damage:
    return replaced(name, lambda path: path.symlink_to("/dev/zero"))


WEIGHTS = "adapters/grpo/0002/adapter_model.safetensors"
STATE = "adapters/grpo/state.pt"
KEPT = "evaluation_trajectories.jsonl"


def not_finite(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    first = sorted(weights)[0]
    weights[first][0, 0] = torch.nan
    save_file(weights, folder / WEIGHTS)


REFUSED: dict[str, tuple[str, Damage, str]] = {
    "a ledger line is no JSON": (
        "trained", changed("ledger.jsonl", 3, '{"call": x}'), "ledger.jsonl, line 4",
    ),
    "a ledger line twice": ("trained", twice("ledger.jsonl"), "ledger.jsonl, line 17"),
    "a trajectory line is {}": (
        "trained", changed("trajectories.jsonl", 3, "{}"), "trajectories.jsonl, line 4",
    ),
    "a trajectory is lost": ("trained", without("trajectories.jsonl", 12), "adapters/grpo"),
    "trajectories are a pipe": ("trained", pipe("trajectories.jsonl"), "trajectories.jsonl"),
    "a score is a number": (
        "scripted", field("evaluation.jsonl", 1, "score", 5), "evaluation.jsonl, line 2",
    ),
    "a metric is a list": ("trained", changed("metrics.jsonl", 0, "[]"), "metrics.jsonl, line 1"),
    "the times are words": ("scripted", content("timing.json", '{"total": "x"}'), "timing.json"),
    "the summary is endless": ("scripted", endless("summary.json"), "summary.json"),
    "the settings are empty": ("scripted", content("config.yaml", ""), "config.yaml"),
    "the settings are endless": ("scripted", endless("config.yaml"), "config.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_damaged_is_named(name: str, finished: Runs, tmp_path: Path, capsys: Said) -> None:
    run, damage, named = REFUSED[name]
    folder = copied(finished[run], tmp_path / "run")
    damage(folder)
    assert main([*COMMANDS[run], f"run_dir={folder}"]) == 2
    said = capsys.readouterr().err
    last = said.rstrip().splitlines()[-1]
    assert last.startswith("error: ") and named in last and "Traceback" not in said
    assert any(word in last.lower() for word in ("remove", "run_dir")), "what to do about it"


def several(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def removed(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


MADE_AGAIN: dict[str, tuple[str, Damage]] = {
    "the ledger is gone": ("trained", removed("ledger.jsonl")),
    "a ledger line is lost": ("trained", without("ledger.jsonl", 5)),
    "a trajectory and adapters are gone, as advised": (
        "trained",
        several(without("trajectories.jsonl", 12), removed("adapters")),
    ),
    "the state is cut": ("trained", cut(STATE)),
    "the adapter is not finite": ("trained", not_finite),
    "an evaluated episode is lost": ("trained", without("evaluation.jsonl", 1)),
}


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_can_be_remade_is(name: str, finished: Runs, tmp_path: Path, capsys: Said) -> None:
    run, damage = MADE_AGAIN[name]
    folder = copied(finished[run], tmp_path / "run")
    damage(folder)
    assert main([*COMMANDS[run], f"run_dir={folder}"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert results(folder) == results(finished[run])


def results(folder: Path) -> dict[str, Any]:
    """Everything that a run computes, without the order in which lost lines came back."""
    names = ("ledger.jsonl", "trajectories.jsonl", "evaluation.jsonl", KEPT)
    computed: dict[str, Any] = {
        name: set((folder / name).read_text().splitlines())
        for name in names
        if (folder / name).exists()
    }
    weights = folder / WEIGHTS
    computed["adapter"] = weights.read_bytes() if weights.exists() else None
    summary = json.loads((folder / "summary.json").read_text())
    computed["summary"] = {k: summary[k] for k in ("score", "base_score", "rollouts", "table")}
    return computed


def test_a_copied_run_uses_its_own_adapters(finished: Runs, tmp_path: Path) -> None:
    folder = copied(finished["trained"], tmp_path / "run", open_again=False)
    (adapter,) = read_agent(folder / "agent.json").adapters
    assert Path(adapter.path) == folder / "adapters" / "grpo" / "0002"
