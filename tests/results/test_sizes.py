"""`results sizes`: what methods bring and cost over the size of the base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.results import sizes
from trace_bench.results.__main__ import main
from trace_bench.results.places import Found
from trace_bench.results.records import Record, as_line

SETTINGS = {
    "env.name": "toolsandbox",
    "env.suite": "embedded",
    "evaluation.split": "test",
    "evaluation.trials": 1,
    "protocol": "held_out",
    "model.name": "tiny",
    "trainer.learning_rate": 0.003,
}
COLD = {
    "sha256": "c",
    "rollouts": 0,
    "demonstrations": 40,
    "runs": [
        {"method": "sft", "env": "e", "seed": 0, "budget": 640, "fingerprint": "f",
         "rollouts": {}, "demonstrations": 40}
    ],
}  # fmt: skip


def run(method: str, seed: int, success: Sequence[int], parameters: int | None) -> Record:
    large = parameters is not None and parameters > 10**7
    more = {"model.name": "hf", "trainer.learning_rate": 0.001} if large else {}
    return Record(
        method=method, budget=640, seed=seed, settings={**SETTINGS, **more}, method_settings={},
        rollouts={"training": 640}, tasks="t", success=tuple(map(float, success)),
        base=(1.0, 0.0, 0.0, 0.0), similarity=0.5, tokens=64_000, wall_s={"method": 90.0},
        drops={"episodes": len(success)}, floors={"idle": 0.25, "reference": 1.0},
        fingerprint=f"{method}{seed}{parameters}", parameters=parameters,
        beginning=COLD if large else None,
    )  # fmt: skip


def runs(method: str, parameters: int, success: Sequence[int]) -> list[Record]:
    return [run(method, seed, success, parameters) for seed in (1, 2)]


EVERY = [
    *runs("grpo", 1_000_000, [1, 1, 0, 0]),
    *runs("trace", 1_000_000, [1, 0, 0, 0]),
    *runs("grpo", 135_000_000, [1, 1, 1, 0]),
]


def test_each_model_has_its_own_base_and_gain(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(map(as_line, EVERY)))
    assert main(["sizes", str(file), "--out", str(tmp_path / "out")]) == 0
    found = (tmp_path / "out" / "sizes.csv").read_text().splitlines()[1:]
    assert [r.split('"')[1] for r in found] == ["1,000,000", "1,000,000", "135,000,000"]
    assert all(",2,0.250," in r and r.endswith(",1.5,64") for r in found)
    assert "+0.250 [" in found[0] and "+0.000 [" in found[1] and "+0.500 [" in found[2]
    text = (tmp_path / "out" / "about_sizes.md").read_text()
    assert "also differ: model.name tiny, hf; trainer.learning_rate 0.003, 0.001." in text
    assert "began with the agent of sft" in text and "sft > grpo" not in text
    assert (tmp_path / "out" / "sizes.png").stat().st_size > 10_000


def test_the_caption_counts_the_seeds_of_each_model() -> None:
    """Not all seeds of all models: those of one may be others."""
    others = tuple(replace(r, seed=r.seed + 2) for r in EVERY[4:])
    assert ", 2 seeds, 1 trial" in sizes.table(Found((*EVERY[:4], *others), ()))[2]
    fewer = sizes.table(Found((*EVERY[:4], others[0]), ()))[2]
    assert ", 2 seeds, 1 trial; Suite" in fewer and ", 1 seed, 1 trial" in fewer


def test_a_method_with_two_settings_has_two_rows() -> None:
    other = [replace(r, method_settings={"split": "equal"}, fingerprint=f"{r.fingerprint}o")
             for r in EVERY[:2]]  # fmt: skip
    made = [replace(r, method_settings={"split": "progress"}) for r in EVERY[:2]]
    table, *_ = sizes.table(Found((*made, *other, *EVERY[2:]), ()))
    named = {row[1] for row in table.rows}
    assert named == {"trace", "grpo, split equal", "grpo, split progress", "grpo"}


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([*EVERY, run("grpo", 3, [1, 1, 0, 0], None)], "do not say how many parameters"),
        (EVERY[:4], "at least two models"),
        (
            [
                *EVERY,
                replace(
                    EVERY[0],
                    seed=3,
                    settings={**SETTINGS, "trainer.learning_rate": 0.1},
                    fingerprint="y",
                ),
            ],
            "trainer.learning_rate is 0.003 .*or 0.1",
        ),
        (
            [*EVERY, replace(EVERY[-1], method="sft", beginning=None, fingerprint="z")],
            "135,000,000 parameters began with different agents",
        ),
        ([*EVERY, replace(EVERY[0], budget=320, fingerprint="x")], "these runs have 320, 640"),
        ([*EVERY[:-1], replace(EVERY[-1], tasks="u")], "held-out tasks is t .*or u"),
    ],
)
def test_what_cannot_stand_together_is_refused(records: list[Record], words: str) -> None:
    with pytest.raises(UserError, match=words):
        sizes.table(Found(tuple(records), ()))
