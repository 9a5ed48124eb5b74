"""Serves the page at `/`: files of this package, under a strict Content Security Policy (W3C CSP 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Response

__all__ = ["add_page"]

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The page puts a report into this frame, with the style sheet that is in the report. No script runs there.
_FRAME_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_FILES: Final = {
    "/": ("index.html", "text/html", _POLICY),
    "/page/frame.html": ("frame.html", "text/html", _FRAME_POLICY),
    "/page/style.css": ("style.css", "text/css", _POLICY),
    "/page/page.js": ("page.js", "text/javascript", _POLICY),
}
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def add_page(app: FastAPI) -> None:
    """Add the page and its files."""
    for path, (name, media_type, policy) in _FILES.items():
        app.get(path, include_in_schema=False)(_answering(name, media_type, policy))


def _answering(name: str, media_type: str, policy: str) -> Callable[[], Awaitable[Response]]:
    content = files("fanout.api.page").joinpath(name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS | {"Content-Security-Policy": policy})

    return answer
