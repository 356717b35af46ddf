"""A newcomer's rehearsal: the commands of the tutorial, from an empty folder to a report."""

from __future__ import annotations

import base64
import gzip
import re
import shlex
from pathlib import Path

import pytest
from forks import forked_in
from pages import EXAMPLES, ROOT, blocks

from trace_bench.new import main

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_tutorial_leads_from_an_empty_folder_to_a_report(tmp_path: Path) -> None:
    """Every command ends well, and what the page shows is what is said; but for a model's words
    (a block of "txt"), which may be others on another machine."""
    said = ""
    shown = blocks(ROOT / "docs" / "tutorial.md")
    for line in "".join(b.text for b in shown if b.language == "bash").splitlines():
        python, *words = shlex.split(line)
        assert python == "python"
        assert words.pop(0) == "-m"
        code, printed = forked_in(tmp_path, *words)
        assert code == 0, f"{line}\n{printed}"
        said += printed
    lines = {text.rstrip() for text in said.splitlines()}
    for block in (b for b in shown if b.language == "text"):
        assert [text for text in block.text.splitlines() if text not in lines] == []
    assert (tmp_path / "desk.py").read_text() == (EXAMPLES / "desk.py").read_text()
    runs = {p.parent.name for p in tmp_path.glob("runs/*/summary.json")}
    assert runs == {"base", "grpo", "random", "reference", "trace"}
    assert (tmp_path / "tables" / "comparison_320.tex").is_file()
    packed = re.findall(r'id="data-[^"]+">([^<]*)<', (tmp_path / "report.html").read_text())
    report = b"".join(gzip.decompress(base64.b64decode(part)) for part in packed).decode()
    assert {*re.findall(r'"policy":"(\w+)"', report)} == {"local", "random", "reference"}
    assert "desk/own" in report and "desk/test/11" in report


@pytest.mark.parametrize("kind", ["env", "method", "algorithm"])
def test_a_file_under_another_name_says_that_name(kind: str, tmp_path: Path, capsys: Said) -> None:
    assert main([kind, "my_own_1"]) == 0
    text = Path("my_own_1.py").read_text()
    assert not re.search(r"\b(desk|ranks)\b[:/\"]|best_of_prompts", text) and "=my_own_1:" in text
    command = capsys.readouterr().out.partition("Next: python -m ")[2].split()
    command += ["dry_run=true"] if kind != "env" else []
    code, said = forked_in(tmp_path, *command)
    assert code == 0 and "my_own_1" in said and "FAILED" not in said, said


REFUSED = [
    ("there", "there.py is there already, and stays as it is"),
    ("dangling", "dangling.py is there already"),
    ("json", "json is another module"),
    ("class", "'class' is no name of a module; allowed: small letters, digits and _"),
    ("../desk", "'../desk' is no name"),
    ("", "'' is no name"),
    ("n" * 300, "could not be written: File name too long"),
]


@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_odd_or_taken_names_are_refused(name: str, why: str, tmp_path: Path, capsys: Said) -> None:
    Path("there.py").write_text("mine")
    Path("dangling.py").symlink_to("elsewhere.py")
    assert main(["env", name]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and why in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling.py", "there.py"]
    assert Path("there.py").read_text() == "mine"
