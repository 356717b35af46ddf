"""The pages in docs/, the examples, and a folder with the files of both."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TOP = sorted(ROOT.glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code. `file`: the name that its first line gives it ("# bell.py")."""

    page: str
    language: str
    text: str

    @property
    def file(self) -> str | None:
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    return [Block(page.name, *found) for found in _BLOCK.findall(page.read_text())]


def lay_out(folder: Path) -> None:
    """Writes all examples and all files of the pages, as a reader who follows them would."""
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, folder)
    for page in PAGES:
        for block in blocks(page):
            if block.file is not None:
                (folder / block.file).write_text(block.text)
