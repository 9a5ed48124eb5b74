"""`/v1/report`: the page of the last report, as `fanout report --html` wrote it."""

from __future__ import annotations

import asyncio
import os
import stat
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Response

from fanout.errors import FanoutError

__all__ = ["REPORT_PATH", "NoReport", "add_report"]

REPORT_PATH: Final = "/v1/report"
_BYTES_MAX: Final = 32 * 1024 * 1024
"""Longest page; one of 1,000 topics in each list has less than 2 MiB."""
_COMMAND: Final = "fanout report summary LOG_DIR... --html"
_HEADERS: Final = {
    # Topics in it are of strangers. It is escaped; should that fail, nothing in it runs, loads or has this origin.
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class NoReport(FanoutError):
    """There is no report to show."""


def add_report(app: FastAPI, path: Path | None, *, missing: dict[str, Any]) -> None:
    """Add the endpoint.

    Args:
        app: The application.
        path: The file; None for none.
        missing: Description of the answer 404, for the schema.
    """

    @app.get(
        REPORT_PATH,
        operation_id="report",
        response_class=Response,
        responses={
            200: {"content": {"text/html": {}}, "description": "The page; `Last-Modified` says when it was made."},
            404: missing,
        },
    )
    async def report() -> Response:
        """Answer the page of the last report."""
        content, made = await asyncio.to_thread(_read, path)
        return Response(content, media_type="text/html", headers=_HEADERS | {"Last-Modified": made})


def _read(path: Path | None) -> tuple[bytes, str]:
    """Return the file, and when it was written.

    Raises:
        NoReport: There is none, or it cannot be read.
    """
    if path is None:
        raise NoReport(
            "the configuration names no report",
            hint=f'Set http.report = "report.html", restart the node, and let a timer run: {_COMMAND} report.html',
        )
    try:
        # A pipe would wait for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise NoReport(f"{path} is no file", hint="http.report names the page that fanout report writes")
            content = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NoReport(f"no report has been written to {path}", hint=f"Make one: {_COMMAND} {path}") from None
    except OSError as error:
        hint = "Let the node's user read the file and its directory: http.report names it"
        raise NoReport(f"{path} cannot be read: {error.strerror}", hint=hint) from None
    if len(content) > _BYTES_MAX:
        raise NoReport(
            f"{path} has more than {_BYTES_MAX >> 20} MiB", hint="Open the file itself; http.report names it"
        )
    return content, format_datetime(datetime.fromtimestamp(int(facts.st_mtime), UTC), usegmt=True)
