"""`/v1/report`: the page of the last report."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from fanout.api.app import create_app
from tests.api.stand_in import ready_node


async def asked(report: Path | None) -> httpx.Response:
    """Return the answer of a node whose `http.report` is this file."""
    app = create_app(ready_node(), report=report)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as http:
        return await http.get("/v1/report")


async def test_the_file_is_answered_as_it_is(tmp_path: Path) -> None:
    """With the time at which it was written, and a policy under which nothing in it runs."""
    path = tmp_path / "report.html"
    path.write_bytes(b"<!doctype html><h1>Replication report</h1>")
    os.utime(path, (1_763_712_000, 1_763_712_000))
    answer = await asked(path)
    assert (answer.status_code, answer.content) == (200, path.read_bytes())
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["last-modified"] == "Fri, 21 Nov 2025 08:00:00 GMT"
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")


async def test_a_report_that_is_not_there_is_refused_with_the_way_to_make_it(tmp_path: Path) -> None:
    """Whatever is in the way: no key, no file, a directory, a pipe without a writer, or too many bytes."""
    pipe, large = tmp_path / "pipe", tmp_path / "large.html"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate((32 << 20) + 1)
    for path, error, hint in (
        (None, "the configuration names no report", 'Set http.report = "report.html"'),
        (tmp_path / "none.html", "no report has been written", "fanout report summary LOG_DIR... --html"),
        (tmp_path, "cannot be read: Is a directory", "http.report"),
        (pipe, "is no file", "http.report"),
        (large, "has more than 32 MiB", "http.report"),
    ):
        answer = await asked(path)
        assert answer.status_code == 404
        assert error in answer.json()["error"]
        assert hint in answer.json()["hint"]
