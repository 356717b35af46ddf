"""What the pages in docs/ say is so: their code runs, their commands are understood, their links
lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from forks import forked_in
from pages import PAGES, ROOT, TOP, blocks, lay_out

from trace_bench.methods.looking.capabilities import VOCABULARY

PROGRAM = """
from pathlib import Path
from trace_bench.__main__ import main
from trace_bench.check import main as check
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
for line in Path("commands.txt").read_text().splitlines():
    kind, *arguments = line.split("\\t")
    print(line, flush=True)
    if "smollm2" in line:  # it cannot be planned before it is fetched
        parts_of(compose(arguments))
        continue
    code = check(arguments) if kind == "check" else main([*arguments, "dry_run=true"])
    planned = (0, 1)  # 1: something is missing on this machine, such as a server
    assert code in ((0,) if kind == "check" else planned), (line, code)
"""


def commands(page: Path) -> list[str]:
    text = "".join(b.text for b in blocks(page) if b.language == "bash")
    return text.replace("\\\n", " ").splitlines()


@pytest.mark.slow
def test_every_command_is_understood(tmp_path: Path) -> None:
    """Runs are planned (dry_run=true), checks are made; scripts and other programs must be there.
    All in one process."""
    lay_out(tmp_path)
    lines = []
    readme = "".join(b.text for b in blocks(ROOT / "README.md")[2:] if b.language == "bash")
    everything = [c for page in PAGES for c in commands(page)]  # .ci/run has README's first two
    everything += [line for line in readme.splitlines() if not line.startswith("cd ")]
    for words in (shlex.split(c, comments=True) for c in everything):
        assert words[0].removeprefix("../").removeprefix(".venv/bin/") == "python"
        if words[1:3] == ["-m", "trace_bench"]:
            lines.append(["run", *words[3:]])
        elif words[1:3] == ["-m", "trace_bench.check"]:
            lines.append(["check", *words[3:]])
        elif words[1] == "-m":
            module = ROOT / Path(*words[2].split("."))
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), words
        else:
            assert (tmp_path / words[1]).is_file(), words
    assert len(lines) > 10
    text = "\n".join(dict.fromkeys("\t".join(line) for line in lines))
    (tmp_path / "commands.txt").write_text(text)
    (tmp_path / "all_commands.py").write_text(PROGRAM)
    code, said = forked_in(tmp_path, "all_commands")
    assert code == 0 and "FAILED" not in said, said


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_python_on_a_page_runs(page: Path, tmp_path: Path) -> None:
    """The blocks of a page one after the other, with smaller budgets; a file must be importable."""
    lay_out(tmp_path)
    found = [b for b in blocks(page) if b.language == "python"]
    for block in found:
        ast.parse(block.text)
        assert max(map(len, block.text.splitlines())) <= 100
    script = "".join(f"import {b.file.removesuffix('.py')}\n" for b in found if b.file)
    script += "\n".join(b.text for b in found if not b.file)
    quick = re.sub(r"budget=(320|64)\b", "budget=40, checkpoints=[], evaluation__limit=8", script)
    if found:
        command = [sys.executable, "-c", quick]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).resolve().exists(), link
    for name in re.findall(r"`((?:trace_bench|conf|examples)/[\w/]+\.\w+)`", page.read_text()):
        if name != "conf/env/bell.yaml":  # the reader's
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("name", ["SECURITY.md", "CONTRIBUTING.md"])
def test_what_the_top_pages_rest_on_is_there(name: str) -> None:
    """The tests that they name, the commands of make; the README links to them."""
    text = (ROOT / name).read_text()
    tests = re.findall(r"`(?:\.venv/bin/pytest )?(tests/[\w/.]+)`", text)
    assert tests and all((ROOT / test).exists() for test in tests)
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make (\w+)`", text)) <= made
    assert f"]({name})" in (ROOT / "README.md").read_text()


def test_the_table_of_capabilities_is_the_vocabulary() -> None:
    page = (ROOT / "docs" / "environments.md").read_text()
    section = page.split("\n## Names of capabilities\n")[1].split("\n## ")[0]
    table, controls = section.split("\nFour ")
    offered = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert offered == [c.name for c in VOCABULARY if not c.control]
    assert re.findall(r"`(\w+)`", controls) == [c.name for c in VOCABULARY if c.control]
