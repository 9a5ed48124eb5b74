"""The page as a browser shows it: nothing to scroll sideways for, the answers first, readable in both colour schemes.

Figures are measured in headless Chromium, and screenshots looked at for the colours that must be in them; they are not
compared with others, since fonts differ between machines. Run with `--basetemp` to keep the screenshots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.reports.render.page import render_page
from fanout.reports.values.document import Report
from tests.reports.documents import whole_report
from tests.reports.render.test_answers import answered, node
from tests.support.chromium import Browser, browsing


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless Chromium for all tests."""
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def incomplete() -> Report:
    """Return a report with answers, whose names and topics are long."""
    lacking = node("edge-in-the-far-hall-17", answer="not_complete", missing=12_345)
    return answered(lacking, answer="not_complete", topic="plant/hall-7/line-12/machine-345/temperature/celsius")


@pytest.fixture(params=["answers", "all"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a page of answers, and one with every section."""
    made = incomplete() if request.param == "answers" else whole_report()
    path = tmp_path / "report.html"
    path.write_text(render_page(made))
    return path


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    """Tables that are wider scroll in themselves."""
    browser.show(page, width=width)
    assert browser.ask("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, page: Path, scheme: str) -> None:
    """Light and dark, every piece of text stands out from what is behind it."""
    browser.show(page, width=1280, scheme=scheme)
    browser.ask("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    light = sum(map(int, re.findall(r"[0-9]+", browser.ask("getComputedStyle(document.body).backgroundColor"))[:3]))
    assert (light > 600) == (scheme == "light"), "the page follows the reader's choice"
    assert browser.poor_contrasts() == []


def test_the_verdict_is_seen_without_scrolling(browser: Browser, tmp_path: Path) -> None:
    """And the first of the pictures under it, also on a telephone."""
    path = tmp_path / "report.html"
    path.write_text(render_page(incomplete()))
    for width in (360, 1280):
        browser.show(path, width=width)
        assert browser.ask("document.querySelector('.answer').getBoundingClientRect().bottom") < 400
        assert browser.ask("document.querySelector('svg[role=img]').getBoundingClientRect().top") < 700


@pytest.mark.parametrize(
    ("name", "settings", "ground", "bad"),
    [
        ("light", {"width": 1280}, "#ffffff", "#c62839"),
        ("dark", {"width": 1280, "scheme": "dark"}, "#14181d", "#ff7b86"),
        ("print", {"width": 1280, "media": "print"}, "#ffffff", "#c62839"),
        ("telephone", {"width": 360}, "#ffffff", "#c62839"),
    ],
)
def test_a_screenshot_shows_what_is_bad(
    browser: Browser, page: Path, name: str, settings: dict[str, Any], ground: str, bad: str
) -> None:
    """Light, dark, on paper and on a telephone: the page's ground, red words on it, and letters with soft edges."""
    browser.show(page, **settings)
    colours = browser.screenshot(page.with_name(f"{name}.png"))
    assert colours.most_common(1)[0][0] == ground
    assert colours[bad] > 20
    assert len(colours) > 50


def test_paper_shows_whole_tables(browser: Browser, page: Path) -> None:
    """Nothing scrolls on paper."""
    browser.show(page, width=1280, media="print")
    hidden = (
        "[...document.querySelectorAll('.wide, .chart')].filter((e) => getComputedStyle(e).overflowX !== 'visible')"
    )
    assert browser.ask(f"{hidden}.length") == 0


def test_no_other_host_is_asked(browser: Browser, page: Path) -> None:
    """The page is all there is."""
    browser.requested.clear()
    browser.show(page, width=1280)
    assert browser.requested == [page.as_uri()]
