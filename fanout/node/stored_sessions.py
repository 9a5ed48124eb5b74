"""Sessions on disk: what a node that stops leaves to the next process, and what becomes of it there.

Owns when the file exists: from the end of a stop until the next start has read it. A process that was killed leaves
none, since a session without its last minutes would lose messages at QoS 2 or deliver them twice.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from structlog.typing import FilteringBoundLogger

from fanout.errors import SessionFormInvalid, SessionMoveRefused, StoreError
from fanout.runtime.system_clock import Clock
from fanout.server.client.server import Server
from fanout.server.session.exported_session import ExportedSession
from fanout.server.session.session_export import MessageMaker
from fanout.server.session.session_format import decode_sessions, encode_sessions
from fanout.storage.file import FileDamagedError
from fanout.storage.sessions_file import read_records, remove_file, set_aside, write_records, written_ns

__all__ = ["RETURN_S", "StoredSessions"]

RETURN_S: Final = 30.0
"""Time after a start in which no Will Message is published for a session of the earlier process: clients come back,
and links connect."""
_RESTORED_AT_ONCE: Final = 64
"""Sessions that are restored in one turn of the event loop."""
_MS_PER_S: Final = 1000
_NS_PER_MS: Final = 1_000_000


class _Left(NamedTuple):
    """What an earlier process left."""

    sessions: list[ExportedSession]
    written_ns: int
    """Unix time in nanoseconds at which it stopped."""


class StoredSessions:
    """The sessions of a node in their file."""

    def __init__(self, path: Path, server: Server, *, clock: Clock, logger: FilteringBoundLogger) -> None:
        """Prepare.

        Args:
            path: The file.
            server: Serves the clients.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self._path = path
        self._server = server
        self._clock = clock
        self._logger = logger
        self._has_restored = False
        self._ended: dict[str, ExportedSession] = {}
        """Sessions that expired while no process ran and whose Will Message is not published yet, by Client
        Identifier."""

    async def restore(self) -> None:
        """Give the server the sessions that an earlier process left, before it serves, and remove the file.

        A damaged file is set aside; its clients begin new sessions.

        Raises:
            StoreError: The file cannot be read, or not be removed.
        """
        left = await asyncio.to_thread(self._read)
        if left is not None:
            await self._import(left)
            await asyncio.to_thread(remove_file, self._path)
        self._has_restored = True

    async def store(self) -> None:
        """Leave the sessions of the server, which has stopped, to the next process; an error is logged.

        Without a `restore` before that has succeeded, the file stays as it is: nobody was served.
        """
        if not self._has_restored:
            return
        ended = [session for name, session in self._ended.items() if self._server.registry.get(name) is None]
        records = encode_sessions(chain(self._server.moves.export_all(), ended))
        try:
            count = await asyncio.to_thread(write_records, self._path, records, now_ns=self._clock.now_ns())
        except StoreError as error:
            self._logger.error("sessions not stored", reason=error.message, hint=error.hint)
        else:
            self._logger.info("sessions stored", sessions=count - len(ended))

    async def _import(self, left: _Left) -> None:
        away_ms = max(0, self._clock.now_ns() - left.written_ns) // _NS_PER_MS
        make = MessageMaker(now_ns=left.written_ns)  # so that what expires does so as if nothing had happened
        restored = expired = refused = 0
        for number, session in enumerate(left.sessions, 1):
            try:
                if session.expiry_left_ms <= away_ms:
                    expired += 1
                    self._end_later(session)
                else:
                    self._server.moves.import_session(_aged(session, away_ms), messages=make)
                    restored += 1
            except SessionMoveRefused as refusal:
                refused += 1
                self._logger.warning("session not restored", reason=refusal.message, hint=refusal.hint)
            if number % _RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._logger.info(
            "sessions restored",
            sessions=restored,
            expired=expired,
            refused=refused,
            away_s=round(away_ms / _MS_PER_S, 1),
        )

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

    def _end_later(self, session: ExportedSession) -> None:
        """End a session that has expired since: all that is left of it is its Will Message, if it has one."""

        def end() -> None:
            del self._ended[session.client_id]
            self._server.moves.publish_will(session)

        if session.will is not None:
            self._ended[session.client_id] = replace(
                session, expiry_left_ms=1, subscriptions=(), in_flight=(), queue=(), retained=(), unreleased=frozenset()
            )
            self._server.after(RETURN_S, end)


def _aged(session: ExportedSession, away_ms: int) -> ExportedSession:
    """Return a session after so many milliseconds without a process."""
    will_left_ms = session.will_left_ms
    if will_left_ms is not None:
        will_left_ms = max(will_left_ms - away_ms, int(RETURN_S * _MS_PER_S))
    return replace(session, expiry_left_ms=session.expiry_left_ms - away_ms, will_left_ms=will_left_ms)
