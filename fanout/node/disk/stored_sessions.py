"""Sessions on disk: what a node that stops leaves to the next process, in its file.

Owns when the file exists: from the end of a stop until the next start has read it. A process that was killed leaves
none, since a session without its last minutes would lose messages at QoS 2 or deliver them twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from fanout.durable.form.session_format import decode_sessions, encode_sessions
from fanout.durable.hosting.session_restart import TakeOver
from fanout.errors import SessionFormInvalid, StoreError
from fanout.runtime.system_clock import Clock
from fanout.server.session.exported_session import ExportedSession
from fanout.storage.file import FileDamagedError
from fanout.storage.sessions_file import read_records, remove_file, set_aside, write_records, written_ns

__all__ = ["StoredSessions"]


class _Left(NamedTuple):
    """Sessions that an earlier process wrote."""

    sessions: list[ExportedSession]
    written_ns: int
    """Unix time in nanoseconds at which it stopped."""


class StoredSessions:
    """The sessions of a node in their file."""

    def __init__(self, path: Path, *, clock: Clock, logger: FilteringBoundLogger) -> None:
        """Prepare.

        Args:
            path: The file.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self._path = path
        self._clock = clock
        self._logger = logger
        self._has_restored = False

    async def restore(self, take_over: TakeOver) -> None:
        """Hand on the sessions that an earlier process left, before a client is served, and remove the file.

        A damaged file is set aside; its clients begin new sessions.

        Args:
            take_over: Called with them, where there are any.

        Raises:
            StoreError: The file cannot be read, or not be removed.
        """
        left = await asyncio.to_thread(self._read)
        if left is not None:
            await take_over(left.sessions, left_ns=left.written_ns)
            await asyncio.to_thread(remove_file, self._path)
        self._has_restored = True

    async def store(self, sessions: Iterable[ExportedSession]) -> None:
        """Leave sessions to the next process; an error is logged.

        Without a `restore` before that has succeeded, the file stays as it is: nobody was served.
        """
        if not self._has_restored:
            return
        try:
            await self.write(sessions)
        except StoreError as error:
            self._logger.error("sessions not stored", reason=error.message, hint=error.hint)

    async def write(self, sessions: Iterable[ExportedSession]) -> None:
        """Write the file.

        Raises:
            StoreError: It cannot be written.
        """
        records = encode_sessions(sessions)
        count = await asyncio.to_thread(write_records, self._path, records, now_ns=self._clock.now_ns())
        self._logger.info("sessions stored", sessions=count)

    def _read(self) -> _Left | None:
        try:
            time_ns = written_ns(self._path)
            return None if time_ns is None else _Left(list(decode_sessions(read_records(self._path))), time_ns)
        except (FileDamagedError, SessionFormInvalid) as error:
            aside = set_aside(self._path, now_ns=self._clock.now_ns())
            self._logger.error(
                "file of sessions is damaged, set aside",
                reason=str(error),
                file=str(aside),
                hint="Clients begin new sessions. Check the disk, and that the version that wrote it is not newer",
            )
            return None
