"""The page as a browser shows it: nothing to scroll sideways for, the answers first, readable in both colour schemes.

Figures are measured in headless Chromium, and screenshots looked at for the colours that must be in them; they are not
compared with others, since fonts differ between machines. Run with `--basetemp` to keep the screenshots.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from fanout.reports.render.page import render_page
from fanout.reports.values.document import Report
from tests.reports.documents import whole_report
from tests.reports.render.test_answers import answered, node

CHROMIUM: Final = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
CONTRAST_MIN: Final = 4.5
"""Of text on its background (WCAG 2.2, 1.4.3)."""

_CONTRAST = """(() => {
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("h1, h2, h3, p, td, th, li, strong, summary, a")) {
    if (!element.textContent.trim() || !element.offsetParent) continue;
    const pair = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < LEAST) poor.push(`${element.tagName} ${contrast.toFixed(1)} ${element.textContent.slice(0, 30)}`);
  }
  return poor;
})()"""

_COLOURS = """(async () => {
  const picture = new Image();
  picture.src = "data:image/png;base64,PICTURE";
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const { data } = canvas.getImageData(0, 0, picture.width, picture.height);
  const colours = {};
  for (let at = 0; at < data.length; at += 4) {
    const name = "#" + ((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]).toString(16).padStart(6, "0");
    colours[name] = (colours[name] ?? 0) + 1;
  }
  return colours;
})()"""


class Browser:
    """One page of a browser, driven over the DevTools protocol."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.requested: list[str] = []
        """Addresses that the page asked for."""
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := self._receive()).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def show(self, page: Path, *, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Load a page in a window of this width, 800 high."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=page.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Counter[str]:
        """Write a picture of the whole page, and return how many of its pixels have each colour; the page is gone."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))
        self.call("Page.navigate", url="about:blank")
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        return Counter(self.ask(_COLOURS.replace("PICTURE", picture)))

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=30))
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless Chromium for all tests."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium to show the page")
    arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        "--remote-allow-origins=*",
    ]
    profile = tmp_path_factory.mktemp("profile")
    process = subprocess.Popen(
        [CHROMIUM, *arguments, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        port = next(found[1] for line in process.stderr if (found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line)))
        answer = httpx.put(f"http://127.0.0.1:{port}/json/new?about:blank", timeout=30, trust_env=False)
        with connect(answer.json()["webSocketDebuggerUrl"], max_size=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


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
    assert browser.ask(_CONTRAST.replace("LEAST", str(CONTRAST_MIN))) == []


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
