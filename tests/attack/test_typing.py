"""What a person types wrong is answered by one line."""

from __future__ import annotations

import pytest

from trace_bench.__main__ import main


@pytest.mark.parametrize(
    "typed", ["experiment=null", "+experiment=null", "method=null", "env=null", "model=null"]
)
def test_a_group_set_to_null_is_answered_by_one_line(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {typed} is not allowed") and said.count("\n") == 1
