"""`results worlds`: what methods bring over their base agents, world by world; `results against`:
one method against the best of the others, cell by cell."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.results.__main__ import main
from trace_bench.results.against import make_against
from trace_bench.results.places import Found
from trace_bench.results.records import Record, as_line
from trace_bench.results.worlds import make_worlds

PHONE = {"env.name": "toolsandbox", "env.suite": "embedded", "evaluation.split": "test",
         "protocol": "held_out", "evaluation.trials": 1}  # fmt: skip
LAKES = {**PHONE, "env.name": "textarena", "env.suite": "default", "policy.eval_temperature": 1.0}


def run(
    settings: dict[str, object], method: str, seed: int, won: int, base: int, **own: object
) -> Record:
    """`won` and `base`: how many of 40 tasks the agent and its base agent solve."""
    return Record(
        method=method, budget=640, seed=seed, settings={**settings, **own}, method_settings={},
        rollouts={"training": 640}, tasks=str(settings["env.name"]),
        success=(1.0,) * won + (0.0,) * (40 - won), base=(1.0,) * base + (0.0,) * (40 - base),
        similarity=0.5, tokens=64_000, wall_s={"method": 90.0}, drops={"episodes": 40},
        floors={"idle": 0.0, "reference": 1.0},
        fingerprint=f"{method}{seed}{won}{settings['env.name']}{sorted(own.items())}",
    )  # fmt: skip


def some() -> list[Record]:
    """In one world all gain but the drawn rewards, in the other one algorithm alone."""
    name = "trainer.algorithm.name"
    made = []
    for seed in (1, 2, 3):
        made += [
            run(PHONE, "rl", seed, 32, 10, **{name: "dapo", "trainer.epochs": 1}),
            run(PHONE, "rl", seed, 30 + seed % 2, 10, **{name: "rloo", "trainer.epochs": 2}),
            run(PHONE, "placebo", seed, 11, 10, **{name: "grpo", "trainer.epochs": 2}),
            run(LAKES, "rl", seed, 20, 20, **{name: "dapo", "trainer.epochs": 3}),
            run(LAKES, "rl", seed, 36, 20, **{name: "rloo", "trainer.epochs": 4}),
        ]
    return made


def test_a_gain_is_over_the_worlds_own_base_agent(tmp_path: Path) -> None:
    file, out = tmp_path / "records.jsonl", tmp_path / "out"
    file.write_text("".join(map(as_line, some())))
    command = ["worlds", str(file), "--across", "trainer.algorithm.name", "--out", str(out)]
    assert main(command) == 0
    head, *rows = csv.reader((out / "worlds.csv").open())
    assert head == ["method", "toolsandbox/embedded, greedy", "textarena/default, temperature 1"]
    assert [row[0] for row in rows] == ["rl, rloo", "rl, dapo", "placebo"], "best on average first"
    cells = {row[0]: [text.split()[0] + text[-1] for text in row[1:]] for row in rows}
    assert cells["rl, dapo"] == ["+0.550*", "+0.000]"]
    assert cells["rl, rloo"] == ["+0.517*", "+0.400*"]
    assert cells["placebo"][0] == "+0.025]" and rows[2][2] == "not run"
    about = (out / "about_worlds.md").read_text()
    assert "toolsandbox/embedded, split test" in about and "textarena/default, split test" in about
    drawn = (out / "worlds.svg").read_text()
    assert all(f"<!-- {name} -->" in drawn for name in ("RLOO", "DAPO", "GRPO, drawn rewards"))


def test_a_method_of_two_names_is_one_row_where_no_world_has_both(tmp_path: Path) -> None:
    """In figures `grpo` and `rl` with its default algorithm have the same name."""
    plain = {"trainer.algorithm.name": "grpo", "trainer.epochs": 1}
    records = [
        *some(),
        *(run(PHONE, "rl", seed, 25, 10, **plain) for seed in (1, 2, 3)),
        *(run(LAKES, "grpo", seed, 30, 20, **plain) for seed in (1, 2, 3)),
    ]

    def rows(records: list[Record]) -> dict[str, list[str]]:
        file = tmp_path / "records.jsonl"
        file.write_text("".join(map(as_line, records)))
        command = ["worlds", str(file), "--across", "trainer.algorithm.name"]
        assert main([*command, "--out", str(tmp_path)]) == 0
        _, *lines = csv.reader((tmp_path / "worlds.csv").open())
        return {line[0]: [text.split()[0] for text in line[1:]] for line in lines}

    assert rows(records)["rl, grpo"] == ["+0.375", "+0.250"]
    named = rows([*records, *(run(PHONE, "grpo", seed, 20, 10, **plain) for seed in (1, 2, 3))])
    assert named["rl, grpo"] == ["+0.375", "not"] and named["grpo"] == ["+0.250", "+0.250"]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (some()[1:2], "needs runs of two worlds .* these are of toolsandbox/embedded, greedy"),
        ([*some(), replace(some()[0], budget=320, fingerprint="x")], "these runs have 320, 640"),
        (
            [run(PHONE, "rl", 4, 3, 3, **{"policy.max_turns": 3}),
             run(PHONE, "rl", 4, 3, 3, **{"policy.max_turns": 4})],
            "policy.max_turns is 3 .* or 4",
        ),
    ],
)  # fmt: skip
def test_what_cannot_stand_together_is_refused(
    records: list[Record], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        make_worlds(Found(tuple(records), ()), tmp_path)


def grid() -> list[Record]:
    """Two agents and two rewards: TRACE is ahead by 12 of 40 tasks with one agent and the reward
    `success`, and behind by 8 with it and the other reward; all its gain is on the first half."""
    ahead = {("new", "success"): 12, ("new", "similarity"): -8}
    made = []
    for agent, reward, seed in product(("old", "new"), ("similarity", "success"), (1, 2, 3)):
        own = {"model.path": agent}
        won = 16 + ahead.get((agent, reward), 0)
        some = [run(PHONE, "trace", seed, won, 8, **own), run(PHONE, "rl", seed, 16, 8, **own)]
        some.append(run(PHONE, "joint", seed, 9, 8, **own))
        made += [
            replace(
                r, method_settings={"reward": reward}, needs=(2,) * 30 + (1,) * 10,
                fingerprint=f"{r.fingerprint}{reward}",
            )
            for r in some
        ]  # fmt: skip
    return made


def test_a_method_stands_against_the_best_of_the_others_in_each_cell(tmp_path: Path) -> None:
    file, out = tmp_path / "records.jsonl", tmp_path / "out"
    file.write_text("".join(map(as_line, grid())))
    command = ["against", str(file), "--setting", "model.path,method.reward", "--out", str(out)]
    assert main(command) == 0
    head, *rows = csv.reader((out / "against.csv").open())
    assert head[0] == "model.path and method.reward"
    assert head[-3:] == ["any (40 tasks)", "one (10 tasks)", "several (30 tasks)"]
    cells = {row[0]: [text.split()[0] + text[-1] for text in row[-3:]] for row in rows}
    assert list(cells) == ["new, similarity", "new, success", "old, similarity", "old, success"]
    assert {row[3] for row in rows} == {"rl"}
    assert cells["new, success"] == ["+0.300*", "+0.000]", "+0.400*"]
    assert cells["new, similarity"] == ["-0.200*", "+0.000]", "-0.267*"]
    assert cells["old, success"] == ["+0.000]"] * 3
    head, *rows = csv.reader((out / "against_gains.csv").open())
    assert head == ["method", *cells] and {row[0] for row in rows} == {"trace", "rl", "joint"}
    assert "about_against.md" in (out / "against_gains.md").read_text()
    drawn = (out / "against.svg").read_text()
    assert all(
        f"<!-- {name} -->" in drawn for name in ("capabilities needed: several", "old, success")
    )


@pytest.mark.parametrize(
    ("records", "setting", "words"),
    [
        (grid(), "model.size", "model.size"),
        ([r for r in grid() if r.method == "trace"], "model.path", "needs trace and another"),
        ([r for r in grid() if r.method != "trace"], "model.path", "that of new has joint"),
        ([*grid(), replace(grid()[0], budget=320, fingerprint="x")], "model.path", "320, 640"),
        (grid(), "method.reward", "model.path is"),
    ],
)
def test_cells_that_say_nothing_are_refused(
    records: list[Record], setting: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        make_against(Found(tuple(records), ()), tmp_path, setting)
