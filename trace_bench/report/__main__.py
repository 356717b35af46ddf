"""`python -m trace_bench.report RUN [RUN ...] --out report.html`: runs to look at in a browser.

A RUN is the folder of a finished run, or a folder with such folders somewhere below it. The report
is one file that needs no network and no server: tables with intervals, curves, what the budget
went to, the capabilities and the routing of TRACE, every held-out task with two agents side by
side, and any stored conversation. Several runs are compared by task. With --follow, unfinished runs
are shown while they go on, with what each has cost.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import not_allowed
from trace_bench.core.store import write_text
from trace_bench.core.text import visible
from trace_bench.report.live import follow, unfinished
from trace_bench.report.page import build
from trace_bench.report.runs import check_folders, find

LIMIT_MB, MOST_MB = 60, 10_000


@command(interrupted="ended")
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("report", __doc__)
    parser.add_argument("places", nargs="+", metavar="RUN", type=Path)
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="file to write")
    text = f"leave out conversations of training, the last runs' first, beyond this ({LIMIT_MB})"
    parser.add_argument("--limit-mb", type=float, default=LIMIT_MB, help=text)
    text = "show unfinished runs on a page that loads itself again, until all are finished"
    parser.add_argument("--follow", action="store_true", help=text)
    text = "how often, with --follow (5)"
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help=text)
    options = parser.parse_intermixed_args(arguments)
    if not 0 <= options.limit_mb <= MOST_MB:
        raise not_allowed("--limit-mb", f"{options.limit_mb:g}", f"a number from 0 to {MOST_MB}")
    if not 0.1 <= options.every <= 3600:
        raise not_allowed("--every", f"{options.every:g}", "a number from 0.1 to 3600")
    if options.follow:
        check_folders(options.places)
        if unfinished(options.places):
            print(f"{options.out} shows the runs while they go on; Ctrl-C ends that", flush=True)
            follow(options.places, options.out, options.every)
    rows, skipped = find(options.places)
    for text in skipped:
        print(visible(f"skipped: {text}"), file=sys.stderr)
    html, left_out = build(rows, skipped, int(options.limit_mb * 1e6))
    write_text(options.out, html)
    for text in left_out:
        print(visible(f"left out: {text}"), file=sys.stderr)
    print(f"{options.out} ({len(html) / 1e6:.1f} MB, {sum(len(row.runs) for row in rows)} runs)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
