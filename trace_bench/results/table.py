"""A table, its content as Markdown, LaTeX (booktabs) and CSV, and how figures stand in cells."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.store import write_text
from trace_bench.results.statistics import Interval


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
        return "\n".join([self.caption, "", line, rule, *body]) + "\n"

    def latex(self) -> str:
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [" & ".join(map(_tex, row)) + r" \\" for row in self.rows]
        return (
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{_tex(self.caption)}}}",
                    rf"\begin{{tabular}}{{{columns}}}",
                    r"\toprule",
                    " & ".join(map(_tex, self.header)) + r" \\",
                    r"\midrule",
                    *lines,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
            + "\n"
        )

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.header, *self.rows])
        return out.getvalue()


_TAG = re.compile(r"<(?=[A-Za-z/!?])")  # "<0.0006" is none and stays as it is


def _markdown(text: str) -> str:
    """A text that stays within its cell and is no HTML."""
    return " ".join(_TAG.sub("&lt;", text.replace("|", "\\|")).splitlines())


def _tex(text: str) -> str:
    for mark in "&%_#$":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("~", r"\textasciitilde{}").replace("^", r"\textasciicircum{}")


def write(tables: Sequence[Table | None], out: Path) -> list[Path]:
    """Each table in three formats; the files. None stands for a table that has nothing to show."""
    written = []
    for table in tables:
        if table is None:
            continue
        for kind, text in (("md", table.markdown), ("tex", table.latex), ("csv", table.csv)):
            written.append(out / f"{table.name}.{kind}")
            write_text(written[-1], text())
    return written


def estimate(found: Interval) -> str:
    """A value with its interval."""
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def gap(found: Interval) -> str:
    """A difference with its interval."""
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
