"""A hook of mkdocs. Pages link to files beside docs/ (README, examples, results), as a reader of
the repository needs it: the site carries those files, and the links lead to them. Code is coloured
when the site is made, and wide tables break their lines instead of being cut."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parent.parent
STYLE = """
.wy-table-responsive table td, .wy-table-responsive table th { white-space: normal; }
.wy-nav-content { max-width: 60rem; }
.codehilite pre { overflow-x: auto; padding: 12px; line-height: 1.4; font-size: 85%; }
"""
LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")


def address(file: Path) -> str:
    """Where the site has a file of the repository."""
    docs = ROOT / "docs"
    inside = file.is_relative_to(docs)
    return str(file.relative_to(docs)) if inside else f"repository/{file.relative_to(ROOT)}"


def target(source: Path, link: str) -> Path:
    return (source.parent / link).resolve()


def rewritten(text: str, source: Path) -> str:
    here = posixpath.dirname(address(source))
    return LINK.sub(lambda m: posixpath.relpath(address(target(source, m[0])), here or "."), text)


def beside(sources: list[Path]) -> Iterator[Path]:
    """The files outside docs/ that the pages lead to, over any number of links."""
    seen = set(sources)
    while sources:
        source = sources.pop()
        for link in LINK.findall(source.read_text()) if source.suffix == ".md" else ():
            file = target(source, link)
            if file not in seen and file.is_file() and not file.is_relative_to(ROOT / "docs"):
                seen.add(file)
                sources.append(file)
                yield file


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in beside([Path(page.abs_src_path or "") for page in files.documentation_pages()]):
        content = rewritten(file.read_text(), file) if file.suffix == ".md" else file.read_bytes()
        files.append(File.generated(config, address(file), content=content))
    style = STYLE + HtmlFormatter(style="friendly").get_style_defs(".codehilite")
    files.append(File.generated(config, "site.css", content=style))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = Path(page.file.abs_src_path or "")
    return rewritten(markdown, source) if page.file.generated_by is None else markdown
