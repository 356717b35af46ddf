"""The report in a real Chromium, opened from disk: what a reader sees and does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_data import HOSTILE, poisoned

from trace_bench.report.__main__ import main

pytestmark = pytest.mark.browser
NARROW = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def file(trace_run: Path, grpo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs: one of TRACE, and one whose conversations hold HTML."""
    place = tmp_path_factory.mktemp("report")
    shutil.copytree(grpo_run, place / "grpo")
    poisoned(place / "grpo")
    out = place / "report.html"
    assert main([str(trace_run), str(place / "grpo"), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found is not None, "no chromium; on Debian: apt-get install chromium"
    with sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """The report, opened. Fails afterwards for any error on the console and any request."""
    opened = browser.new_page()
    troubles: list[str] = []
    opened.on("console", lambda m: troubles.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda e: troubles.append(str(e)))
    own = ("data:", file.as_uri())
    opened.on("request", lambda r: None if r.url.startswith(own) else troubles.append(r.url))
    opened.goto(file.as_uri())
    opened.wait_for_selector("h1")
    yield opened
    opened.close()
    assert not troubles


def show(page: Any, state: str) -> None:
    """Goes to a view and waits until it is there."""
    page.evaluate("document.getElementById('main').replaceChildren()")
    page.evaluate(f"location.hash = {state!r}")
    page.wait_for_selector("main h1")


def rows(page: Any) -> list[str]:
    return list(page.locator("tbody tr td:first-child").all_inner_texts())


def test_the_overview_compares_the_runs(page: Any) -> None:
    page.wait_for_selector("text=method.analysis_share")
    text = page.inner_text("main")
    assert "2 runs" in text and "trace, budget 160" in text
    page.locator("figure .chart").first.scroll_into_view_if_needed()
    page.wait_for_selector(".chart .main-svg")
    page.get_by_role("link", name="trace, budget 160").first.click()
    page.wait_for_selector("text=What the budget went to")
    text = page.inner_text("main")
    for heading in ("Agents on the held-out tasks", "Capabilities", "Settings and versions"):
        assert heading in text


def test_curves_of_chosen_runs_are_drawn_one_over_the_other(page: Any) -> None:
    part = page.locator("section", has_text="Curves of chosen runs").first
    part.scroll_into_view_if_needed()
    names = part.locator(".legendtext")
    names.nth(1).wait_for()
    assert sorted(names.all_text_contents()) == sorted(
        part.locator("option").all_text_contents()[:2]
    )
    part.locator("select").first.select_option(["1"])
    part.locator("select").last.select_option("reward")
    part.get_by_text("Reward of training over charged rollouts.").wait_for()
    part.locator(".main-svg").first.wait_for()
    assert part.locator(".scatterlayer .trace").count() == 1


def test_no_two_marks_of_an_axis_are_labelled_alike(page: Any) -> None:
    show(page, "view=run&run=0")
    for chart in page.locator("figure .chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
        labels = chart.locator(".xtick text").all_text_contents()
        assert len(labels) > 1 and len(labels) == len(set(labels)), labels


def test_tasks_are_sorted_filtered_and_searched(page: Any) -> None:
    show(page, "view=tasks&left=0/base&right=0/final")
    assert len(rows(page)) == 8
    name = page.get_by_role("button", name="task", exact=True)
    name.click()
    assert rows(page) == sorted(rows(page))
    name.click()
    assert rows(page) == sorted(rows(page), reverse=True)
    page.keyboard.press("/")
    page.keyboard.type("test/0007")
    assert [r[-9:] for r in rows(page)] == ["test/0007"]
    page.get_by_label("Search").fill("no such task")
    assert rows(page) == []


def test_the_changes_add_up(page: Any) -> None:
    show(page, "view=tasks&left=0/idle&right=0/reference")
    chips = page.get_by_role("group").get_by_role("button")
    counts = [int(text.rpartition(" ")[2]) for text in chips.all_inner_texts()]
    assert counts[0] == sum(counts[1:]) == 8 and counts[1] > 0 and counts[2] == 0
    chips.nth(1).click()
    page.wait_for_selector('button[aria-pressed="true"]:has-text("gained")')
    assert len(rows(page)) == counts[1]


def test_two_conversations_stand_side_by_side(page: Any) -> None:
    show(page, "view=tasks&left=0/base&right=0/final")
    first = page.locator("tbody a").first
    name = first.inner_text()
    first.click()
    page.wait_for_selector(".side .message")
    assert page.inner_text("h1") == name
    assert page.locator(".side").count() == 2
    assert page.locator(".side .message.user").count() >= 2
    assert "Milestones" in page.inner_text("main")
    page.get_by_text("as JSON").first.click()
    page.wait_for_function("() => document.querySelector('.json pre').textContent")
    found = json.loads(page.locator(".json pre").first.text_content())
    assert {"messages", "score", "stop", "tools", "seed"} <= found.keys()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("name => document.querySelector('h1').textContent !== name", arg=name)
    page.keyboard.press("Escape")
    page.wait_for_selector("#search")


def test_an_episode_of_training_is_shown(page: Any) -> None:
    """It is chosen in the list of agents of its task."""
    found = page.evaluate("""async () => {
      const { load } = await import("report/data");
      const at = Object.entries((await load("run-0")).talks);
      return at.filter(([call]) => !call.startsWith("evaluation/"))
        .map(([call, tasks]) => [call, Object.keys(tasks)[0]])[0];
    }""")
    assert found, "no run has a conversation of training"
    show(page, f"view=task&task={found[1]}&left=0/call:{found[0]}&right=0/final")
    page.wait_for_selector(".side .message")
    assert "This cannot be shown" not in page.inner_text("main")


def test_html_in_a_conversation_stays_text(page: Any) -> None:
    show(page, "view=tasks&left=0/base&right=0/final")
    page.locator("tbody a").first.click()
    page.wait_for_selector(".side .message")
    assert HOSTILE in page.inner_text("main")
    assert page.locator(".message img, .message script").count() == 0
    assert "taken over" not in page.title()


@pytest.mark.parametrize("state", ["view=runs", "view=run&run=0", "view=tasks", "task"])
def test_a_phone_shows_it_without_scrolling_sideways(page: Any, state: str) -> None:
    if state == "task":
        show(page, "view=tasks")
        state = str(page.locator("tbody a").first.get_attribute("href"))[1:]
    page.set_viewport_size(NARROW)
    show(page, state)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_a_phone_shows_the_success_of_each_run(page: Any) -> None:
    page.set_viewport_size(NARROW)
    show(page, "view=runs")
    for cell in page.locator("tbody tr td:nth-child(2)").all()[:2]:
        box = cell.bounding_box()
        assert re.fullmatch(r"0\.\d{3}", cell.inner_text())
        assert box["x"] + box["width"] <= NARROW["width"]


def test_charts_that_nobody_looked_at_are_there_when_it_is_printed(page: Any) -> None:
    show(page, "view=run&run=0")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    charts = page.locator("figure .chart").count()
    page.wait_for_function(
        "n => document.querySelectorAll('.chart .main-svg').length >= n", arg=charts
    )
    assert charts > 2


SHORT_NAMES = [
    ("grpo@0007", "grpo@0007"),
    ("a_b@0003*1+c@0003*0.35+d@0003*0.35+e@0003*0.35", "a b + 0.35 of 3 others"),
    ("ties0.2(a@0003*1+b@0003*1)", "ties0.2: a and b"),
    ("a+b", "a+b"),
    ("a*1+b*x*y", "a*1+b*x*y"),
]


@pytest.mark.parametrize(("name", "short"), SHORT_NAMES)
def test_a_sum_of_adapters_has_a_short_name(page: Any, name: str, short: str) -> None:
    code = "async (name) => (await import('report/dom')).adapter(name)"
    assert page.evaluate(code, name) == short


def test_it_follows_the_readers_colour_scheme(page: Any) -> None:
    backs = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        backs.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs == ["rgb(255, 255, 255)", "rgb(15, 19, 24)"]


def test_a_wrong_address_says_so(page: Any) -> None:
    show(page, "view=run&run=7")
    assert "This cannot be shown" in page.inner_text("main")
