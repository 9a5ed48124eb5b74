"""The fake primary behind a real socket."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Self

from tests.link.fake_primary import FakePrimary

__all__ = ["FakeServer"]


class FakeServer:
    """Serves one client at a time on a free port of 127.0.0.1, and beside it short connections that ask by name."""

    def __init__(self, primary: FakePrimary, *, beside: FakePrimary | None = None) -> None:
        """Serve with `primary`, and short connections that ask by name with `beside`; None for one with its values."""
        self.primary = primary
        self.beside = beside or replace(primary)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def is_connected(self) -> bool:
        """Whether there is a client to push to."""
        return bool(self._writers)

    def push(self) -> None:
        """Write what the primary has to say."""
        self._write(self.primary, self._writers[-1])

    def cut(self) -> None:
        """Abort every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            data = await reader.read(1 << 16)
            primary = self.beside if b"-names" in data else self.primary
            if primary is self.primary:
                self._writers.append(writer)
            primary.accept()
            while data:
                # What was under way when the client came again is of no connection that the primary knows.
                if primary is not self.primary or self._writers[-1:] == [writer]:
                    primary.receive(data)
                    self._write(primary, writer)
                    if primary.is_closed:
                        break
                data = await reader.read(1 << 16)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _write(self, primary: FakePrimary, writer: asyncio.StreamWriter) -> None:
        while data := primary.take():
            primary.stream.note(data)
            writer.write(data)
