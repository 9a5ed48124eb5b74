"""A real HTTP service for the hook: it answers what the test says, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response

from fanout.api.http_server import HttpServer

__all__ = ["Service", "open_service"]


class Service:
    """What it was asked, and how it answers."""

    def __init__(self) -> None:
        self.url = ""
        """Where it listens."""
        self.asked: list[dict[str, Any]] = []
        """The questions, in order."""
        self.answer: object = {"allow": True}
        """What it answers: bytes as they are, everything else as JSON."""
        self.headers: dict[str, str] = {}
        """Further header fields of its answers."""
        self.status = 200
        """The status of its answers."""
        self.open = asyncio.Event()
        """Answers wait for it."""
        self.open.set()
        self.at_a_time = 0
        """The most questions that it had at a time."""
        self._now = 0

    async def __call__(self, request: Request) -> Response:
        """Answer one question."""
        assert request.headers["content-type"] == "application/json"
        self._now += 1
        self.at_a_time = max(self.at_a_time, self._now)
        try:
            self.asked.append(json.loads(await request.body()))
            await self.open.wait()
        finally:
            self._now -= 1
        content = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        return Response(content, status_code=self.status, media_type="application/json", headers=self.headers)


@contextlib.asynccontextmanager
async def open_service() -> AsyncIterator[Service]:
    """Give a service that listens on a port of its own."""
    service = Service()
    app = FastAPI()
    app.add_route("/mqtt", service.__call__, methods=["POST"])
    server = HttpServer(lambda: app, host="127.0.0.1", port=0)
    await server.start()
    service.url = f"{server.url}/mqtt"
    try:
        yield service
    finally:
        service.open.set()
        await server.stop()
