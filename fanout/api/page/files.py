"""Serves the page at `/`: files of this package, under a strict Content Security Policy (W3C CSP 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Response

__all__ = ["add_page"]

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def add_page(app: FastAPI) -> None:
    """Add the page and its files."""
    for path, (name, media_type) in _FILES.items():
        app.get(path, include_in_schema=False)(_answering(name, media_type))


def _answering(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = files("fanout.api.page").joinpath(name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return answer
