"""What experiments take for granted of the tiny agent, the shipped one and a rebuilt one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_bench.tiny import MODEL_FOLDER
from trace_bench.tiny.__main__ import build, main
from trace_bench.tiny.demos import RIGHT
from trace_bench.tiny.measure import card, measure
from trace_bench.tiny.train import SIZES, new_model


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
    stored = json.loads((MODEL_FOLDER / "measured.json").read_text())
    for name, rate in figures["augmentations"].items():  # rounding differs between machines
        assert abs(rate["success"] - stored["augmentations"][name]["success"]) < 0.05
    training = json.loads((MODEL_FOLDER / "training.json").read_text())
    assert (MODEL_FOLDER / "README.md").read_text() == card(training, stored)
    assert training["report"]["parameters"] <= 2_000_000
    assert sum(f.stat().st_size for f in MODEL_FOLDER.iterdir()) <= 12_000_000


@pytest.mark.rebuild
def test_a_rebuilt_agent_is_as_good(tmp_path: Path) -> None:
    """Some twenty minutes."""
    build(tmp_path)
    check(measure(tmp_path))


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["bild"], [], ["build", "--size", "huge"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    assert "'small', 'medium', 'large'" in capsys.readouterr().err.replace('"', "'")
    assert main(["build", "--size", "small"]) == 2
    assert "Name another folder" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "millions"), [("small", 0.3), ("medium", 1.0), ("large", 4.3)])
def test_sizes_have_as_many_parameters_as_they_say(size: str, millions: float) -> None:
    model = new_model(1600, SIZES[size])
    assert model.num_parameters() / 1e6 == pytest.approx(millions, abs=0.05)
