"""What is committed in results/: tables follow from the records beside them."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from trace_bench.results.__main__ import main

RESULTS = Path(__file__).resolve().parents[2] / "results"
TEXTS = (".csv", ".md", ".tex")
COMMANDS = re.compile(r"^    (table|python [\w./]+\.py)((?: .*\\\n)*.*)", re.MULTILINE)


SCRIPTS = sorted(RESULTS.glob("*/run.sh"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_the_committed_tables_are_made_again_from_the_committed_records(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands of each experiment's script, to the byte. Pictures depend on matplotlib's
    version; other tests draw each kind."""
    copy = tmp_path / "results"
    made = shutil.ignore_patterns("*.png", "*.svg", *(f"*{x}" for x in TEXTS))
    shutil.copytree(RESULTS, copy, ignore=made)
    monkeypatch.chdir(copy / script.parent.name)
    monkeypatch.syspath_prepend(copy / "common")  # as runs.sh does
    for name in ("savefig", "tight_layout"):
        monkeypatch.setattr(f"matplotlib.figure.Figure.{name}", lambda *_, **__: None)
    tables = script.read_text().partition("\ntables() {")[2]
    commands = COMMANDS.findall(tables)
    assert commands
    for program, arguments in commands:
        words = shlex.split(arguments.replace("\\\n", " "))
        if program == "table":
            out, *records = words
            assert main(["tables", *records, "--out", out]) == 0
        else:
            monkeypatch.setattr("sys.argv", [program.split()[1], *words])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(program.split()[1], run_name="__main__")
            assert not ended.value.code
    texts = {
        p.relative_to(copy): p.read_bytes() for p in Path.cwd().rglob("*") if p.suffix in TEXTS
    }
    assert texts and not [p for p, text in texts.items() if (RESULTS / p).read_bytes() != text]
    folders = {p.parent for p in texts} - {Path(script.parent.name)}
    committed = {p.relative_to(RESULTS) for f in folders for p in (RESULTS / f).iterdir()}
    assert {p for p in committed if p.suffix in TEXTS} <= {*texts}


def test_every_experiment_is_whole_and_named_on_the_page() -> None:
    page = (RESULTS / "README.md").read_text()
    for folder in (path for path in RESULTS.iterdir() if path.is_dir()):
        assert f"({folder.name}/" in page, folder.name
        if (folder / "rules.md").exists():
            assert (folder / "README.md").exists() and (folder / "run.sh").exists()
            code = re.search(r"code\s+`?[0-9a-f]{7}", (folder / "README.md").read_text())
            assert code, f"{folder.name}/README.md does not name the commit that made its runs"


FIGURES = ["phone/tables/ranking", "budgets/tables/rollout_scaling"]
FIGURES += ["paper/paper_tau2", "paper/paper_rollout_scaling"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_committed_figure_is_read_without_its_page(name: str) -> None:
    """A title in words, what the intervals are, names of methods instead of keys; ours and the
    paper's never together."""
    said = "\n".join(re.findall(r"<!-- (.*?) -->", (RESULTS / f"{name}.svg").read_text()))
    of_paper = name.startswith("paper/")
    assert "interval" in said
    assert ("reported in arXiv" in said) == of_paper
    assert ("Suite toolsandbox/embedded" in said) == (not of_paper)
