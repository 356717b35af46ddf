"""How large a report is and how long a browser takes to show it.

    python tests/bench/report.py RUN [RUN ...] [--starts 5] [--plotly FILE]

Prints the file's size, the time to write it, and the time from opening it in Chromium until its
text and until its first chart are there (minimum, median and maximum over fresh pages of one
browser). Needs Chromium and the package playwright.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from trace_bench.report.page import build
from trace_bench.report.runs import find


def shown(values: list[float]) -> str:
    """Milliseconds as seconds."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{low / 1000:.2f} / {middle / 1000:.2f} / {high / 1000:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--plotly", type=Path, help="as for the report")
    given = parser.parse_args()
    began = time.perf_counter()
    found, skipped = find(given.runs)
    page, _ = build(found, skipped, 60_000_000, given.plotly)
    seconds = time.perf_counter() - began
    print(f"{len(found)} runs: {len(page) / 1e6:.1f} MB in {seconds:.1f} s")
    text, chart = [], []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as tool:
        path = Path(folder) / "report.html"
        path.write_text(page)
        browser = tool.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        browser.new_page().goto("about:blank")
        for _ in range(given.starts):
            opened = browser.new_page(viewport={"width": 1200, "height": 1600})
            opened.goto(path.as_uri())
            opened.wait_for_selector(".main-svg")
            text.append(opened.evaluate("performance.getEntriesByName('shown')[0].startTime"))
            chart.append(opened.evaluate("performance.now()"))
            opened.close()
        browser.close()
    print(f"text after {shown(text)}, first chart after {shown(chart)}")


if __name__ == "__main__":
    main()
