"""Headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

__all__ = ["Browser", "browsing"]

CHROMIUM: Final = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
CONTRAST_MIN: Final = 4.5
"""Of text on its background (WCAG 2.2, 1.4.3)."""

_CONTRAST: Final = """(() => {
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

    def show(self, page: Path | str, *, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Load a file or an address in a window of this width, 800 high."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def poor_contrasts(self) -> list[str]:
        """Return pieces of text that do not stand out from their background."""
        found: list[str] = self.ask(_CONTRAST.replace("LEAST", str(CONTRAST_MIN)))
        return found

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


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Start a browser with a directory for its files; skip the test if there is none."""
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
    process = subprocess.Popen(
        [CHROMIUM, *arguments, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        port = next(found[1] for line in process.stderr if (found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line)))
        answer = httpx.put(f"http://127.0.0.1:{port}/json/new?about:blank", timeout=30, trust_env=False)
        # No pings: their answers come after the events of the page, which nobody reads while a test waits for the node.
        url = answer.json()["webSocketDebuggerUrl"]
        with connect(url, max_size=None, proxy=None, ping_interval=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
