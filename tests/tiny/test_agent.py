"""What experiments take for granted of the tiny agent, the shipped one and a rebuilt one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from trace_bench.core.checked import build
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.tiny import MODEL_FOLDER, MadeSettings, World
from trace_bench.tiny.__main__ import main
from trace_bench.tiny.demos import GUIDED, RIGHT, general, lacking
from trace_bench.tiny.phone import SHIPPED, Phone, measure


def kept(name: str) -> dict:
    """Of what lies beside the shipped agent."""
    found: dict = json.loads((MODEL_FOLDER / f"{name}.json").read_text())
    return found


def check(figures: dict) -> None:
    dev = figures["dev"]
    assert 0.30 <= dev["greedy"]["success"] <= 0.50
    assert dev["greedy_plain"]["success"] >= 0.95
    assert dev["greedy_tokens"] <= 200
    helped = 0
    for name, row in figures["capabilities"].items():
        assert 0.05 <= row["none"]["success"] <= 0.5, name
        helped += row["helpful"]["interval"][0] > row["irrelevant"]["interval"][1]
    assert helped >= 2  # a prompt can matter
    assert set(figures["capabilities"]) == set(RIGHT)


@pytest.mark.slow
def test_the_shipped_agent_is_as_its_card_says() -> None:
    figures = measure(MODEL_FOLDER)
    check(figures)
    training = kept("training")
    assert training["report"]["parameters"] <= 2_000_000
    assert sum(f.stat().st_size for f in MODEL_FOLDER.iterdir()) <= 12_000_000


def test_an_agent_can_be_shown_its_capabilities_in_another_share() -> None:
    """The card says so, the demonstrations have it, and guidance still raises what it raises."""
    phone, rng = Phone(World(EmbeddedSuite()), MadeSettings(rare=0.05)), Random(0)
    training, figures = kept("training"), kept("measured")
    card = phone.card(training, figures)
    assert "| converts_values | 0.05 | 0.05 |" in card and "rare=0.05" in card
    assert "| recovers_from_errors | 0.05 | 0.75 |" in card
    often = Phone(World(EmbeddedSuite()), MadeSettings(rare=0.95)).card(training, figures)
    assert "| recovers_from_errors | 0.95 | 0.95 |" in often  # guidance lowers nothing

    def exercised(name: str, guided: frozenset[str]) -> float:
        return 1 - sum(name in lacking(rng, guided, phone.right) for _ in range(4000)) / 4000

    for name in RIGHT:
        assert exercised(name, frozenset()) == pytest.approx(0.05, abs=0.015)
        raised = exercised(name, frozenset(RIGHT))
        assert raised == pytest.approx(GUIDED.get(name, 0.05), abs=0.03)
    other = sum(general(n) != general(n, right=phone.right) for n in range(200))
    assert 10 < other < 150  # what needs no capability stays as it is


@pytest.mark.rebuild
def test_a_rebuilt_agent_is_as_good(tmp_path: Path) -> None:
    """Some twenty minutes."""
    assert main(["build", f"out={tmp_path / 'agent'}"]) == 0
    check(json.loads((tmp_path / "agent" / "measured.json").read_text()))


def test_the_shipped_card_is_that_of_its_figures() -> None:
    training, figures = kept("training"), kept("measured")
    text = (MODEL_FOLDER / "README.md").read_text()
    phone = Phone(World(EmbeddedSuite()), build(MadeSettings, SHIPPED))
    assert phone.card(training, figures) == text
    assert "size=1.0" in text and "11,531,939 tokens in 1,823 steps, until all passes" in text


@pytest.mark.slow
def test_the_phone_worlds_agent_is_a_case_of_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """In small, with the shipped agent's figures in place of 6,000 episodes: its tokenizer is the
    shipped one's, and a second call finds it there."""
    figures = kept("measured")
    monkeypatch.setattr("trace_bench.tiny.phone.measure", lambda *_: figures)
    out = tmp_path / "agent"
    words = ["build", f"out={out}", "size=0.3", "demonstrations=40", "policy.max_turns=2"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "40 demonstrations, " in said and (out / "README.md").read_text() in said
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (MODEL_FOLDER / name).read_bytes()
    training = json.loads((out / "training.json").read_text())
    assert training["recipe"]["row"] == 384 and training["recipe"]["context"] == 1024
    assert not (out / "demonstrated.json").exists()
    assert main(words) == 0
    assert "making" not in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["agent"]
    assert main(["make", *words[1:]]) == 2
    assert "was not made by this command" in capsys.readouterr().err
