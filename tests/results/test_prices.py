"""Money: known amounts, and every gap named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from results.test_results import SETTINGS, record

from trace_bench.core.errors import UserError
from trace_bench.llm.roles import ROLES as ASKED
from trace_bench.results.__main__ import main
from trace_bench.results.compare import cells
from trace_bench.results.prices import ROLES, Prices, bill, read_prices, table
from trace_bench.results.records import Record, as_line, read_records

WHOLE = """
gpu_hour: 2.0
gpus: 4
cpu_hour: 0.1
cpus: 10
tokens:
  user: {prompt: 1, completion: 10.0}
"""


def run(**changes: Any) -> Record:
    """Two hours; the base agent solves 1 of 4 tasks, the trained one 3."""
    found = replace(record("grpo", [1, 1, 1, 0]), base=(1, 0, 0, 0), wall_s={"total": 7200.0})
    usage = {"user": {"prompt_tokens": 3_000_000, "completion_tokens": 200_000}}
    return replace(found, **{"usage": usage, "drops": {"episodes": 4}, **changes})


def prices(tmp_path: Path, text: str) -> Prices:
    path = tmp_path / "cost.yaml"
    path.write_text(text)
    return read_prices(path)


def test_the_amounts_are_right(tmp_path: Path) -> None:
    own = prices(tmp_path, WHOLE)
    found = bill(run(), own)
    # 2 h of 4 GPUs at 2, of 10 CPUs at 0.1; 3 million at 1 and 0.2 million at 10.
    assert found.parts == pytest.approx({"GPU": 16.0, "CPU": 2.0, "tokens": 5.0})
    assert found.unpriced == ()
    made = table(cells([run(), replace(run(), seed=1)]), own, "")
    # 50 points for 23.
    assert made.rows == (
        ("grpo", "640", "2", "2.000", "16.00", "2.00", "5.00", "23.00", "+50.0", "0.46"),
    )
    assert "Used and unpriced: nothing." in made.caption
    (row,) = table(cells([run(success=(0, 0, 0, 0))]), own, "").rows
    assert row[-2:] == ("-25.0", "no gain")


def test_what_has_no_price_is_named(tmp_path: Path) -> None:
    own = prices(tmp_path, "currency: EUR")
    made = table(cells([run(settings={**SETTINGS, "policy.device": "cuda:0"})]), own, "")
    assert made.rows[0][4:8] == ("unpriced", "unpriced", "unpriced", "at least 0.00")
    assert "Used and unpriced: CPU hours; GPU hours; tokens of user." in made.caption
    assert bill(run(), own).unpriced == ("CPU hours", "tokens of user")  # no GPU was used
    old = run(usage={}, wall_s={}, settings={**SETTINGS, "llm.user.by": "endpoint"})
    assert bill(old, prices(tmp_path, WHOLE)).unpriced == (
        "GPU hours (not recorded)", "CPU hours (not recorded)", "tokens of user (not recorded)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gpu_hours: 2", r"unknown key 'gpu_hours'; allowed: currency, gpu_hour"),
        ("gpu_hour: -1\ngpus: 1", r"gpu_hour=-1 is not allowed; allowed: a number from 0"),
        ("gpu_hour: 1", r"one of gpu_hour and gpus only"),
        ("tokens: {usr: {prompt: 1, completion: 1}}", r"unknown role 'usr'; allowed: policy, user"),
        ("tokens: {user: {prompt: 1}}", r"`tokens.user.completion` is missing"),
        ("tokens: {user: 3}", r"`tokens.user` is 3; allowed: a group"),
        ("[1", r"cost.yaml cannot be read"),
    ],
)
def test_prices_that_cannot_be_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        prices(tmp_path, text)


def test_tables_have_the_money(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib, which is not installed")
    file = tmp_path / "records.jsonl"
    file.write_text(as_line(run()))
    assert read_records(file) == [run()]
    prices(tmp_path, WHOLE)
    given = ["tables", str(file), "--out", str(tmp_path / "out")]
    assert main([*given, "--prices", str(tmp_path / "cost.yaml")]) == 0
    assert "| grpo | 640 | 1 | 2.000 |" in (tmp_path / "out" / "money.md").read_text()
    assert main([*given, "--prices", str(tmp_path / "none.yaml")]) == 2
    assert "--prices" in capsys.readouterr().err


def test_every_role_can_have_a_price() -> None:
    """`results` imports no part that runs, so it has a list of its own."""
    assert set(ROLES) == {"policy", *ASKED}
