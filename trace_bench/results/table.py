"""How results are shown: tables as Markdown, LaTeX (booktabs) and CSV, and the order, names,
colours and markers of methods (style.json)."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.decode import decode
from trace_bench.core.store import write_text
from trace_bench.core.summary import Interval


@dataclass(frozen=True)
class Table:
    """`rows` of text under `header`; the first column is left-aligned."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        line = "| " + " | ".join(map(_markdown, self.header)) + " |"
        rule = "|" + "|".join(["---", *["---:"] * (len(self.header) - 1)]) + "|"
        body = ["| " + " | ".join(map(_markdown, row)) + " |" for row in self.rows]
        return "\n".join([paragraph(self.caption), "", line, rule, *body]) + "\n"

    def latex(self) -> str:
        rows = [" & ".join(map(_tex, row)) + r" \\" for row in (self.header, *self.rows)]
        # Behind the end of a row, a bracket or a star would be its option.
        head, *body = (f"{{}}{row}" if row[0] in "[*" else row for row in rows)
        columns = "l" + "r" * (len(self.header) - 1)
        begin = [r"\begin{table}", rf"\caption{{{_tex(self.caption)}}}"]
        begin += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
        return "\n".join([*begin, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def csv(self) -> str:
        out = io.StringIO()
        rows = [map(_csv, row) for row in (self.header, *self.rows)]
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue()


# A tag (but not "<0.0006"), a character's name, the end of a link's text, an escape, a cell's end.
_MARKDOWN = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<=\])(?=[(\[:])|\\(?=[!-/:-@\[-`{-~])|\|")
_BEGINNING = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[#>+*=~_`-]))")
_FIGURES = re.compile(r"[-+]\d[-+\d.,\[\] *]*")
_TEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%_#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " "}
)


def _markdown(text: str) -> str:
    """A text that stays within its cell and is no HTML, link or image."""
    names = {"<": "&lt;", "&": "&amp;"}
    escaped = _MARKDOWN.sub(lambda mark: names.get(mark[0], f"\\{mark[0]}"), text)
    return " ".join(escaped.splitlines())


def paragraph(text: str) -> str:
    """A text that is nothing but a paragraph of Markdown."""
    return _BEGINNING.sub(r"\1\\", _markdown(text).strip())


def _tex(text: str) -> str:
    """A text that TeX prints as it is and never reads as a command."""
    return text.translate(_TEX)


def _csv(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not _FIGURES.fullmatch(text) else text


def write(
    tables: Iterable[Table], out: Path, page: str = "", about: Iterable[str] = ()
) -> list[Path]:
    """Each table with rows in three formats, and the page that their captions name; the files."""
    written = [out / f"{page}.md"] if page else []
    for path in written:
        write_text(path, "\n\n".join(map(paragraph, about)) + "\n")
    for table in (t for t in tables if t.rows):
        for kind, text in (("md", table.markdown), ("tex", table.latex), ("csv", table.csv)):
            written.append(out / f"{table.name}.{kind}")
            write_text(written[-1], text())
    return written


def estimate(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def gap(interval: Interval) -> str:
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


# -- how methods are shown -------------------------------------------------------------------------

OTHER = "#000000"


@dataclass(frozen=True)
class Look:
    label: str
    colour: str
    marker: str


@dataclass(frozen=True)
class Style:
    """`control`: the method that every other is compared with; `focus`: the one looked at most
    closely; `methods`: looks in the order of tables; `spare`: colours and markers for others."""

    control: str
    focus: str
    methods: Mapping[str, Look]
    spare: tuple[tuple[str, str], ...]

    def place(self, method: str) -> tuple[int, str]:
        order = list(self.methods)
        return (order.index(method) if method in self.methods else len(order), method)

    def looks(self, methods: Iterable[str]) -> Mapping[str, Look]:
        """A look for each method of a figure. Those that style.json does not name get a spare one,
        of its own colour and marker; where there are no more, they are black."""
        names = sorted(set(methods), key=self.place)
        named = [self.methods[name] for name in names if name in self.methods]
        taken = {look.colour for look in named} | {look.marker for look in named}
        spare = iter([s for s in self.spare if not taken & {*s}])
        return {
            name: self.methods.get(name) or Look(name.replace("_", " "), *next(spare, (OTHER, ".")))
            for name in names
        }


@functools.lru_cache(maxsize=1)
def style() -> Style:
    return decode(Path(__file__).with_name("style.json").read_bytes(), Style)
