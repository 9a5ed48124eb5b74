"""The fake primary behind a real socket."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from tests.link.fake_primary import FakePrimary

__all__ = ["FakeServer"]


class FakeServer:
    """Serves one client at a time on a free port of 127.0.0.1."""

    def __init__(self, primary: FakePrimary) -> None:
        """Serve with `primary`."""
        self.primary = primary
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
        data = self.primary.take()
        if data:
            self.primary.stream.note(data)
            self._writers[-1].write(data)

    def cut(self) -> None:
        """Abort every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.primary.accept()
        try:
            while data := await reader.read(1 << 16):
                self.primary.receive(data)
                self.push()
                if self.primary.is_closed:
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()
